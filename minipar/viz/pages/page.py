"""Pages of one file, which need no network: the skeleton `page.html`, filled with one page's parts.

A page's own file has three parts, which take the places of %STYLE%, %MAIN% and %SCRIPT%:

    <style> … </style>  <main> … </main>  <script> … </script>

Its script finds the page's values in `DATA`; `find` and `make` find and make elements.
"""

import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...atomic_files import write_text

SKELETON = Path(__file__).with_name("page.html")


def write_page(path: str | Path, own: Path, title: str, data: Any,
               colors: Mapping[str, str]) -> Path:
    """Write the page whose parts are in the file `own`, with `data` as JSON; return its path.

    `colors` are variables of the style: {"c0": "#0072B2"} is var(--c0) there.
    """
    values = json.dumps(data, ensure_ascii=False)
    for sign in "<>&":                  # so that nothing in it can end the script element
        values = values.replace(sign, f"\\u{ord(sign):04x}")
    inserted = {"TITLE": html.escape(title), "DATA": values,
                "COLORS": " ".join(f"--{name}: {color};" for name, color in colors.items())}
    for part, text in re.findall(r"<(style|main|script)>\n(.*?)\n</\1>",
                                 own.read_text(encoding="utf-8"), re.DOTALL):
        inserted[part.upper()] = text
    page = SKELETON.read_text(encoding="utf-8")
    return write_text(path, re.sub("%([A-Z]+)%", lambda mark: inserted[mark[1]], page))
