"""`python check.py`: run the public cases on your functions, and see your points.

    python check.py                     all tasks
    python check.py all_gather          one of them
    python check.py all_gather --show   with the messages of each case, round by round
    python check.py --zip               write submission.zip, to hand in

Grading adds hidden cases: other numbers of ranks, other sizes.
"""

import argparse
import io
import os
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from .broker import Delivery
from .cases import read_cases, run_case
from .outcome import Outcome, as_text
from .runner import Worker, WorkerError
from .service import Limits

MOST_RANKS_SHOWN = 8


def main(folder: Path, words: Sequence[str] | None = None) -> int:
    """Check the functions in `folder`; return 0 if all cases pass, 1 if not, 2 for a mistake."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")    # a terminal without UTF-8 shows "?" for "✓"
    tasks = sorted(path.stem for path in (folder / "cases").glob("*.npz"))
    parser = argparse.ArgumentParser("check.py", description="Run the public cases.")
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"some of {', '.join(tasks)}")
    parser.add_argument("--show", action="store_true", help="show the messages, round by round")
    parser.add_argument("--zip", action="store_true", help="write submission.zip")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S",
                        help="how long a case may take (default %(default)g)")
    options = parser.parse_args(words)
    unknown = [task for task in options.tasks if task not in tasks]
    try:
        if unknown:
            raise Mistake(f"there is no task {unknown[0]}: choose from {', '.join(tasks)}")
        if not options.seconds > 0:
            raise Mistake(f"--seconds takes a positive number, not {options.seconds:g}")
        return write_zip(folder, tasks) if options.zip else run_cases(folder, options, tasks)
    except (Mistake, WorkerError, OSError) as error:
        print(f"check.py: {error}", file=sys.stderr)
        return 2


class Mistake(Exception):
    """A mistake of the user; the message is one line that says what to do."""


def run_cases(folder: Path, options: argparse.Namespace, tasks: Sequence[str]) -> int:
    """Run the cases that the options ask for, and print the outcomes."""
    if not hasattr(os, "fork"):
        raise Mistake("ranks are processes of Linux or macOS: on Windows, run it in WSL")
    own, supplied = modules(folder), modules(folder / "supplied")
    outcomes: list[Outcome] = []
    with Worker(Limits(options.seconds)) as worker:
        for task in options.tasks or tasks:
            for case in read_cases(folder / "cases" / f"{task}.npz"):
                outcome, run = run_case(case, {**own, **supplied}, worker)
                outcomes.append(outcome)
                if options.show and case.outcome.ranks > 1:
                    print(f"{task}: {case.outcome.case}\n{picture(run.messages, len(run.results))}")
    print(as_text(outcomes))
    return 1 if any(outcome.failure for outcome in outcomes) else 0


def modules(folder: Path) -> dict[str, str]:
    """The Python files of a folder by name."""
    files = {}
    for path in sorted(folder.glob("*.py")):
        if path.name != "check.py" and path.is_file():
            try:
                files[path.stem] = path.read_text(encoding="utf-8-sig")
            except UnicodeDecodeError:
                raise Mistake(f"{path.name} is not text in UTF-8: save it as such") from None
    return files


def picture(messages: Sequence[Delivery], num_ranks: int) -> str:
    """The messages as text: a line for each round.

        round 1   0→1  24 B   2→3  24 B
        round 2   0→2  24 B

    A message's round is one more than the number of messages that had to come before it.
    """
    lines = []
    for number in sorted({message.round for message in messages}):
        now = sorted(message for message in messages if message.round == number)
        shown = [f"{message.source}→{message.dest}  {message.num_bytes:,} B"
                 for message in now[:MOST_RANKS_SHOWN]]
        more = f"   and {len(now) - len(shown)} more" if len(now) > len(shown) else ""
        lines.append(f"    round {number:<3} " + "   ".join(shown) + more)
    return "\n".join(lines or [f"    no messages between the {num_ranks} ranks"])


def write_zip(folder: Path, tasks: Sequence[str]) -> int:
    """Write submission.zip with the tasks' files, and those beside them."""
    place, found = folder / "submission.zip", modules(folder)
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in found.items():
            archive.writestr(f"{name}.py", text)
    missing = [task for task in tasks if task not in found]
    print(f"{place}" + (f", without {', '.join(missing)}" if missing else ""))
    return 0
