// What the theme leaves out: a table that is wider than the screen scrolls, so the keyboard must
// reach it; and a dialog has a name.
"use strict";

const reach = () => {
  for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) {
    wrap.tabIndex = 0;
    wrap.setAttribute("role", "group");
    wrap.setAttribute("aria-label", "table");
  }
  for (const dialog of document.querySelectorAll('[role="dialog"]:not([aria-label])')) {
    dialog.setAttribute("aria-label", "Search");
  }
};
new MutationObserver(reach).observe(document.documentElement, { childList: true, subtree: true });
reach();
