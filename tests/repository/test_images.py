"""The pictures of the docs: each is shown somewhere, and each that is shown exists."""

import re

from tests.repository.test_layering import ROOT

IMAGES = ROOT / "docs" / "pages" / "images"


def test_every_picture_is_shown_and_every_picture_shown_exists():
    pages = [ROOT / "README.md", *(ROOT / "docs" / "pages").rglob("*.md")]
    shown = {name for page in pages
             for name in re.findall(r"images/([\w.-]+)", page.read_text(encoding="utf-8"))}
    assert shown == {path.name for path in IMAGES.iterdir()}
