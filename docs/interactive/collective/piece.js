// Collective player: who sends which chunk in each round, and what every rank holds then.
minipar.pieces.collective = {
  // Rounds, bytes on the critical path and messages up to a round, counted in the recording.
  compute: (data, { operation, algorithm, p, round }) => {
    const run = data.runs[operation][algorithm][p];
    return { rounds: round, bytes: run.path[round],
      messages: run.moves.slice(0, round).reduce((sum, moves) => sum + moves.length, 0) };
  },
};

minipar.piece("collective", (root, data) => {
  const { svg, element, control } = minipar;
  const operations = Object.keys(data.runs);
  const set = { operation: "all_reduce", algorithm: "ring", p: 4, round: 0 };
  const holder = element("div");
  const words = element("p", { class: "words", "aria-live": "polite" });
  const controls = element("div", { class: "controls" });
  const run = () => data.runs[set.operation][set.algorithm][set.p];
  const letter = (chunk) => String.fromCharCode(97 + chunk);

  const draw = () => {
    const { moves, held, whole, predicted } = run();
    const n = whole.length, cell = Math.min(46, 330 / n), rowHeight = 34;
    const [left, top] = [56, 24], right = left + n * cell + 10;
    const most = Math.max(0, ...moves.map((round) => round.length));
    const labels = right + 34 + 14 * Math.min(most, 8);         // behind the arrows
    const width = most <= 8 ? labels + 80 : labels;
    const now = set.round ? moves[set.round - 1] : [];
    const parts = [];
    const y = (rank) => top + rank * rowHeight;
    for (let chunk = 0; chunk < n; chunk += 1) {
      parts.push(svg("text", { x: left + (chunk + 0.5) * cell, y: 16, "text-anchor": "middle",
        "font-size": 12 }, letter(chunk)));
    }
    for (let rank = 0; rank < set.p; rank += 1) {
      parts.push(svg("text", { x: left - 8, y: y(rank) + 19, "text-anchor": "end",
        "font-size": 12 }, `rank ${rank}`));
      for (let chunk = 0; chunk < n; chunk += 1) {
        const count = held[set.round][rank][chunk], before = held[Math.max(0, set.round - 1)];
        const isNew = set.round && count > before[rank][chunk];
        parts.push(svg("rect", { x: left + chunk * cell + 1, y: y(rank) + 3, width: cell - 2,
          height: rowHeight - 8, fill: "#0072b2", "fill-opacity": 0.9 * count / whole[chunk],
          stroke: isNew ? "#d55e00" : "currentColor", "stroke-width": isNew ? 3 : 0.6 }));
        if (whole[chunk] > 1 && count) {
          parts.push(svg("text", { x: left + (chunk + 0.5) * cell, y: y(rank) + 19,
            "text-anchor": "middle", "font-size": 10, style: count === whole[chunk]
              ? "fill:#fff" : "" }, `${count}/${whole[chunk]}`));
        }
      }
    }
    now.forEach(([source, dest, chunks], k) => {        // arrows at the right
      const [from, to] = [y(source) + 11, y(dest) + 22], bend = right + 24 + 14 * (k % 8);
      parts.push(svg("path", { d: `M${right} ${from} H${bend} V${to} H${right + 4}`, fill: "none",
        stroke: "#d55e00", "stroke-width": 1.5 }),
      svg("path", { d: `M${right} ${to} l8 -4 v8 z`, fill: "#d55e00" }));
      if (now.length <= 8) {
        parts.push(svg("text", { x: labels, y: top + 16 + 18 * k, "font-size": 11 },
          `${source} → ${dest}: ${chunks.map(letter).join("") || "–"}`));
      }
    });
    const counted = minipar.pieces.collective.compute(data, set);
    words.textContent = (set.round === 0 ? "Before the first round: what each rank gives. "
      : `Round ${set.round} of ${moves.length}: ${now.map(([source, dest, chunks]) =>
        `${source} sends ${chunks.map(letter).join("") || "nothing but a signal"} to ${dest}`)
        .join(", ")}. `)
      + `So far ${counted.rounds} rounds, ${minipar.bytes(counted.bytes)} on the critical path, `
      + `${counted.messages} messages; ` + (predicted ? `predicted in all ${predicted[0]}, `
      + `${minipar.bytes(predicted[1])}, ${predicted[2]}.` : "not predicted.");
    holder.replaceChildren(svg("svg", { width, viewBox: `0 0 ${width} ${top + set.p * rowHeight + 6}`,
      style: `max-width: ${1.4 * width}px`, role: "img", "aria-label": words.textContent }, ...parts));
    [back.disabled, next.disabled] = [set.round === 0, set.round === moves.length];
  };

  const step = (by) => () => { set.round += by; draw(); };
  const back = element("button", { type: "button", onclick: step(-1) }, "◀ back");
  const next = element("button", { type: "button", onclick: step(1) }, "next round ▶");
  const build = () => {
    const algorithms = Object.keys(data.runs[set.operation]);
    if (!algorithms.includes(set.algorithm)) [set.algorithm] = algorithms;
    const shown = (names) => names.map((name) => name.replaceAll("_", "-"));
    const select = (key, values, names) => control(key, "select",
      { values, names, value: set[key] }, (value) => {
        Object.assign(set, { [key]: value, round: 0 });
        if (key === "operation") {
          build();
          controls.querySelector("select").focus();
        }
        draw();
      });
    controls.replaceChildren(select("operation", operations, shown(operations)),
      select("algorithm", algorithms, shown(algorithms)), select("p", data.ranks), back, next);
  };
  build();
  root.append(controls, holder, words);
  draw();
});
