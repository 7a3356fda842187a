"""A recording: its file, its boxes, its rows, and what is refused; the file stands alone."""

import subprocess
import sys

import numpy as np
import pytest

from minipar.compare_runs import recorder
from minipar.compare_runs.difference import compare_recordings
from minipar.compare_runs.global_arrays import RankLayout, assemble
from minipar.compare_runs.missing import rows_gaps
from minipar.compare_runs.recorder import Recorder, index_runs, read


def test_it_needs_numpy_alone():
    code = ("import importlib.util, sys; spec = importlib.util.spec_from_file_location('r', "
            f"{recorder.__file__!r}); m = importlib.util.module_from_spec(spec); "
            "sys.modules['r'] = m; spec.loader.exec_module(m); m.Recorder().record('x', [1.0]); "
            "print([name for name in sys.modules if name.startswith('minipar')])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_boxes_and_terms_make_up_the_global_array(tmp_path):
    whole = np.arange(24.0).reshape(4, 6)
    for rank, columns in enumerate(([0, 1, 5], [2, 3, 4])):
        for term in range(2):
            each = Recorder(2 * rank + term)
            each.record("w", whole[:, columns] / 2, "gradient", 1, whole.shape,
                        [None, index_runs(columns)], f"rows {term}")
            each.write(tmp_path / f"{2 * rank + term}.npz")
    [(key, found)] = assemble(read(tmp_path)).items()
    assert key == (1, "gradient", "w") and found.terms == {"rows 0", "rows 1"}
    np.testing.assert_array_equal(found.values, whole)
    assert found.known.all() and not list(tmp_path.glob(".*"))


def test_a_flat_piece_has_its_place_in_one_row():
    each = Recorder()
    each.record("w", [5.0, 6.0], "gradient", shape=(2, 4), box=[[(3, 5)]])
    [found] = assemble(each.records).values()
    np.testing.assert_array_equal(found.values, [[0, 0, 0, 5], [6, 0, 0, 0]])
    assert found.known.sum() == 2


def test_float64_recordings_are_compared_without_a_measure():
    def recorded(values):
        each = Recorder()
        each.record("h", np.array(values))
        each.record("zero", np.array([1e-17, 0.0]) * np.sign(values[0]))
        return each.records
    assert compare_recordings(recorded([1.0, 2.0]), recorded([-1.0, 2.0])).verdict == "different"
    assert compare_recordings(recorded([1.0, 2.0]), recorded([1.0, 2.0 + 1e-13])).verdict == "equal"


@pytest.mark.parametrize("values, more, said", [
    ([1.0, 2.0], {"shape": (4,), "box": [[(0, 3)]]}, "do not fill the box"),
    ([1.0], {"phase": "later"}, "unknown phase 'later'")])
def test_what_does_not_fit_is_refused(values, more, said):
    with pytest.raises(ValueError, match=said):
        Recorder().record("x", values, **more)


def test_another_file_is_no_recording(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones(2))
    with pytest.raises(ValueError, match="is no whole recording"):
        read(tmp_path / "a.npz")


def test_the_first_step_with_wrong_rows_is_named():
    """Each step is looked at by itself, whatever the steps after it read."""
    rows = {(0, 0): [np.array([0, 0])], (1, 0): [np.array([0, 1])]}
    wrong, right = (RankLayout({0: {}}, read, {0: 2, 1: 2}) for read in (
        rows, rows | {(0, 0): [np.array([0, 1])]}))
    gap, = rows_gaps(right, wrong)
    assert gap.key[0] == 0 and "read 2 times: row 0 of 2" in gap.note
    assert not rows_gaps(right, right)
