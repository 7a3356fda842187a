// Memory of a rank: weights, gradients, optimizer states and activations of a GPT on a mesh of ranks.
minipar.pieces.memory = {
  // Bytes by kind on a rank.  ZeRO-1 shards the optimizer over dp, 2 gradients too, 3 weights too.
  compute: (data, { model, optimizer, zero, dp, tp, pp, batch, parallel, remat }) => {
    const chosen = data.models[model];
    const one = data.itemsize * chosen.parameters / (tp * pp);
    const share = (from) => zero >= from ? dp : 1;
    return {
      weights: one / share(3),
      gradients: one / share(2),
      optimizer: data.optimizers[optimizer] * one / share(1),
      activations: chosen.activations[tp][parallel][remat] * batch * chosen.layers / pp,
    };
  },
};

minipar.piece("memory", (root, data) => {
  const { svg, element, control } = minipar;
  const models = Object.keys(data.models);
  const set = { model: models[2], optimizer: Object.keys(data.optimizers)[0], zero: 0, dp: 8, tp: 1,
    pp: 1, batch: 1, parallel: data.parallel[0], remat: data.remat[0] };
  const kinds = { weights: "#0072b2", gradients: "#d55e00", optimizer: "#009e73",
    activations: "#cc79a7" };
  const [width, height, left] = [640, 150, 10];
  const holder = element("div");
  const words = element("p", { class: "words", "aria-live": "polite" });
  const controls = element("div", { class: "controls" });

  const draw = () => {
    const bytes = minipar.pieces.memory.compute(data, set);
    const total = Object.values(bytes).reduce((a, b) => a + b, 0);
    const most = Math.max(total, data.devices[0] * 1e9) * 1.08;
    const x = (n) => left + n / most * (width - 2 * left);
    const parts = [];
    let begun = 0;
    for (const [kind, colour] of Object.entries(kinds)) {
      parts.push(svg("rect", { x: x(begun), y: 30, width: Math.max(0, x(begun + bytes[kind])
        - x(begun)), height: 42, fill: colour, stroke: "var(--md-default-bg-color)" }));
      begun += bytes[kind];
    }
    for (const gigabytes of data.devices) {
      if (gigabytes * 1e9 <= most) {
        parts.push(svg("line", { x1: x(gigabytes * 1e9), x2: x(gigabytes * 1e9), y1: 20, y2: 82,
          stroke: "currentColor", "stroke-dasharray": "4 3" }),
        svg("text", { x: x(gigabytes * 1e9), y: 14, "text-anchor": "middle", "font-size": 11 },
          `${gigabytes} GB`));
      }
    }
    Object.entries(kinds).forEach(([kind, colour], k) => {
      const place = left + (k % 2) * width / 2, line = 104 + 22 * Math.floor(k / 2);
      parts.push(svg("rect", { x: place, y: line - 10, width: 12, height: 12, fill: colour }),
        svg("text", { x: place + 18, y: line, "font-size": 12 },
          `${kind} ${minipar.bytes(bytes[kind])}`));
    });
    const fits = data.devices.find((gigabytes) => total <= gigabytes * 1e9);
    const chosen = data.models[set.model];
    words.textContent = `${set.model}: ${(chosen.parameters / 1e9).toPrecision(3)} billion `
      + `parameters, ${chosen.context} tokens. On ${set.dp * set.tp * set.pp} ranks each holds `
      + `${minipar.bytes(total)}: ${fits ? `it fits into ${fits} GB` : "it fits into none of these "
        + "devices"}. Largest: ${Object.keys(kinds).reduce((a, b) => bytes[b] > bytes[a] ? b : a)}.`;
    holder.replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${height}`, width, role: "img",
      "aria-label": words.textContent }, ...parts));
  };

  const change = (key) => (value) => {
    set[key] = value;
    if (!(set.tp in data.models[set.model].activations)) set.tp = 1;
    build();
    draw();
  };
  const build = () => {
    const active = document.activeElement && document.activeElement.dataset
      ? document.activeElement.getAttribute("data-key") : null;
    const select = (key, label, values, names) => [key, control(label, "select",
      { values, names, value: set[key] }, change(key))];
    const range = (key, label, max) => [key, control(label, "range", { min: 0, max, step: 1,
      value: Math.log2(set[key]), show: (power) => String(2 ** power) },
    (power) => { set[key] = 2 ** power; draw(); })];
    const made = [select("model", "model", models),
      select("optimizer", "optimizer", Object.keys(data.optimizers)),
      select("zero", "ZeRO", [0, 1, 2, 3], ["none (DDP)", "1", "2", "3 (FSDP)"]),
      range("dp", "dp", 10), range("pp", "pp", 4), range("batch", "sequences", 6),
      select("tp", "tp", Object.keys(data.models[set.model].activations).map(Number)),
      select("parallel", "layers", data.parallel), select("remat", "rematerialized", data.remat)];
    controls.replaceChildren(...made.map(([key, node]) => {
      node.querySelector("input, select").setAttribute("data-key", key);
      return node;
    }));
    if (active) controls.querySelector(`[data-key="${active}"]`)?.focus();
  };
  build();
  root.append(controls, holder, words);
  draw();
});
