"""Build the site: `make docs`, or `python docs/builder/build.py [--out site]`.

    docs/pages ──copy──▶ build/site/pages ──Material for mkdocs──▶ site/
                            ▲
    lesson_pages.py   each lesson's page, with its algorithm and a run
    stage.py          the staged folder: pages and their navigation
    book.py           the spine: its source, with the docstrings as margin notes
    reference.py      the API, from the docstrings
    pictures.py       pictures that can be enlarged
    pieces.py         `<!-- piece: NAME -->` becomes an interactive piece and its data
    minipar plan      its page, the calculator of time and memory
    browser.py        lessons and exercises that run in the page, if asked for (WEB=1)
    mathematics.py    $formulas$ become MathML, which browsers draw without a script
    search_index.py   the search finds words, not source code
    sources.py        names of files and modules become links to the source
    notebooks.py      the lessons as notebooks: a program of its own (`make notebooks`)

The staged folder holds plain Markdown: no hook of mkdocs is used.  So Zensical, which reads
mkdocs.yml, too, builds the same site from it (`make docs GENERATOR=zensical`).
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import book
import browser
import lesson_pages
import mathematics
import pictures
import pieces
import reference
import search_index
import sources
from stage import ROOT, Stage

from minipar.commands.main import main as minipar

GENERATORS = {"mkdocs": ("mkdocs", "build", "--strict", "--quiet"),
              "zensical": ("zensical", "build", "--strict", "--clean")}


def from_root(path: Path) -> str:
    """A page of the root folder, whose links to docs/pages become links between pages."""
    text = path.read_text(encoding="utf-8").replace("](docs/pages/", "](")
    text = text.replace("<details>", "<details markdown>")      # GitHub reads Markdown in either
    return re.sub(r"\[([^\]]+)\]\((?!https?:|#|[\w/]+\.md|images/)[^)]*\)", r"\1", text)


def main() -> int:
    """Build the site; return the exit status of the generator."""
    parser = argparse.ArgumentParser(description="Build the site.")
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="a folder (%(default)s)")
    parser.add_argument("--generator", choices=GENERATORS, default="mkdocs")
    parser.add_argument("--web", action="store_true", help="with lessons that run in the browser")
    options = parser.parse_args()
    stage = Stage(ROOT / "build" / "site")
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        stage.write(name.lower(), from_root(ROOT / name))
    lesson_pages.add(stage)
    book.add(stage)
    reference.add(stage)
    minipar(["plan", "--page", str(stage.pages / "calculator.html")])
    if options.web:
        browser.add(stage)
    else:
        browser.leave_out(stage, "make docs WEB=1 builds it")
    pieces.expand(stage)
    pictures.frame(stage)
    mathematics.convert(stage)
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    built = subprocess.run([sys.executable, "-m", *GENERATORS[options.generator],
                            "--config-file", str(stage.configure())], env=environment)
    if built.returncode == 0:
        if options.generator == "mkdocs":
            search_index.shorten(stage.folder / "html")
        sources.link(stage.folder / "html")
        shutil.rmtree(options.out, ignore_errors=True)
        shutil.move(stage.folder / "html", options.out)
        print(f"the site is in {options.out}: python -m http.server --directory {options.out}")
    for sentence in stage.left_out:
        print(f"left out: {sentence}")
    return built.returncode


if __name__ == "__main__":
    sys.exit(main())
