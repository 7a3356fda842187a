"""Tensor-parallel stages send each other all of an activation, split tokens, or pieces of it."""

import re

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.parallel.pipeline.schedule.registry import SCHEDULES
from minipar.parallel.strategy import Microbatch
from minipar.testing import worlds
from tests.parallel.test_hybrid import TIME, build, check, on

M, WIDTH, SIZE = 3, 16, 2 * TIME * 16 * 8        # microbatches; bytes of an activation, float64
MODES = {"whole": {}, "tokens": {"sequence_parallel": True}, "pieces": {"scatter_gather": True}}


def sent(pp, tp, **options):
    """(messages between stages, their bytes, bytes of all messages) of each rank in a batch."""
    def body(comm):
        strategy = on({"pp": pp, "tp": tp}, **options)(build("untied"), comm)
        ids = np.zeros((2, TIME), int)
        batches = [Microbatch(ids, ids, np.arange(2))] * M
        comm.start_trace()
        strategy.run_batch(batches, 1.0)
        messages = comm.stop_trace().select()
        between = [m.num_bytes for m in messages if re.fullmatch("[0-9]+[FB][0-9]+", m.label)]
        return len(between), sum(between), sum(m.num_bytes for m in messages)
    return np.array(Cluster(pp * tp).run(body)[0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pp, tp", [(2, 2), (2, 4), (4, 2)])
@pytest.mark.one_in(2)
def test_each_rank_sends_1_t_of_an_activation_or_all_of_it(pp, tp, mode):
    found = sent(pp, tp, **MODES[mode])
    neighbours = np.repeat([1] + [2] * (pp - 2) + [1], tp)
    assert (found[:, 0] == M * neighbours).all()
    assert (found[:, 1] == M * neighbours * SIZE // (1 if mode == "whole" else tp)).all()


@pytest.mark.parametrize("pp, tp", [(2, 2), (2, 4), (4, 2)])
@pytest.mark.one_in(2)
def test_pieces_move_bytes_from_between_stages_into_them(pp, tp):
    """Of t copies t - 1 less go over each boundary, and a ring of t gathers with t - 1."""
    whole, pieces = (sent(pp, tp, **MODES[mode]).sum(0) for mode in ("whole", "pieces"))
    assert whole[1] - pieces[1] == 2 * M * (pp - 1) * (tp - 1) * SIZE
    assert pieces[2] == whole[2]


@worlds(8, mpi=())
@pytest.mark.parametrize("schedule", [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in ("interleaved", "zb_h1")))
    for name in SCHEDULES])
@pytest.mark.one_in(2)
def test_every_schedule_equals_one_process(world, schedule):
    check(world, {"pp": 2, "dp": 2, "tp": 2}, parts=4, schedule=schedule, scatter_gather=True)


@worlds(6, mpi=())
def test_three_pieces(world):
    check(world, {"pp": 2, "tp": 3}, "three heads", scatter_gather=True)


@worlds(4, mpi=(4,))
@pytest.mark.parametrize("name", ["tied", "untied"])
@pytest.mark.one_in(2)
def test_in_both_worlds(world, name):
    check(world, {"pp": 2, "tp": 2}, name, data_parallel="zero1", scatter_gather=True)


@pytest.mark.parametrize("mesh, name, options", [
    ({"pp": 2, "tp": 2}, "tied", {"sequence_parallel": True}), ({"pp": 2, "tp": 2}, "mlp", {}),
    ({"pp": 4}, "tied", {}), ({"dp": 2, "tp": 2}, "tied", {})])
def test_nothing_to_cut_is_refused(mesh, name, options):
    with pytest.raises(ValueError, match="scatter_gather is for a GPT over pp and tp without"):
        Cluster(4).run(lambda comm: on(mesh, scatter_gather=True, **options)(build(name), comm))
