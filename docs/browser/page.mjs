// The page browser.md: choose a lesson, change its algorithm and run it, or choose an exercise,
// write it and test it.
// All of Python is in worker.mjs, so the page stays awake and can end what hangs.
const { element, control } = minipar;
const HERE = new URL("./", import.meta.url);
const LIMIT = 120;                      // seconds for the tests of an exercise
const RANKS = [2, 3, 4, 5, 6, 8];

const root = document.getElementById("browser");
const output = element("pre", { class: "output", tabindex: 0, "aria-label": "What Python prints" });
const words = element("p", { class: "words", "aria-live": "polite" });
let worker = null;                      // made when it is first needed
let ended = null;                       // called with what the worker answers, or why it ended

function say(text) { words.textContent = text; }

function onMessage({ data }) {
  if (data.line !== undefined) output.append(`${data.line}\n`);
  else if (!data.ready && ended) ended(data);
}

function stop(why) {
  if (worker) worker.terminate();
  worker = null;
  if (ended) ended({ failed: why });
}

// Call a function of session.py; the answer is {passed} or {failed: why}.
function call(name, ...args) {
  if (!worker) {
    worker = new Worker(new URL("worker.mjs", HERE), { type: "module" });
    worker.onmessage = onMessage;
    worker.onerror = (event) => stop(event.message || "the worker could not be started");
  }
  output.replaceChildren();
  return new Promise((resolve) => {
    ended = (answer) => { ended = null; resolve(answer); };
    worker.postMessage({ call: name, args });
  });
}

// A button that calls `work`, and one that ends it; the output moves below them.
function buttons(label, work, ...more) {
  const begin = element("button", { type: "button" }, label);
  const end = element("button", { type: "button", disabled: true }, "Stop");
  begin.onclick = async () => {
    if (ended) return say("Something runs already: stop it first.");
    row.after(words, output);
    end.disabled = false;
    begin.disabled = true;
    say(worker ? "Running …" : "Loading Python, then running …");
    const start = performance.now();
    try { await work(() => `${((performance.now() - start) / 1000).toFixed(1)} s`); }
    finally { end.disabled = true; begin.disabled = false; }
  };
  end.onclick = () => stop("stopped");
  const row = element("div", { class: "controls" }, begin, end, ...more);
  return row;
}

// Text in which `names` are code.
function paragraph(text) {
  return element("p", {}, ...text.split("`").map((part, i) => i % 2 ? element("code", {}, part)
    : part));
}

function showLessons(lessons, chosen) {
  let [lesson, ranks] = [lessons.find((each) => each.name.startsWith(chosen)) || lessons[1], 4];
  const recorded = element("p");
  const editor = textarea("algorithm");
  const numberOf = () => lesson.name.slice(0, 2);
  const key = () => `minipar lesson ${lesson.name}`;
  editor.oninput = () => localStorage.setItem(key(), editor.value);
  const original = element("button", { type: "button", onclick: () => {
    localStorage.removeItem(key());
    choose(lesson);
  } }, "The original");
  const its = element("div", {}, element("label", { for: "algorithm" }, "Its algorithm"), editor);
  const choose = (value) => {
    lesson = value;
    editor.value = localStorage.getItem(key()) || lesson.algorithm;
    const page = new URL(`../../lessons/${numberOf()}/`, HERE);
    recorded.replaceChildren(element("a", { href: page }, "Its page"),
      " has the derivation, the questions, and the picture of a recorded run.");
  };
  choose(lesson);
  const names = lessons.map((each) => `${each.name.slice(0, 2)} ${each.title}`);
  root.append(element("h2", { id: "a-lesson" }, "A lesson"),
    control("Lesson", "select", { values: lessons, names, value: lesson }, choose),
    control("Ranks", "select", { values: RANKS, value: ranks }, (value) => { ranks = value; }),
    its,
    buttons("Run the lesson", async (time) => {
      const { passed, failed } = await call("run_lesson", lesson.name, ranks,
        editor.value);
      say(failed ? `Lesson ${numberOf()} ended after ${time()}: ${failed}.`
        : `Lesson ${numberOf()} ${passed ? "ran to its end" : "ended with an error"}, ${time()}.`);
    }, original), recorded);
}

