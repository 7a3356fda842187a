// Number line: the values of a floating-point format around a number, and the error of rounding.
minipar.pieces.number_line = {
  // The nearest value of a format to x, ties to even; its step, and what happened.
  compute: (data, { name, value }) => {
    const format = data.formats.find((each) => each.name === name);
    const least = 1 - format.bias;                      // the smallest exponent of normal numbers
    const size = Math.abs(value);
    const exponent = size === 0 ? least : Math.max(least, Math.floor(Math.log2(size)));
    const step = 2 ** (exponent - format.mantissa);
    const units = size / step, below = Math.floor(units), rest = units - below;
    const up = rest > 0.5 || (rest === 0.5 && below % 2 === 1);
    let rounded = (below + (up ? 1 : 0)) * step, what = "";
    // half a step above the largest value, a number is out of reach
    const last = 2 ** (Math.floor(Math.log2(format.largest)) - format.mantissa);
    if (rounded > format.largest) {
      const saturates = format.overflow === "saturate" || size < format.largest + last / 2;
      rounded = saturates ? format.largest : Infinity;
      what = saturates ? "beyond the largest value: it saturates" : "it overflows to infinity";
    } else if (rounded === 0 && size > 0) what = "it underflows to 0";
    else if (size > 0 && size < 2 ** least) what = "it is subnormal: steps no longer shrink";
    return { rounded: Math.sign(value) * rounded || rounded, step, what };
  },
};

minipar.piece("number_line", (root, data) => {
  const { svg, element, control } = minipar;
  const set = { name: data.formats[2].name, value: data.value, scale: 1 };
  const [width, height, left] = [minipar.width(), 110, 20];
  const holder = element("div");
  const words = element("p", { class: "words", "aria-live": "polite" });

  const draw = () => {
    const format = data.formats.find((each) => each.name === set.name);
    const scaled = set.value * set.scale;
    const { rounded, step, what } = minipar.pieces.number_line.compute(data,
      { name: set.name, value: scaled });
    const half = Math.max(8 * step, Math.abs(scaled - rounded) * 1.5 || 0);
    const [from, to] = [scaled - half, scaled + half];
    const x = (v) => left + (v - from) / (to - from) * (width - 2 * left);
    const parts = [svg("line", { x1: left, x2: width - left, y1: 60, y2: 60,
      stroke: "currentColor" })];
    const values = new Set();                           // all values of the window
    for (let k = 0; k <= 4000; k += 1) {
      const v = minipar.pieces.number_line.compute(data,
        { name: set.name, value: from + (to - from) * k / 4000 }).rounded;
      if (Number.isFinite(v) && v >= from && v <= to) values.add(v);
    }
    for (const v of values) {
      parts.push(svg("line", { x1: x(v), x2: x(v), y1: 52, y2: 68, stroke: "currentColor" }));
    }
    if (Number.isFinite(rounded) && rounded >= from && rounded <= to) {
      parts.push(svg("circle", { cx: x(rounded), cy: 60, r: 6, fill: "#0072b2" }),
        svg("text", { x: x(rounded), y: 92, "text-anchor": "middle", "font-size": 12 },
          `stored ${rounded.toPrecision(5)}`));
    }
    parts.push(svg("path", { d: `M${x(scaled) - 6} 30 h12 l-6 14 z`, fill: "#d55e00" }),
      svg("text", { x: x(scaled), y: 22, "text-anchor": "middle", "font-size": 12 },
        `x = ${scaled.toPrecision(5)}`));
    const back = rounded / set.scale, off = Math.abs(back - set.value);
    words.textContent = `${format.name}: ${format.exponent} bits of exponent, ${format.mantissa} of `
      + `mantissa, largest ${format.largest.toPrecision(5)}. ${set.value} `
      + (set.scale === 1 ? "" : `times ${set.scale} `)
      + `is stored as ${rounded.toPrecision(6)}; steps here are ${step.toPrecision(3)}. `
      + (Number.isFinite(back) ? `Divided by the scale again, the error is ${off.toPrecision(3)}`
        + (set.value ? `, ${(100 * off / Math.abs(set.value)).toPrecision(3)} %.` : ".") : "")
      + (what ? ` Note: ${what}.` : "");
    holder.replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": words.textContent }, ...parts));
  };

  const change = (key) => (value) => { set[key] = value; draw(); };
  root.append(element("div", { class: "controls" },
    control("format", "select", { values: data.formats.map((each) => each.name),
      value: set.name }, change("name")),
    control("number", "number", { value: set.value, step: "any" },
      (value) => { if (Number.isFinite(value)) change("value")(value); }),
    control("scale 2^k, k =", "range", { min: -24, max: 24, step: 1, value: 0,
      show: (k) => String(k) }, (k) => change("scale")(2 ** k))), holder, words);
  draw();
});
