// Keeps the part of a page that changes up to date: the service sends it whenever it has changed, and a sign of life when
// it has not. Nothing else needs this script; without it the pages reload.
"use strict";

(function () {
  const live = document.querySelector("[data-live]");
  if (!live) return;
  const page = encodeURIComponent(location.pathname + location.search);
  const address = "/live?every=" + encodeURIComponent(live.dataset.live) + "&page=" + page;
  const ending = document.title.slice(document.title.lastIndexOf(" · "));
  const PATIENCE = 60000;
  const old = document.createElement("p");
  old.className = "old";
  old.setAttribute("role", "alert");
  old.hidden = true;
  live.before(old);
  let source = null;
  let heard = new Date();

  function heardNow() {
    heard = new Date();
    old.hidden = true;
  }

  // A number that looks current and is not would be worse than none.
  function noteSilence() {
    if (!old.hidden || document.hidden) return;
    old.textContent = "The service has not answered since " + heard.toISOString().slice(11, 19) +
      ": what is below is of then. Reload the page; you may have to log in again.";
    old.hidden = false;
  }

  // Only what differs is replaced: what somebody is about to click, has opened or has scrolled stays as it is. A form is
  // replaced as a whole, so that a click never goes to another action than the one that was aimed at.
  function refresh(before, after) {
    const was = parts(before);
    const is = parts(after);
    if (was.length !== is.length) {
      before.replaceChildren(...after.childNodes);
      return;
    }
    was.forEach(function (node, at) {
      if (node.isEqualNode(is[at])) return;
      if (isSame(node, is[at])) refresh(node, is[at]);
      else node.replaceWith(is[at]);
    });
  }

  function parts(node) {
    return [...node.childNodes].filter((one) => one.nodeType !== Node.TEXT_NODE || one.data.trim());
  }

  function isSame(node, other) {
    const isOpen = node.nodeName === "DETAILS" && other.nodeName === "DETAILS";
    if (isOpen) other.open = node.open;
    return node.nodeType === Node.ELEMENT_NODE && node.nodeName !== "FORM" &&
      node.cloneNode(false).isEqualNode(other.cloneNode(false));
  }

  function show(event) {
    heardNow();
    const fresh = JSON.parse(event.data);
    document.title = new DOMParser().parseFromString(fresh.title, "text/html").body.textContent + ending;
    const focused = live.contains(document.activeElement) ? document.activeElement : null;
    const link = focused ? focused.getAttribute("href") : null;
    refresh(live, new DOMParser().parseFromString(fresh.live, "text/html").body);
    if (link && !focused.isConnected) {
      const same = [...live.querySelectorAll("a")].find((one) => one.getAttribute("href") === link);
      if (same) same.focus();
    }
  }

  function connect() {
    if (source || document.hidden) return;
    source = new EventSource(address);
    source.onmessage = show;
    source.onopen = heardNow;
    source.addEventListener("alive", heardNow);
    source.onerror = function () {
      noteSilence();
      // A browser connects again by itself, unless the service refused: then later, since it may be busy.
      if (source && source.readyState === EventSource.CLOSED) {
        source = null;
        setTimeout(connect, 10000);
      }
    };
  }

  setInterval(function () {
    if (new Date() - heard > PATIENCE) noteSilence();
  }, 1000);

  // A page that nobody sees gets nothing, so that the connections are there for others. Its title would be old too.
  document.addEventListener("visibilitychange", function () {
    if (document.hidden) {
      if (source) source.close();
      source = null;
      document.title = ending.slice(3);
    } else {
      heard = new Date();
      connect();
    }
  });
  connect();
})();
