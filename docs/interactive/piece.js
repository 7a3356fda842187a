// Shared by all interactive pieces.  A piece calls minipar.piece(name, draw); draw(root, data) runs
// for each <div class="piece" data-piece="name"> of a page, with the JSON that Python wrote into it.
"use strict";

const minipar = { pieces: {} };

minipar.piece = (name, draw) => {
  const start = () => {
    const json = document.getElementById(`data-${name}`);
    for (const root of document.querySelectorAll(`.piece[data-piece="${name}"]`)) {
      root.replaceChildren();
      draw(root, JSON.parse(json.textContent));
    }
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
};

// An element: minipar.element("button", { type: "button", onclick: f }, "Step").
minipar.element = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);

// An element of a drawing: minipar.svg("rect", { x: 1, y: 2, width: 3, height: 4 }).
minipar.svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node[name] = value;
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

// A control with its label: kind "range", "number", "select" or "checkbox".  change(value) is called
// with a number, a boolean, or the chosen option.  The words of a range come from show(value).
minipar.control = (label, kind, options, change) => {
  const id = `control-${minipar.control.count = (minipar.control.count || 0) + 1}`;
  const shown = minipar.element("output", { for: id });
  let input;
  const value = () => kind === "checkbox" ? input.checked
    : kind === "select" ? options.values[input.selectedIndex] : Number(input.value);
  const update = () => {
    shown.textContent = options.show ? options.show(value()) : "";
    change(value());
  };
  if (kind === "select") {
    input = minipar.element("select", { id, onchange: update }, ...options.values.map((each, i) =>
      minipar.element("option", { selected: each === options.value },
        String(options.names ? options.names[i] : each))));
  } else {
    input = minipar.element("input", { id, type: kind, min: options.min ?? null,
      max: options.max ?? null, step: options.step ?? null, oninput: update });
    if (kind === "checkbox") input.checked = options.value;
    else input.value = options.value;
  }
  shown.textContent = options.show ? options.show(options.value) : "";
  return minipar.element("div", { class: "control" },
    minipar.element("label", { for: id }, label), input, shown);
};

// The width of a drawing that can be narrow.  One that cannot is an svg with a width: on a phone it
// scrolls (extra.css), since its words would be too small to read.
minipar.width = () => matchMedia("(max-width: 44.9375em)").matches ? 320 : 640;

// Bytes in words, as minipar prints them: powers of 1000.
minipar.bytes = (n) => {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let i = 0;
  while (n >= 1000 && i < units.length - 1) { n /= 1000; i += 1; }
  return `${i ? n.toPrecision(3) : Math.round(n)} ${units[i]}`;
};

// Seconds in words.
minipar.seconds = (t) => {
  const units = [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]];
  const [name, size] = units.find(([, each]) => t >= each) || units[3];
  return `${(t / size).toPrecision(3)} ${name}`;
};
