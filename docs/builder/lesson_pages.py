"""A page for each lesson: what to guess, its algorithm, the derivation, a real run, the questions.

The words come from docs/pages/lessons/NN.md, the algorithm from the script, and the tables and the
picture from a run on four simulated ranks.  Runs are kept in build/site/runs, and repeated when
anything in minipar/, lessons/ or docs/pages/lessons has changed.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pieces import data_of
from stage import ROOT, Stage

sys.path.insert(0, str(ROOT / "lessons"))
from support import page

SECTION = "Lessons"
LESSONS = sorted((ROOT / "lessons").glob("[0-9][0-9]_*.py"))
RANKS = 4
NAMES = {"gspmd": "GSPMD", "fsdp": "FSDP", "gpipe": "GPipe", "1f1b": "1F1B",
         "zero bubble": "zero bubble", "zero": "ZeRO", "all reduce": "all-reduce",
         "all to all barrier scan": "all-to-all, barrier, scan"}        # a longer one comes first
CHANGE_IT = "Change a line and run it: does it still equal one process?"
RESULTS = ("report.md", "picture.png")


def add(stage: Stage) -> None:
    """Run all lessons that changed, and write their pages.  Raises RuntimeError if one fails."""
    key, runs = fingerprint(), stage.folder / "runs"
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda script: run(script, runs, key), LESSONS))
    lines = ["# Lessons", "", "One path. Each lesson asks a question, lets you guess, derives its "
             "formula, and checks it by counting. Run one with `minipar lesson 12`. Before them "
             "come [MPI in two pages](../mpi.md) and `lessons/micro.py`.", ""]
    stage.sections[SECTION] = [{"All lessons": "lessons/index.md"}]
    for script in LESSONS:
        number, title = script.stem[:2], title_of(script)
        path = f"lessons/{number}.md"
        stage.add(SECTION, f"{number} {short(script)}", path, write(script, runs / number))
        shutil.copy(runs / number / "picture.png", stage.pages / f"lessons/{number}.png")
        lines.append(f"- **{number}** [{title}]({number}.md)")
    stage.write("lessons/index.md", "\n".join(lines) + "\n")


def fingerprint() -> str:
    """A digest of all that a lesson's page depends on."""
    digest = hashlib.sha256()
    for folder in ("minipar", "lessons", "docs/pages/lessons"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".md", ".toml"):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def run(script: Path, runs: Path, key: str) -> None:
    """Run a lesson on simulated ranks, unless its results are there."""
    folder = runs / script.stem[:2]
    mark = folder / "key"
    if mark.exists() and mark.read_text() == key and all((folder / r).exists() for r in RESULTS):
        return
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(script), "--ranks", str(RANKS), "--out", str(runs)],
                          env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{script.name} failed:\n{done.stdout}\n{done.stderr}")
    mark.write_text(key)


def title_of(script: Path) -> str:
    """The question of a lesson, as its page's heading has it."""
    head = (page.PAGES / f"{script.stem[:2]}.md").read_text(encoding="utf-8").partition("\n")[0]
    return head.partition(". ")[2]


def short(script: Path) -> str:
    """The name of a lesson in the navigation."""
    words = script.stem[3:].replace("_", " ")
    name = re.sub(rf"\b({'|'.join(NAMES)})\b", lambda found: NAMES[found[0]], words)
    return name[0].upper() + name[1:]


def write(script: Path, folder: Path) -> str:
    """The page of a lesson, in Markdown."""
    number = script.stem[:2]
    words, source = page.sections(script.stem), page.shown(script.stem)
    assert source is not None
    report = (folder / "report.md").read_text(encoding="utf-8")
    report = report.replace("![The picture that this lesson draws](picture.png)",
                            f"![The picture that lesson {number} draws]({number}.png)")
    return "\n\n".join([
        f"# {number}. {title_of(script)}",
        f"Run it: `minipar lesson {number}`. Its source is `lessons/{script.name}`.",
        f"## {page.GUESS}", words[page.GUESS],
        f"## {page.ALGORITHM}", f"`{source.file}`, line {source.line}:",
        f"```python\n{source.text}\n```", CHANGE_IT,
        f"## {page.DERIVATION}", words[page.DERIVATION],
        "## A run", f"On {RANKS} simulated ranks, made when this site was built.", loosened(report),
        *questions(words), *typed(number)]) + "\n"


def typed(number: str) -> list[str]:
    """The questions of a lesson that take a number, if it has any."""
    if number not in data_of("question")["questions"]:
        return []
    return ["## Type a number", f"<!-- piece: question lesson {number} -->"]


def loosened(report: str) -> str:
    """A report with an empty line before each list, which Markdown asks for."""
    return re.sub(r"(?m)^(?![-*\d|> ])(.+)\n(?=[-*] )", r"\1\n\n", report)


def questions(words: dict[str, str]) -> list[str]:
    """The section of the questions, with folded answers."""
    text = words[page.QUESTIONS].replace(
        "Think first. With `--answers` the lesson prints what is folded here.", "Think first.")
    text = text.replace("<summary>", '<summary markdown="span">')
    return [f"## {page.QUESTIONS}", text]
