// Question blocks: the reader types a number; the page says whether it is right, and why.
minipar.pieces.question = {
  // [right, what to say] to a number.
  compute: (data, { lesson, index, value }) => {
    const question = data.questions[lesson][index];
    const near = (wanted) =>
      Math.abs(value - wanted) <= Math.max(question.tolerance, 1e-9) * Math.abs(wanted);
    if (!Number.isFinite(value)) return [false, "Type a number, such as 1.5."];
    if (near(question.answer)) return [true, `Right. ${question.reason}`];
    const known = question.wrong.find(([wanted]) => near(wanted));
    if (known) return [false, `Not yet. ${known[1]}`];
    const ratio = value / question.answer;
    if ([1e3, 1e6, 1e-3, 1e-6].some((each) => Math.abs(ratio / each - 1) < 0.05)) {
      return [false, `Not yet: the digits are right. Look at the unit, ${question.unit}.`];
    }
    return [false, `Not yet: it is ${value > question.answer ? "less" : "more"}.`];
  },
};

minipar.piece("question", (root, data) => {
  const { element } = minipar;
  const { lesson } = root.dataset;
  (data.questions[lesson] || []).forEach((question, index) => {
    const id = `question-${lesson}-${index}`;
    const said = element("p", { class: "words", "aria-live": "polite" });
    const input = element("input", { id, type: "text", inputmode: "decimal", autocomplete: "off",
      size: 10 });
    const check = (event) => {
      event.preventDefault();
      const value = input.value.trim() === "" ? NaN : Number(input.value.replace(/,/g, ""));
      const [right, text] = minipar.pieces.question.compute(data, { lesson, index, value });
      said.textContent = `${right ? "✓" : "✗"} ${text}`;
    };
    root.append(element("form", { onsubmit: check },
      element("label", { for: id }, question.text), element("div", { class: "controls" }, input,
        element("span", {}, question.unit), element("button", { type: "submit" }, "Check")), said));
  });
});
