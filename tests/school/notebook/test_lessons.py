"""The lessons as notebooks: each runs from its first cell to its last, with its picture inline."""

import os
import sys
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient", reason="make test-notebooks installs it")
pytest.importorskip("jupytext", reason="make test-notebooks installs it")

ROOT = Path(__file__).parents[3]
LESSONS = sorted((ROOT / "lessons").glob("[0-9][0-9]_*.py"))


@pytest.fixture(scope="module")
def notebooks():
    """docs/builder/notebooks.py."""
    sys.path.insert(0, str(ROOT / "docs" / "builder"))
    import notebooks
    return notebooks


def test_no_line_of_a_script_is_lost(notebooks):
    for script in LESSONS:
        text = notebooks.percent(script)
        source = script.read_text(encoding="utf-8")
        code = source.split('"""', 2)[2].partition('if __name__ == "__main__":')[0]
        missing = [line for line in code.splitlines() if line not in text.splitlines()]
        assert not missing, script.name


@pytest.mark.parametrize("script", [
    pytest.param(script, marks=[] if script.stem[:2] == "01" else pytest.mark.slow)
    for script in LESSONS], ids=[script.stem for script in LESSONS])
def test_a_notebook_runs(script, notebooks, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = notebooks.jupytext.reads(notebooks.percent(script), fmt="py:percent")
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources={
        "metadata": {"path": str(tmp_path)}}).execute()         # raises if a cell fails
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    shown = "".join(output.get("text", "") + output.get("data", {}).get("text/plain", "")
                    for output in outputs)
    assert "Takeaway:" in shown and "4 simulated ranks, " in shown
    assert "Guess first" not in shown, "the notebook's own cells have it"
