// A link to a result unfolds it.

"use strict";

function unfoldTarget() {
  const target = location.hash.startsWith("#result-") ? document.getElementById(location.hash.slice(1)) : null;
  if (target === null) return;
  target.open = true;
  target.scrollIntoView();
}

/** Unfold all results, so that print has them, and then tell each. */
function unfoldAll() {
  for (const fold of document.querySelectorAll(".results > details")) {
    fold.open = true;
    // the event by which a page is built when it is opened comes too late
    fold.dispatchEvent(new Event("toggle"));
  }
  dispatchEvent(new Event("printing"));
}

addEventListener("beforeprint", unfoldAll);
addEventListener("hashchange", unfoldTarget);
unfoldTarget();
