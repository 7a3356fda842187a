"""The lessons as notebooks, out/notebooks/NN_title.ipynb, made from the scripts (`make notebooks`).

    question, docstring, guess      from the script and docs/pages/lessons/NN.md
    imports                         one cell
    the algorithm                   one cell, to be changed
    main                            a cell
    derivation                      from the page
    %%ranks 4: main(comm)           the run, with its picture
    questions                       with their answers folded

jupytext writes the file; its text between is the script in jupytext's percent format.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import jupytext
import lesson_pages
from lesson_pages import page
from stage import ROOT

RANKS = 4
OPEN = """%load_ext minipar
from minipar.school.course.lessons import open_lesson
__file__, __doc__ = open_lesson({number})"""
CHANGE_IT = ("Change a line, run this cell again, and then the run below: does it still equal one "
             "process?  A deadlock ends with a sentence that says who waits for whom.")
METADATA = """# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---
"""


def percent(script: Path) -> str:
    """A lesson in jupytext's percent format."""
    words, number = page.sections(script.stem), script.stem[:2]
    text = script.read_text(encoding="utf-8")
    head, *_, main = pieces(text)
    algorithm = page.algorithm(script).text
    head = head.partition(algorithm.partition("\n")[0])[0]
    body = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[2]
    return METADATA + "\n".join([
        markdown(f"# {number}. {lesson_pages.title_of(script)}", without_commands(body)),
        markdown(f"## {page.GUESS}", words[page.GUESS]),
        code(OPEN.format(number=int(number))), code(head.strip()),
        markdown(f"## {page.ALGORITHM}", CHANGE_IT), code(algorithm), code(main),
        markdown(f"## {page.DERIVATION}", words[page.DERIVATION]),
        markdown("## A run", f"On {RANKS} simulated ranks; only rank 0 prints."),
        code(f"%%ranks {RANKS}\nmain(comm)"),
        markdown(f"## {page.QUESTIONS}", lesson_pages.questions(words)[1])])


def pieces(text: str) -> Iterator[str]:
    """The script in pieces: all before its first function, then a function each.

    The docstring is left out, and the lines that run the script.
    """
    lines, tree = text.splitlines(), ast.parse(text).body
    tree = [node for node in tree[1:] if not (isinstance(node, ast.If) and "__name__" in
                                              ast.unparse(node.test))]
    starts = [node.lineno for node in tree if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    starts = [min([start, *[d.lineno for node in tree if node.lineno == start
                            for d in getattr(node, "decorator_list", ())]]) for start in starts]
    for begin, end in zip([tree[0].lineno, *starts], [*starts, tree[-1].end_lineno + 1]):
        yield "\n".join(lines[begin - 1:end - 1]).strip()


def without_commands(body: str) -> str:
    """A docstring without the paragraph of commands that run the script."""
    return "\n\n".join(part for part in re.split(r"\n\n+", body.strip("\n"))
                       if "python lessons/" not in part)


def markdown(*parts: str) -> str:
    """A cell of text."""
    return "# %% [markdown]\n" + "\n".join(
        f"# {line}".rstrip() for line in "\n\n".join(parts).splitlines())


def code(text: str) -> str:
    """A cell of code."""
    return f"# %%\n{text}"


def main() -> int:
    """Write the notebooks of all lessons, or of those whose numbers are given."""
    parser = argparse.ArgumentParser(description="the lessons as notebooks")
    parser.add_argument("numbers", nargs="*", metavar="NN", help="some lessons only")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "notebooks")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for script in lesson_pages.LESSONS:
        if not options.numbers or script.stem[:2] in options.numbers:
            notebook = jupytext.reads(percent(script), fmt="py:percent")
            jupytext.write(notebook, options.out / f"{script.stem}.ipynb")
    print(f"the notebooks are in {options.out}: jupyter lab {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
