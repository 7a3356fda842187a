"""Pictures: each is a link to its file, and knows the size at which its words can be read.

A picture of 11 inches is wider than the text of a page.  There it is made to fit, and a click shows
it whole; on a phone it keeps its size, and scrolls (assets/extra.css).
"""

import re
import struct
from pathlib import Path

from stage import Stage

PICTURE = re.compile(r"^!\[(?P<alt>[^\]]*)\]\((?P<file>[^)\s]+\.png)\)$", re.MULTILINE)
PER_INCH, DRAWN = 96, 130           # pixels of CSS in an inch; of a picture (minipar/viz/figure.py)


def size(file: Path) -> tuple[int, int]:
    """Width and height at which a picture is as large as it was drawn, in pixels of CSS."""
    width, height = struct.unpack(">II", file.read_bytes()[16:24])      # PNG: bytes of its IHDR
    return width * PER_INCH // DRAWN, height * PER_INCH // DRAWN


def frame(stage: Stage) -> None:
    """Make a link of each picture that is a paragraph of its own."""
    for path in stage.markdown():
        def link(found: re.Match, page: Path = path) -> str:
            width, height = size(page.parent / found["file"])
            return (f"[{found[0]}{{ width={width} height={height} }}]({found['file']})"
                    "{ .picture }")
        text = path.read_text(encoding="utf-8")
        path.write_text(PICTURE.sub(link, text), encoding="utf-8")
