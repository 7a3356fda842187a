// Pipeline puzzle: move the actions of each rank's row, and see the time, the bubble and the memory.
minipar.pieces.pipeline = {
  // Ends of all actions, the time, the bubble of the total, most microbatches kept, who is stuck.
  compute: (data, { rows, times }) => {
    const p = rows.length, ends = new Map(), at = rows.map(() => 0), free = rows.map(() => 0);
    const key = (kind, rank, i) => `${kind}${rank},${i}`;
    const done = (kind, rank, i) => ends.get(key(kind, rank, i));
    const gradient = (rank, i) => done("B", rank, i) ?? done("I", rank, i);
    const needs = (kind, rank, i) => {                  // the ends that an action waits for
      if (kind === "F") return rank ? [done("F", rank - 1, i)] : [];
      if (kind === "W") return [done("I", rank, i)];
      return [done("F", rank, i), ...(rank < p - 1 ? [gradient(rank + 1, i)] : [])];
    };
    for (let moved = true; moved;) {
      moved = false;
      rows.forEach((row, rank) => {
        while (at[rank] < row.length) {
          const [kind, i] = row[at[rank]], before = needs(kind, rank, i);
          if (before.some((end) => end === undefined)) return;
          free[rank] = Math.max(free[rank], ...before, 0) + times[kind];
          ends.set(key(kind, rank, i), free[rank]);
          at[rank] += 1;
          moved = true;
        }
      });
    }
    const peaks = rows.map((row) => {
      let kept = 0, most = 0;
      for (const [kind] of row) {
        kept += kind === "F";
        most = Math.max(most, kept);
        kept -= kind === "B" || kind === "W";
      }
      return most;
    });
    const stuck = at.map((k, rank) => k < rows[rank].length ? rank : -1).filter((r) => r >= 0);
    const time = Math.max(...free);
    const work = rows.flat().reduce((sum, [kind]) => sum + times[kind], 0);
    return { ends: Object.fromEntries(ends), time, bubble: 1 - work / (p * time), peaks, stuck, at };
  },
};

minipar.piece("pipeline", (root, data) => {
  const { svg, element, control } = minipar;
  const set = { p: 3, m: 4, name: "gpipe" };
  const colours = { F: "#0072b2", B: "#d55e00", I: "#d55e00", W: "#009e73" };
  const holder = element("div");
  const words = element("p", { class: "words", "aria-live": "polite" });
  let rows = [], chosen = null;

  const move = (rank, from, to) => {
    if (to < 0 || to >= rows[rank].length || to === from) return;
    rows[rank].splice(to, 0, ...rows[rank].splice(from, 1));
    chosen = [rank, to];
    draw();
  };
  const reset = () => {
    rows = data.schedules[set.p][set.m][set.name].rows.map((row) => [...row]);
    draw();
  };

  const draw = () => {
    const { times } = data;
    const found = minipar.pieces.pipeline.compute(data, { rows, times });
    const [width, left, rowHeight] = [minipar.width(), 52, 40];
    const length = Math.max(found.time, ...rows.map((row, rank) => found.time * (row.length > 0)
      + row.slice(found.at[rank]).reduce((sum, [kind]) => sum + times[kind], 0)));
    const x = (t) => left + t / length * (width - left - 6);
    const parts = [];
    rows.forEach((row, rank) => {
      parts.push(svg("text", { x: left - 6, y: 10 + rank * rowHeight + 20, "text-anchor": "end",
        "font-size": 12 }, `rank ${rank}`));
      let waiting = found.time;                         // where actions that never run are drawn
      row.forEach(([kind, i], k) => {
        const end = found.ends[`${kind}${rank},${i}`] ?? (waiting += times[kind]);
        const runs = k < found.at[rank], start = end - times[kind];
        const drop = (event) => {
          const box = holder.firstChild.getBoundingClientRect();
          const time = ((event.clientX - box.left) / box.width * width - left)
            / (width - left - 6) * length;
          const to = row.findIndex(([other, j]) => time < (found.ends[`${other}${rank},${j}`]
            ?? Infinity));
          move(rank, k, to < 0 ? row.length - 1 : to);
        };
        const cell = svg("g", { tabindex: 0, role: "button", "data-cell": `${rank},${k}`,
          "aria-label": `rank ${rank}, ${kind} of microbatch ${i}, place ${k + 1}; arrow keys move it`,
          onkeydown: (event) => {
            if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
            event.preventDefault();
            move(rank, k, k + (event.key === "ArrowLeft" ? -1 : 1));
          },
          onpointerdown: (event) => {
            event.preventDefault();
            window.addEventListener("pointerup", drop, { once: true });
          } },
        svg("rect", { x: x(start) + 0.5, y: 10 + rank * rowHeight, width: x(end) - x(start) - 1,
          height: rowHeight - 8, fill: runs ? colours[kind] : "#767676", rx: 2 }),
        svg("text", { x: (x(start) + x(end)) / 2, y: 10 + rank * rowHeight + 20, style: "fill:#fff",
          "text-anchor": "middle", "font-size": 11 },
        [`${kind}${i}`, `${i}`, ""].find((label) => 8 * label.length < x(end) - x(start))));
        parts.push(cell);
      });
    });
    const targets = Object.entries(data.schedules[set.p][set.m]).map(([name, each]) =>
      `${name} ${each.time} (keeps ${Math.max(...each.peaks)})`).join(", ");
    const waits = found.stuck.map((rank) => {
      const [kind, i] = rows[rank][found.at[rank]];
      return `rank ${rank} waits at ${kind}${i}`;
    });
    words.textContent = (waits.length ? `It stands still: ${waits.join(", ")}. `
      : `Time ${found.time}, of which a rank idles ${(100 * found.bubble).toFixed(1)} %. `)
      + `Ranks keep at most ${found.peaks.join(", ")} microbatches. To beat: ${targets}.`;
    holder.replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${14 + set.p * rowHeight}`,
      role: "group", "aria-label": "rows of the ranks, over time", style: "touch-action:none" },
    ...parts));
    if (chosen) holder.querySelector(`[data-cell="${chosen.join(",")}"]`)?.focus();
    chosen = null;
  };

  const select = (label, key, values) => control(label, "select", { values, value: set[key] },
    (value) => { set[key] = value; reset(); });
  const ps = Object.keys(data.schedules).map(Number);
  root.append(element("div", { class: "controls" }, select("ranks p", "p", ps),
    select("microbatches m", "m", Object.keys(data.schedules[ps[0]]).map(Number)),
    select("begin with", "name", Object.keys(data.schedules[ps[0]][4])),
    element("button", { type: "button", onclick: reset }, "begin again")), holder, words,
  element("p", {}, "Drag an action along its row, or focus it and press an arrow key. "
    + Object.entries(data.times).map(([kind, time]) => `${kind} takes ${time}`).join(", ") + "."));
  reset();
});
