"""The numbers in the handout and the rubric of "Sharded training" are true."""

import math

import numpy as np

from minipar.school.course.grading.tasks import ASSIGNMENTS, variants

FOLDER = ASSIGNMENTS / "sharding"
RUBRIC = " ".join((FOLDER / "rubric.md").read_text(encoding="utf-8").split())


def test_memory():
    for name, size in (("DDP", 16), ("ZeRO-1", 4 + 12 / 8), ("ZeRO-2", 2 + 14 / 8), ("ZeRO-3", 2)):
        assert f"| {name} | {1.3 * size:.2f} |" in RUBRIC
    assert 16 * 1.3 / 21 < 1 < 16 * 1.3 / 20


def test_bytes_of_the_public_case_with_four_ranks():
    found = {}
    for task in variants(FOLDER / "tasks.toml"):
        if task.name in ("gathered_forward", "scattered_backward"):
            [case] = [case for case in task.cases if case.ranks == 4]
            assert not case.is_hidden
            allowed = task.traffic(task.arguments(case, 0), case)
            found.setdefault(task.name, set()).add((allowed["bytes"], allowed["rounds"]))
    assert found == {"gathered_forward": {(960, 4)}, "scattered_backward": {(1344, 8)}}
    assert 8 * 3 * (20 + 12) == 768 and 8 * 3 * (12 + 20 + 12) == 1056     # without padding
    ratios = [(3 * layers - 1) / (2 * layers) for layers in (1, 2, 12)]
    assert ratios[:2] == [1, 1.25] and round(ratios[2], 2) == 1.46


def test_padding():
    for multiple in (2, 4, 8):
        most = max(-n % (8 * multiple) for n in range(1, 200))
        assert f"| {multiple} | {most} | {100 * most:,} | {148 * most:,} |" in RUBRIC


def test_decay():
    assert math.isclose(0.001 * 0.1 * 0.5, 5e-5)
    for sigma, shrinks in ((100, 5.0e-7), (1, 5.0e-5)):
        assert math.isclose(0.001 * 0.05 / math.hypot(sigma, 0.05), shrinks, rel_tol=0.01)


def test_norms():
    own = np.sqrt([9 + 144, 16 + 144])
    both = math.sqrt(25 + 2 * 144)
    assert math.hypot(3, 4, 12) == 13 and np.round(own, 2).tolist() == [12.37, 12.65]
    assert round(both, 2) == 17.69 and round(6.5 / both, 3) == 0.367
    assert np.round(6.5 / own, 3).tolist() == [0.525, 0.514]
    assert "factors 0.525 and 0.514" in RUBRIC and "factor 0.367" in RUBRIC
