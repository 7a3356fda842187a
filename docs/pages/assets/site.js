// A table that is wider than the screen scrolls: let the keyboard reach it.
"use strict";

const reach = () => {
  for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) {
    wrap.tabIndex = 0;
    wrap.setAttribute("role", "group");
    wrap.setAttribute("aria-label", "table");
  }
};
new MutationObserver(reach).observe(document.documentElement, { childList: true, subtree: true });
reach();
