// What the theme leaves out: a table or drawing that is wider than the screen scrolls, so the
// keyboard must reach it; and a dialog has a name.
"use strict";

const reach = () => {
  for (const [wide, label] of [[".md-typeset__scrollwrap", "table"],
    [".piece > div:has(> svg[width])", "drawing"]]) {
    for (const wrap of document.querySelectorAll(`:is(${wide}):not([tabindex])`)) {
      wrap.tabIndex = 0;
      wrap.setAttribute("role", "group");
      wrap.setAttribute("aria-label", label);
    }
  }
  for (const dialog of document.querySelectorAll('[role="dialog"]:not([aria-label])')) {
    dialog.setAttribute("aria-label", "Search");
  }
};
new MutationObserver(reach).observe(document.documentElement, { childList: true, subtree: true });
reach();
