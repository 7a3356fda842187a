// Rematerialization budget: what the best plan within some bytes keeps, and what it computes again.
minipar.pieces.remat = {
  // The plan with the fewest recomputed FLOPs whose peak is within the budget; null if none fits.
  compute: (data, { chain, budget }) => {
    const fitting = data.chains[chain].plans.filter((each) => each.peak <= budget);
    return fitting.length ? fitting.reduce((a, b) => b.extra < a.extra ? b : a) : null;
  },
};

minipar.piece("remat", (root, data) => {
  const { svg, element, control } = minipar;
  const chains = Object.keys(data.chains);
  const set = { chain: chains[0], share: 0.45 };
  const colours = { forward: "#0072b2", again: "#e69f00", loss: "#555", backward: "#d55e00" };
  const [width, height, left, bottom, top] = [640, 250, 66, 46, 14];
  const holder = element("div");
  const words = element("p", { class: "words", "aria-live": "polite" });

  const draw = () => {
    const { plans } = data.chains[set.chain];
    const peaks = plans.map((each) => each.peak);
    const [least, most] = [Math.min(...peaks), Math.max(...peaks)];
    const budget = least + set.share * (most - least);
    const found = minipar.pieces.remat.compute(data, { chain: set.chain, budget });
    const x = (i) => left + i / found.steps.length * (width - left - 8);
    const y = (bytes) => height - bottom - bytes / (most * 1.05) * (height - bottom - top);
    const parts = found.steps.map(([kind, , live], i) => svg("rect", { x: x(i), y: y(live),
      width: Math.max(0.5, x(i + 1) - x(i) - 0.6), height: height - bottom - y(live),
      fill: colours[kind] }));
    for (const [bytes, name] of [[budget, "budget"], [most, "keep all"]]) {
      parts.push(svg("line", { x1: left, x2: width - 8, y1: y(bytes), y2: y(bytes),
        stroke: "currentColor", "stroke-dasharray": name === "budget" ? "6 3" : "1 3" }),
      svg("text", { x: width - 10, y: y(bytes) - 3, "text-anchor": "end", "font-size": 11 }, name));
    }
    for (const bytes of [0, most / 2, most]) {
      parts.push(svg("text", { x: left - 6, y: y(bytes) + 4, "text-anchor": "end",
        "font-size": 11 }, minipar.bytes(bytes)));
    }
    parts.push(svg("line", { x1: left, x2: width - 8, y1: height - bottom, y2: height - bottom,
      stroke: "currentColor" }),
    svg("text", { x: (left + width) / 2, y: height - bottom + 16, "text-anchor": "middle",
      "font-size": 11 }, "steps of parts, in the order of time; height: bytes alive"));
    ["forward", "loss", "again", "backward"].forEach((kind, k) => {
      const place = left + 130 * k;
      parts.push(svg("rect", { x: place, y: height - 16, width: 12, height: 12,
        fill: colours[kind] }), svg("text", { x: place + 18, y: height - 6, "font-size": 12 },
      kind === "again" ? "computed again" : kind));
    });
    words.textContent = `Within ${minipar.bytes(budget)} the best plan peaks at `
      + `${minipar.bytes(found.peak)}, ${(100 * found.peak / most).toFixed(0)} % of keeping all, and `
      + `computes ${found.extra.toFixed(2)} forwards again. Segments in brackets keep only their `
      + `input: ${found.plan}.`;
    holder.replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${height}`, width, role: "img",
      "aria-label": words.textContent }, ...parts));
  };

  root.append(element("div", { class: "controls" },
    control("model", "select", { values: chains, value: set.chain },
      (value) => { set.chain = value; draw(); }),
    control("budget", "range", { min: 0, max: 1, step: 0.01, value: set.share,
      show: (share) => `${(100 * share).toFixed(0)} % from the least to all` },
    (value) => { set.share = value; draw(); })), holder, words);
  draw();
});
