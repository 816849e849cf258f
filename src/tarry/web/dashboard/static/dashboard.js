// Replaces the parts of a page that are marked with data-live by those of a fresh copy of the same page, every so many
// seconds. Nothing else needs it: without this script the pages reload.
"use strict";

(function () {
  const live = document.querySelector("[data-live]");
  if (!live) return;
  const every = 1000 * Number(live.dataset.live);

  async function refresh() {
    if (document.hidden) return;
    const answer = await fetch(location.href, { headers: { accept: "text/html" }, redirect: "error" });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById(live.id);
    if (!fresh || fresh.innerHTML === live.innerHTML) return;
    const focused = live.contains(document.activeElement) ? document.activeElement : null;
    const address = focused ? focused.getAttribute("href") : null;
    live.replaceChildren(...fresh.childNodes);
    document.title = page.title;
    if (address) {
      const same = [...live.querySelectorAll("a")].find((one) => one.getAttribute("href") === address);
      if (same) same.focus();
    }
  }

  async function repeat() {
    try {
      await refresh();
    } catch {
      // The next attempt may succeed; until then the page shows what it had.
    }
    setTimeout(repeat, every);
  }

  setTimeout(repeat, every);
})();
