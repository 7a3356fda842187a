// Who waits for whom: sends and receives of a few ranks, up to their end or to the deadlock.
minipar.pieces.waiting = {
  // Run the lines of all ranks.  A message takes 1; a send waits for its receive unless `eager`.
  compute: (data, { ranks, eager }) => {
    const line = ranks.map(() => 0), clock = ranks.map(() => 0);
    const now = ranks.map(() => null), messages = [], waiting = [], queues = {};
    const begin = (r) => {
      if (line[r] >= ranks[r].length) return null;
      const [word, ...peers] = ranks[r][line[r]].trim().split(/\s+/);
      return { to: word === "recv" ? null : Number(peers[0]), posted: clock[r], end: clock[r],
        from: word === "send" ? null : Number(peers[peers.length - 1]) };
    };
    for (let moved = true; moved;) {
      moved = false;
      ranks.forEach((_, r) => {
        now[r] ??= begin(r);
        const op = now[r];
        if (!op) return;
        if (eager && op.to !== null) {
          (queues[`${r},${op.to}`] ??= []).push(op.posted);
          op.to = null;
          moved = true;
        }
        const peer = op.to === null ? null : now[op.to] ?? (now[op.to] = begin(op.to));
        if (peer && peer.from === r) {                  // both halves are there
          const end = Math.max(op.posted, peer.posted) + 1;
          messages.push([r, op.posted, op.to, end]);
          op.end = Math.max(op.end, end);
          peer.end = Math.max(peer.end, end);
          [op.to, peer.from] = [null, null];
          moved = true;
        }
        const queue = op.from === null ? null : queues[`${op.from},${r}`];
        if (queue && queue.length) {
          const sent = queue.shift(), end = Math.max(op.posted, sent + 1);
          messages.push([op.from, sent, r, end]);
          op.end = Math.max(op.end, end);
          op.from = null;
          moved = true;
        }
        if (op.to === null && op.from === null) {
          if (op.end > op.posted) waiting.push([r, op.posted, op.end]);
          clock[r] = op.end;
          line[r] += 1;
          now[r] = null;
          moved = true;
        }
      });
    }
    const stuck = [];
    now.forEach((op, r) => { if (op) stuck.push([r, op.to ?? op.from, ranks[r][line[r]]]); });
    const next = new Map(stuck.map(([r, peer]) => [r, peer]));
    let circle = [];
    for (const [start] of stuck) {
      const path = [start];
      while (next.has(path[path.length - 1]) && path.length <= ranks.length) {
        path.push(next.get(path[path.length - 1]));
        if (path[path.length - 1] === start) break;
      }
      if (path.length > 1 && path[path.length - 1] === start && !circle.length) circle = path;
    }
    return { time: Math.max(...clock), clock, messages, waiting, stuck, circle };
  },
};

minipar.piece("waiting", (root, data) => {
  const { svg, element, control } = minipar;
  const names = Object.keys(data.programs);
  const set = { name: names[0], eager: false };
  const holder = element("div");
  const words = element("p", { class: "words", "aria-live": "polite" });
  const texts = element("div", { class: "controls" });
  const valid = /^(send|recv) [0-3]$|^sendrecv [0-3] [0-3]$/;

  const draw = () => {
    const ranks = [...texts.querySelectorAll("textarea")].map((area) =>
      area.value.split("\n").map((line) => line.trim()).filter(Boolean));
    const wrong = ranks.flatMap((lines, r) => lines.filter((line) => !valid.test(line)
      || line.split(" ").slice(1).some((peer) => Number(peer) >= ranks.length
        || Number(peer) === r)).map((line) => `rank ${r}: "${line}"`));
    if (wrong.length) {
      words.textContent = `A line is send R, recv R or sendrecv R R, to another of the ranks: `
        + `${wrong[0]} is none.`;
      return;
    }
    const found = minipar.pieces.waiting.compute(data, { ranks, eager: set.eager });
    const [width, left, rowHeight] = [minipar.width(), 60, 44];
    const length = found.time + (found.stuck.length ? 1.5 : 0.5);
    const x = (t) => left + t / length * (width - left - 10), y = (r) => 24 + r * rowHeight;
    const parts = [];
    ranks.forEach((_, r) => {
      const isStuck = found.stuck.find(([rank]) => rank === r);
      parts.push(svg("text", { x: left - 8, y: y(r) + 4, "text-anchor": "end", "font-size": 12 },
        `rank ${r}`), svg("line", { x1: x(0), x2: x(isStuck ? length : found.clock[r]), y1: y(r),
        y2: y(r), stroke: "currentColor", "stroke-width": 2 }));
      if (isStuck) {
        parts.push(svg("line", { x1: x(found.clock[r]), x2: x(length), y1: y(r), y2: y(r),
          stroke: "#d55e00", "stroke-width": 8, "stroke-opacity": 0.7 }),
        svg("text", { x: x(length) - 2, y: y(r) - 9, "text-anchor": "end", "font-size": 11 },
          `waits at ${isStuck[2]}`));
      }
    });
    for (const [r, from, to] of found.waiting) {
      parts.push(svg("line", { x1: x(from), x2: x(to), y1: y(r), y2: y(r), stroke: "#e69f00",
        "stroke-width": 8, "stroke-opacity": 0.6 }));
    }
    for (const [source, sent, dest, end] of found.messages) {
      const start = Math.max(sent, end - 1);
      parts.push(svg("line", { x1: x(start), x2: x(end), y1: y(source), y2: y(dest),
        stroke: "#0072b2", "stroke-width": 2 }),
      svg("circle", { cx: x(end), cy: y(dest), r: 4, fill: "#0072b2" }));
    }
    words.textContent = !found.stuck.length ? `It ends after ${found.time}: each message takes 1.`
      : `Deadlock. ${found.stuck.map(([r, peer, line]) =>
        `Rank ${r} waits at ${line} for rank ${peer}`).join("; ")}. `
      + (found.circle.length ? `They wait in a circle: ${found.circle.join(" → ")}.`
        : "No rank is left to meet it.");
    holder.replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${ranks.length * rowHeight + 10}`,
      role: "img", "aria-label": words.textContent }, ...parts));
  };

  const load = () => {
    texts.replaceChildren(...data.programs[set.name].ranks.map((lines, r) => {
      const id = `waiting-${r}`;
      const area = element("textarea", { id, rows: 3, cols: 12, spellcheck: "false",
        oninput: draw }, lines.join("\n"));
      return element("div", {}, element("label", { for: id }, `rank ${r}`),
        element("br"), area);
    }));
    draw();
  };
  root.append(element("div", { class: "controls" },
    control("program", "select", { values: names, value: set.name },
      (value) => { set.name = value; load(); }),
    control("messages are small: sent eagerly", "checkbox", { value: set.eager },
      (value) => { set.eager = value; draw(); })), texts, holder, words);
  load();
});
