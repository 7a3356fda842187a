"""The index of the search: words of the pages, without the source code that the API pages show."""

import json
import re
from pathlib import Path

INDEX = Path("search") / "search_index.json"
CODE = re.compile(r"<pre>.*?</pre>", re.DOTALL)
WITH_SOURCE = ("api/", "book/")


def shorten(site: Path) -> None:
    """Take the source code out of the index of a site that mkdocs has built."""
    index = json.loads((site / INDEX).read_text(encoding="utf-8"))
    for entry in index["docs"]:
        if entry["location"].startswith(WITH_SOURCE):
            entry["text"] = CODE.sub(" ", entry["text"].partition("Source code in")[0])
    text = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
    (site / INDEX).write_text(text, encoding="utf-8")
