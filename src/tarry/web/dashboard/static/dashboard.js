// Keeps the part of a page that changes up to date: the service sends it whenever it has changed. Nothing else needs this
// script; without it the pages reload.
"use strict";

(function () {
  const live = document.querySelector("[data-live]");
  if (!live) return;
  const page = encodeURIComponent(location.pathname + location.search);
  const address = "/live?every=" + encodeURIComponent(live.dataset.live) + "&page=" + page;
  const ending = document.title.slice(document.title.lastIndexOf(" · "));
  let source = null;

  function show(event) {
    const fresh = JSON.parse(event.data);
    const part = new DOMParser().parseFromString(fresh.live, "text/html").body;
    if (part.innerHTML === live.innerHTML) return;
    const focused = live.contains(document.activeElement) ? document.activeElement : null;
    const link = focused ? focused.getAttribute("href") : null;
    live.replaceChildren(...part.childNodes);
    document.title = new DOMParser().parseFromString(fresh.title, "text/html").body.textContent + ending;
    if (link) {
      const same = [...live.querySelectorAll("a")].find((one) => one.getAttribute("href") === link);
      if (same) same.focus();
    }
  }

  function connect() {
    if (source || document.hidden) return;
    source = new EventSource(address);
    source.onmessage = show;
    source.onerror = function () {
      // A browser connects again by itself unless the service refused: the session may have ended.
      if (source && source.readyState === EventSource.CLOSED) {
        source = null;
        setTimeout(function () { location.reload(); }, 10000);
      }
    };
  }

  // A page that nobody sees gets nothing, so that the connections are there for others.
  document.addEventListener("visibilitychange", function () {
    if (document.hidden && source) {
      source.close();
      source = null;
    }
    connect();
  });
  connect();
})();
