"""Numbers in the answers of the lesson on GSPMD, computed again."""

import importlib

import pytest

from minipar.gspmd import P, plan
from tests.lessons.test_answers import kit, says  # noqa: F401 (kit is a fixture)


@pytest.fixture
def lesson(kit):  # noqa: F811
    """What lesson 19 annotates in the library, as a module."""
    return importlib.import_module("support.lesson_19")


def test_19_weights_before_the_batch(lesson):
    weights_first = {"ids": P("dp", priority=1), "h.*.weight": P("dp")}

    def sent(annotations, samples):
        ids, targets = (array[:samples] for array in lesson.batch(samples // lesson.ROWS))
        return int(plan(lesson.loss, ids, targets, model=lesson.model(4), mesh={"dp": 4},
                        annotations=annotations, names=["ids", "targets"],
                        dtype=float).program.num_bytes)

    says("19", f"sends {sent(weights_first, 16):,} bytes forward instead of "
         f"{sent(lesson.FSDP, 16):,}", f"{sent(weights_first, 64):,}, while FSDP's bytes stay")
    assert sent(lesson.FSDP, 64) == sent(lesson.FSDP, 16)


def test_19_time_over_cp_gives_all_to_alls(lesson):
    ids, targets = lesson.batch(2)
    program = plan(lesson.loss, ids, targets, model=lesson.model(2), mesh={"cp": 2},
                   annotations={"ids": P(None, "cp")}, names=["ids", "targets"]).program
    kinds = [each.kind for each in program.collectives]
    assert kinds == ["all-to-all"] * 2 * lesson.L + ["all-reduce"]      # the last one: the loss