// An editor of Python.
function textarea(id) {
  return element("textarea", { id, spellcheck: "false", rows: 18, wrap: "off",
    autocapitalize: "off", autocomplete: "off", onkeydown: indent });
}

function showExercises(exercises, chosen) {
  const editor = textarea("editor");
  const [place, task, hints] = [element("p"), element("div"), element("div")];
  let exercise = exercises.find((each) => each.name === chosen) || exercises[0];
  const key = () => `minipar exercise ${exercise.name}`;
  editor.oninput = () => localStorage.setItem(key(), editor.value);
  const choose = (value) => {
    exercise = value;
    place.replaceChildren(`${exercise.topic}, lesson ${exercise.lesson}, about ${exercise.minutes} `
      + "minutes, ", element("a", {
      href: new URL(`../../source/${exercise.file}.html#line-${exercise.line}`, HERE) },
    element("code", {}, `${exercise.file}:${exercise.line}`)));
    task.replaceChildren(...exercise.task.split("\n").map(paragraph));
    hints.replaceChildren(...exercise.hints.map((hint, i) => element("details", {},
      element("summary", {}, `Hint ${i + 1}`), paragraph(hint))));
    editor.value = localStorage.getItem(key()) || exercise.stub;
  };
  const again = element("button", { type: "button", onclick: () => {
    localStorage.removeItem(key());
    choose(exercise);
  } }, "Begin again");
  choose(exercise);
  const names = exercises.map((each) => `${each.name}: ${each.title}`);
  root.append(element("h2", { id: "an-exercise" }, "An exercise"),
    control("Exercise", "select", { values: exercises, names, value: exercise }, choose),
    place, task, hints, element("label", { for: "editor" }, "Your function"), editor,
    buttons("Run its tests", async (time) => {
      const clock = setTimeout(() => stop(`no end after ${LIMIT} s: is there a loop whose `
        + "condition stays true?"), LIMIT * 1000);
      const { passed, failed } = await call("check_exercise", exercise.name, editor.value);
      clearTimeout(clock);
      say(failed ? `${exercise.name} ended after ${time()}: ${failed}`
        : `${exercise.name} ${passed ? "passed" : "failed"}, ${time()}.`);
    }, again));
}

// Enter keeps the indentation of the line, and goes deeper after a colon.
function indent(event) {
  if (event.key !== "Enter" || event.isComposing) return;
  const { value, selectionStart, selectionEnd } = event.target;
  const line = value.slice(value.lastIndexOf("\n", selectionStart - 1) + 1, selectionStart);
  const spaces = /^ */.exec(line)[0] + (line.trimEnd().endsWith(":") ? "    " : "");
  event.preventDefault();
  event.target.setRangeText(`\n${spaces}`, selectionStart, selectionEnd, "end");
  event.target.dispatchEvent(new Event("input"));
}

const catalog = await (await fetch(new URL("catalog.json", HERE))).json();
const asked = new URLSearchParams(location.search);
root.replaceChildren();
root.classList.add("piece");
if (!("Suspending" in WebAssembly)) {
  root.append(element("p", { class: "words" }, "This browser cannot switch the stacks of "
    + "WebAssembly (JavaScript Promise Integration), so nothing runs here. Each lesson has a "
    + "recorded run: "), element("ul", {}, ...catalog.lessons.map(({ name, title }) =>
    element("li", {}, element("a", { href: new URL(`../../lessons/${name.slice(0, 2)}/`, HERE) },
      `${name.slice(0, 2)} ${title}`)))));
} else {
  root.append(element("p", {}, `The first run loads ${minipar.bytes(catalog.bytes)}, `
    + "which this browser then keeps."));
  showLessons(catalog.lessons, asked.get("lesson") || "01");
  showExercises(catalog.exercises, asked.get("exercise"));
  say("Nothing has run yet.");
  root.querySelector(".controls").after(words, output);
}
