"""Quantized messages under every strategy: near the exact gradients, in the formula's bytes."""

from functools import partial

import numpy as np
import pytest
from cases import ALL, MODELS, Case

from minipar.compress.block_codec import BlockCodec
from minipar.compress.collectives import QuantizedSums
from minipar.optim import SGD
from minipar.parallel.data import ranks_that_differ
from minipar.parallel.narrow import gather_in, reduce_in
from minipar.parallel.scaling import unscale
from minipar.parallel.strategy import Microbatch, accumulate
from minipar.testing import worlds

CODEC = BlockCodec()
NAMES = ["ddp", "zero1", "zero2", "fsdp", "fsdp hybrid", "pp 2 × dp 2", "dp 2 × tp 2 zero1",
         "dp 2 × tp 2 fsdp", pytest.param("pp 2 × dp 2 fsdp", marks=pytest.mark.slow)]


def made(comm, name, case, change=lambda strategy: None):
    strategy = ALL[name](MODELS[case.model]().initialize(0, np.float32), comm)
    change(strategy)
    return strategy


def one_batch(strategy, case, step=0, scale=1.0):
    """Two microbatches: the gradients of all parameters, on every rank."""
    inputs, targets = case.batch(step)
    if np.issubdtype(inputs.dtype, np.floating):
        inputs = inputs.astype(np.float32)
    parts = np.split(np.arange(8), 2)
    rows = [part[list(strategy.rows(len(part)))] for part in parts]
    accumulate(strategy, [Microbatch(inputs[r], targets[r], r) for r in rows], 1, step, scale)
    return {name: gradient for slab in strategy.slabs
            for name, gradient in slab.named(slab.complete_grad()).items()}


def quantize(strategy):
    reduce_in(strategy, QuantizedSums())


@worlds(4, mpi=(4,))
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_summed_as_codes(world, name):
    """Two microbatches; the bytes of ddp and zero1 are those of one reduction of each bucket.

    A rank's gradients are at most a few times the sum; each is rounded to 1/254 of its largest.
    """
    case = Case("gpt tied", mask="full", parts=(8,))

    def body(comm):
        exact, sent = {}, []
        for change in (lambda strategy: None, quantize):
            strategy = made(comm, name, case, change)
            comm.start_trace()
            found = one_batch(strategy, case)
            sent.append(comm.stop_trace())
            exact = exact or found
        largest = max(np.abs(gradient).max() for gradient in exact.values())
        for key, gradient in exact.items():
            assert np.abs(found[key] - gradient).max() <= 4 * comm.size / 254 * largest, key
        assert any((found[key] != exact[key]).any() for key in exact)
        assert not ranks_that_differ(comm, b"".join(g.tobytes() for g in found.values()))
        if name in ("ddp", "zero1"):
            sizes = [[CODEC.num_bytes(len(part)) for part in
                      np.array_split(np.empty(run.stop - run.start), comm.size)]
                     for run in strategy.buckets]
            codes = sum(sum(bucket) - bucket[comm.rank] for bucket in sizes)
            assert sent[1].bytes_sent(comm.rank, "all_to_all") == codes
            if name == "ddp":
                after = (comm.rank + 1) % comm.size
                codes += sum(sum(bucket) - bucket[after] for bucket in sizes)
                assert sent[1].bytes_sent(comm.rank, "all_gather") == codes - sent[1].bytes_sent(
                    comm.rank, "all_to_all")
    world.run(body)


@worlds(2, 3, mpi=(3,))
def test_fsdp_gathers_codes(world):
    """Every message of the gathers is of the formula's length; gradients stay near."""
    case = Case("gpt untied", mask="full", parts=(8,))

    def body(comm):
        found, sent = [], []
        for change in (lambda strategy: None, partial(gather_in, how=QuantizedSums())):
            strategy = made(comm, "fsdp", case, change)
            comm.start_trace()
            found.append(one_batch(strategy, case))
            trace = comm.stop_trace()
            sent.append([m.num_bytes for m in trace.select(comm.rank, "all_gather")])
        assert [CODEC.num_bytes(wide // 4) for wide in sent[0]] == sent[1] and sent[1]
        ours, theirs = (np.concatenate([a[key].ravel() for key in found[0]]) for a in found)
        assert 0 < np.linalg.norm(ours - theirs) < 0.2 * np.linalg.norm(ours)
    world.run(body)


@worlds(3, 4, mpi=(4,))
@pytest.mark.parametrize("name", ["ddp", "zero1", "zero2", "fsdp"])
def test_an_overflow_is_found_and_leaves_nothing_behind(world, name):
    """The scale makes gradients infinite in one batch; the next one is as if that had not been."""
    case = Case("mlp", mask="full", parts=(8,))

    def body(comm):
        after = []
        for scales in ((1.0, 2.0**131, 1.0), (1.0, 1.0)):
            strategy = made(comm, name, case, quantize)
            optimizer, answers = SGD(strategy.slabs, lr=0.1), []
            for scale in scales:
                optimizer.zero_grad()
                with np.errstate(over="ignore", invalid="ignore"):
                    found = one_batch(strategy, case, 0, scale)
                answers.append(unscale(strategy, scale))
                if answers[-1]:
                    strategy.step(optimizer)
            assert answers == [scale == 1 for scale in scales]
            after.append(found)
        for key, gradient in after[1].items():
            assert np.isfinite(after[0][key]).all()
            np.testing.assert_allclose(after[0][key], gradient, atol=0.02)
    world.run(body)


@worlds(2, mpi=(2,))
def test_what_cannot_be_is_refused(world):
    def body(comm):
        case = Case("mlp")
        for name, sentence in (("zero3", "choose fsdp"), ("dp", "choose ddp")):
            with pytest.raises(ValueError, match=sentence):
                made(comm, name, case, quantize)
        with pytest.raises(ValueError, match="gathers no units of weights"):
            gather_in(made(comm, "zero1", case), QuantizedSums())
    world.run(body)


@worlds(2, mpi=())
def test_of_microbatches_inside_no_sync_the_sum_alone_is_owed(world):
    """One debt for each number of each bucket, whatever the number of microbatches."""
    def body(comm):
        strategy = made(comm, "ddp", Case("mlp", mask="full", parts=(8,)), quantize)
        one_batch(strategy, Case("mlp", mask="full", parts=(8,)))
        owed = strategy.sums.debts.owed
        assert {run for run, _ in owed} == set(strategy.buckets)
        assert sum(debt.size for debt in owed.values()) == strategy.model.num_parameters()
    world.run(body)
