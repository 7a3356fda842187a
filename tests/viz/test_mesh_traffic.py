"""The ranks of a mesh, drawn: a line for each link, as wide as its bytes."""

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from minipar.viz.plots import traffic


def test_a_line_for_each_link(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(traffic, "save", lambda figure, path: drawn.append(figure) or path)
    panel = traffic.MeshTraffic({"pp": 2, "dp": 2, "tp": 3}, 6,
                             {"tp": {(0, 1): 50, (1, 0): 50}, "pp": {(0, 6): 25}}, "a title")
    traffic.draw_mesh_traffic(tmp_path / "x.png", [panel])
    (figure,) = drawn
    assert isinstance(figure, Figure)
    (axes,) = figure.axes
    lines = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    widths = sorted(line.get_linewidth() for line in lines)
    assert widths == [traffic.THICKEST / 4, traffic.THICKEST]
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["node 0", "node 1", *map(str, range(12))]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "pp: 25 B", "dp: 0 B", "tp: 100 B"]
