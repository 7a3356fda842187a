"""Interactive pieces: a line `<!-- piece: NAME -->` of a page becomes docs/interactive/NAME.

A piece is two files: data.py, whose function `data()` returns the one JSON that it draws, made by
minipar's own functions, and piece.js, which draws it.  The JSON is written into the page and all
scripts into one file, so a page works without a server and without a network.  Where scripts are
off, the words around a piece remain.
"""

import importlib.util
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from stage import ROOT, Stage

PIECES = ROOT / "docs" / "interactive"
PLACE = re.compile(r"^<!-- piece: (\w+)(?: lesson (\w+))? -->$", re.MULTILINE)
SCRIPT = "assets/pieces.js"


def names() -> list[str]:
    """All pieces."""
    return sorted(path.parent.name for path in PIECES.glob("*/piece.js"))


@cache
def data_of(name: str) -> dict[str, Any]:
    """The data of a piece."""
    return load(PIECES / name / "data.py").data()


def load(path: Path) -> Any:
    """The module of a file beside a piece."""
    spec = importlib.util.spec_from_file_location(f"piece_{path.parent.name}_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def block(name: str, lesson: str | None = None) -> str:
    """The HTML of a piece in a page, of a `lesson` if it has something for each."""
    text = json.dumps(data_of(name), ensure_ascii=False, separators=(",", ":"))
    text = text.replace("</", "<\\/")                   # it stands in a <script>
    of_lesson = f' data-lesson="{lesson}"' if lesson else ""
    return (f'<div class="piece" data-piece="{name}"{of_lesson}><noscript>This needs JavaScript.'
            f'</noscript></div>\n<script type="application/json" id="data-{name}">'
            f"{text}</script>")


def expand(stage: Stage) -> None:
    """Put the pieces into the pages, and all their scripts into one file.

    Raises FileNotFoundError for a piece that does not exist.
    """
    for path in stage.markdown():
        text = path.read_text(encoding="utf-8")
        if PLACE.search(text):
            path.write_text(PLACE.sub(lambda found: block(*found.groups()), text), encoding="utf-8")
    scripts = [PIECES / "piece.js", *[PIECES / name / "piece.js" for name in names()]]
    stage.write(SCRIPT, "\n".join(path.read_text(encoding="utf-8") for path in scripts))
