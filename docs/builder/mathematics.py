"""Formulas: $…$ and $$…$$ of a page become MathML, which browsers draw without script or font."""

import re

from latex2mathml.converter import convert as to_mathml
from stage import Stage

CODE = re.compile(r"(^```.*?^```|`[^`\n]+`|<script.*?</script>)", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r"\$\$(?P<block>.+?)\$\$|(?<![\\$\w])\$(?P<inline>[^\s$][^$\n]*?)\$(?!\w)",
                     re.DOTALL)


def convert(stage: Stage) -> None:
    """Convert the formulas of all pages, outside of code."""
    for path in stage.markdown():
        text = path.read_text(encoding="utf-8")
        parts = CODE.split(text)
        parts[::2] = [FORMULA.sub(lambda found: to_mathml(
            found["block"] or found["inline"], display="block" if found["block"] else "inline"),
            part) for part in parts[::2]]
        if (changed := "".join(parts)) != text:
            path.write_text(changed, encoding="utf-8")
