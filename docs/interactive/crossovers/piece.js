// All-reduce crossovers: seconds over bytes for each algorithm, and which is the fastest where.
minipar.pieces.crossovers = {
  // Seconds of each algorithm, {name: seconds}, for n bytes.
  compute: (data, { p, n, latency, bandwidth, combining }) => {
    const found = {};
    for (const [name, [rounds, bytes, combined]] of Object.entries(data.costs[p])) {
      found[name] = rounds * latency + bytes * n / bandwidth + combined * n / combining;
    }
    return found;
  },
};

minipar.piece("crossovers", (root, data) => {
  const { svg, element, control } = minipar;
  const set = { p: 8, latency: data.latency, bandwidth: data.bandwidth, combining: data.combining };
  const names = Object.keys(data.costs[set.p]);
  const colours = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
  const dashes = ["", "6 3", "2 3", "8 3 2 3", "1 2", "10 4"];
  const [width, height, left, bottom, top] = [640, 330, 62, 54, 26];
  const [low, high] = [3, 9];                           // powers of ten, of bytes
  const holder = element("div");
  const words = element("p", { class: "words", "aria-live": "polite" });

  const draw = () => {
    const sizes = Array.from({ length: 121 }, (_, i) => 10 ** (low + (high - low) * i / 120));
    const times = sizes.map((n) => minipar.pieces.crossovers.compute(data, { ...set, n }));
    const all = times.flatMap((each) => Object.values(each));
    const [small, large] = [Math.min(...all), Math.max(...all)].map(Math.log10);
    const x = (n) => left + (Math.log10(n) - low) / (high - low) * (width - left - 26);
    const y = (t) => height - bottom - (Math.log10(t) - small) / (large - small)
      * (height - bottom - top);
    const best = times.map((each) => names.reduce((a, b) => each[b] < each[a] ? b : a));
    const parts = [];
    for (let i = 0; i < sizes.length - 1; i += 1) {     // the band of winners
      parts.push(svg("rect", { x: x(sizes[i]), width: x(sizes[i + 1]) - x(sizes[i]) + 0.5, y: 4,
        height: 12, fill: colours[names.indexOf(best[i])] }));
    }
    for (let power = low; power <= high; power += 1) {
      parts.push(svg("line", { x1: x(10 ** power), x2: x(10 ** power), y1: top,
        y2: height - bottom, stroke: "currentColor", "stroke-opacity": 0.15 }),
      svg("text", { x: x(10 ** power), y: height - bottom + 16, "text-anchor": "middle",
        "font-size": 11 }, minipar.bytes(10 ** power).replace(".00", "")));
    }
    for (let power = Math.ceil(small); power <= large; power += 1) {
      parts.push(svg("text", { x: left - 6, y: y(10 ** power) + 4, "text-anchor": "end",
        "font-size": 11 }, minipar.seconds(10 ** power).replace(".00", "")));
    }
    names.forEach((name, k) => {
      const path = sizes.map((n, i) => `${i ? "L" : "M"}${x(n)} ${y(times[i][name])}`).join("");
      parts.push(svg("path", { d: path, fill: "none", stroke: colours[k], "stroke-width": 2,
        "stroke-dasharray": dashes[k] }));
      const place = left + k * (width - left) / names.length;
      parts.push(svg("line", { x1: place, x2: place + 24, y1: height - 8, y2: height - 8,
        stroke: colours[k], "stroke-width": 3, "stroke-dasharray": dashes[k] }),
      svg("text", { x: place + 28, y: height - 4, "font-size": 11 }, name.replace("_", " ")));
    });
    parts.push(svg("text", { x: (left + width) / 2, y: height - bottom + 32, "font-size": 11,
      "text-anchor": "middle" }, "bytes of a rank"),
    svg("text", { x: left - 6, y: 14, "font-size": 11, "text-anchor": "end" }, "fastest"));
    const changes = [`${best[0].replace("_", " ")} for small messages`];
    best.forEach((name, i) => {
      if (i && name !== best[i - 1]) {
        changes.push(`${name.replace("_", " ")} from ${minipar.bytes(sizes[i])} on`);
      }
    });
    words.textContent = `On ${set.p} ranks the fastest is ${changes.join(", ")}.`
      + data.unpredicted.map((name) => ` The cost of ${name} is not predicted.`).join("");
    holder.replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${height}`, width, role: "img",
      "aria-label": words.textContent }, ...parts));
  };

  const change = (key, of = (value) => value) => (value) => { set[key] = of(value); draw(); };
  root.append(element("div", { class: "controls" },
    control("ranks p", "select", { values: data.ranks, value: set.p }, change("p")),
    control("latency α", "range", { min: -7, max: -3, step: 0.1, value: Math.log10(set.latency),
      show: (power) => minipar.seconds(10 ** power) }, change("latency", (power) => 10 ** power)),
    control("bandwidth 1/β", "range", { min: 8, max: 12, step: 0.1,
      value: Math.log10(set.bandwidth), show: (power) => `${minipar.bytes(10 ** power)}/s` },
    change("bandwidth", (power) => 10 ** power)),
    control("combining 1/γ", "range", { min: 8, max: 13, step: 0.1,
      value: Math.log10(set.combining), show: (power) => `${minipar.bytes(10 ** power)}/s` },
    change("combining", (power) => 10 ** power))), holder, words);
  draw();
});
