"""The handout of an assignment: one page in Markdown, and the same in HTML."""

import html
import re

from markdown_it import MarkdownIt

from ..grading.assignment import Assignment
from ..grading.rules import PLAIN, Rules
from ..grading.tasks import Task
from .selection import merged

CHECK = """## Check and hand in

You need Python 3.11 or later and NumPy: `pip install numpy`. No MPI is needed: each rank is a
process, and the checker carries the messages.

```sh
python check.py                 # the public cases of all tasks, and your points
python check.py --zip           # submission.zip, to hand in
python check.py {task}
python check.py {task} --show   # with its messages, round by round
```

Write each function in its file; other files of yours beside it can be imported. A function runs
in a process of its own that computes and sends messages: it can open no file, make no socket, and
start no process. A deadlock is found at once, and reported with your line. The hidden cases have
other numbers of ranks and other sizes, and values of their own for each submission.

What `comm` has:

```python
comm.rank, comm.size
comm.send(array, dest)                  comm.recv(out, source)          # both block until done
comm.sendrecv(array, dest, out, source) # at once: the safe way to exchange
request = comm.isend(array, dest)       # or comm.irecv(out, source); then request.wait()
part = comm.split(color, key)           # the ranks of one color; all ranks call it
```

Arrays that are sent and received have the same dtype and number of elements. A `send` may block
until it is received: two ranks that both send first wait for ever.
"""
STYLE = """body{max-width:52rem;margin:2rem auto;padding:0 1rem;color:#1b1b1b;background:#fff;
font:1.05rem/1.55 system-ui,sans-serif}code,pre{font:.92em ui-monospace,monospace}pre{padding:.8rem;
overflow-x:auto;background:#f3f4f6;border-radius:6px}table{border-collapse:collapse}
th,td{padding:.25rem .8rem;border-bottom:1px solid #ccc;text-align:left}
@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#16181c}pre{background:#22252b}
a{color:#8ab4f8}}"""


def handout(assignment: Assignment, policy: str, rules: Rules = PLAIN) -> str:
    """The handout in Markdown: what concerns the tasks of the assignment, and no others."""
    tasks, texts = assignment.tasks, merged(assignment)
    hours = max(0.5, round(2 * sum(part.share * part.meta["hours"]
                                   for part in assignment.parts)) / 2)
    asked = sum(map(int, re.findall(r"^\d+\. \((\d+) ", texts.get("Questions", ""), re.M)))
    points = f"{assignment.points} points for the functions below" + (
        f", {asked} for the questions: {assignment.points + asked} in all" if asked else "")
    rows = [f"| `{task.name}` | {task.title} | {task.points} | {task.minutes} |" for task in tasks]
    longest = max((task.name for task in tasks), key=len)
    parts = [f"# {assignment.title}",
             *filter(None, [" ".join(part.meta["summary"] for part in assignment.parts
                                     if part.share == 1)]),
             f"About {hours:g} hour{'s' * (hours != 1)}. {points}.",
             "\n".join(["| file | task | points | minutes |", "| --- | --- | ---: | ---: |",
                        *rows])]
    if assignment.supplied:
        first = next(iter(assignment.supplied))
        parts.append("What these tasks build on comes with them, in `supplied/`; import it "
                     f"by name, as in `from {first} import {first}`: " +
                     ", ".join(f"`{name}`" for name in assignment.supplied) + ".")
    if any(map(assignment.solutions_below, tasks)):
        parts.append("A task that builds on another one of these is graded with your function; if "
                     "a case fails, also with the solution. So a mistake costs the points of one "
                     "task.")
    questions = texts.pop("Questions", "")
    parts += [f"## {head}\n\n{text}" for head, text in texts.items()]
    parts += ["## Tasks", *map(task_text, tasks)]
    parts += [f"## Questions\n\n{questions}"] if questions else []
    check = CHECK.format(task=longest)
    return "\n\n".join([*parts, check.strip(), *rules.sentences(), policy.strip()]) + "\n"


def task_text(task: Task) -> str:
    """A task in the handout."""
    cases = ", ".join(f"{case} ({case.points})" for case in task.cases if not case.is_hidden)
    hidden = sum(case.points for case in task.cases if case.is_hidden)
    return (f"### {task.title}\n\n`{task.name}.py`, {task.points} points, about {task.minutes} "
            f"minutes\n\n```python\ndef {task.signature}:\n```\n\n{task.text}\n\n"
            f"Public cases (points): {cases}. Hidden cases: {hidden} points.")


def as_html(text: str, title: str) -> str:
    """A page in HTML, complete in itself: no script, no foreign address."""
    body = MarkdownIt("commonmark").enable("table").render(text)
    return (f'<!doctype html>\n<html lang="en"><meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n{body}</html>\n")
