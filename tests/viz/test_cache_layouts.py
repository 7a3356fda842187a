"""The picture of layouts of a cache: what is drawn, and what it refuses."""

import pytest

from minipar.viz import draw_cache_layouts

LAYOUTS = {"max": {"token": 20.0, "reserved": 10.0, "internal": 69.0, "external": 1.0},
           "blocks": {"token": 35.0, "internal": 2.0, "free": 63.0}}


def test_bars_have_the_width_of_their_parts(tmp_path):
    path = draw_cache_layouts(tmp_path / "layouts.svg", LAYOUTS, {"max": 1}, "title")
    text = path.read_text()
    assert list(tmp_path.iterdir()) == [path]
    for words in ("1 waits", "none waits", "69", "63", "slots of the pool"):
        assert f"<!-- {words} -->" in text
    assert "<!-- 1 -->" not in text             # too narrow for its number


def test_unknown_parts_and_no_layout_are_refused(tmp_path):
    with pytest.raises(ValueError, match="parts token, reserved, .* not holes"):
        draw_cache_layouts(tmp_path / "x.png", {"max": {"holes": 1.0}}, {})
    with pytest.raises(ValueError, match="at least one layout"):
        draw_cache_layouts(tmp_path / "x.png", {}, {})
