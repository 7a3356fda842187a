"""Training with quantized messages: near the exact gradients, in the bytes of the formula."""

import numpy as np

from minipar.parallel.compare_ranks import ranks_that_differ
from minipar.parallel.strategy import Microbatch
from minipar.parallel.wire_formats.quantized.block_codec import INT8 as CODEC
from minipar.parallel.wire_formats.quantized.quantized_collectives import QuantizedWire
from tests.support.cases import ALL, MODELS, Case


def made(comm, name, case, **options):
    return ALL[name](MODELS[case.model]().initialize(0, np.float32), comm, **options)


def one_batch(strategy, case, step=0, scale=1.0):
    """Two microbatches: the gradients of all parameters, on every rank."""
    inputs, targets = case.batch(step)
    if np.issubdtype(inputs.dtype, np.floating):
        inputs = inputs.astype(np.float32)
    parts = np.split(np.arange(8), 2)
    rows = [part[list(strategy.rows(len(part)))] for part in parts]
    strategy.forward_backward([Microbatch(inputs[r], targets[r], r) for r in rows], 1, step, scale)
    return strategy.slabs.gradients()


def check_gradients(world, name):
    """Gradients are summed as codes: near the exact ones, and the same bits on every rank.

    Two microbatches; the bytes of ddp and zero1 are those of one reduction of each bucket.

    A rank's gradients are at most a few times the sum; each is rounded to 1/254 of its largest.
    """
    case = Case("gpt tied", mask="full", parts=(8,))

    def body(comm):
        exact, sent = {}, []
        for options in ({}, {"wire": QuantizedWire()}):
            strategy = made(comm, name, case, **options)
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
                      np.array_split(np.empty(run.size), comm.size)]
                     for run in strategy.flats]
            codes = sum(sum(bucket) - bucket[comm.rank] for bucket in sizes)
            assert sent[1].bytes_sent(comm.rank, "all_to_all") == codes
            if name == "ddp":
                after = (comm.rank + 1) % comm.size
                codes += sum(sum(bucket) - bucket[after] for bucket in sizes)
                assert sent[1].bytes_sent(comm.rank, "all_gather") == codes - sent[1].bytes_sent(
                    comm.rank, "all_to_all")
    world.run(body)


def check_gathers(world, name):
    """Weights are gathered as codes.

    Every message of the gathers is of the formula's length; gradients stay near.
    """
    case = Case("gpt untied", mask="full", parts=(8,))

    def body(comm):
        found, sent = [], []
        for options in ({}, {"gather_wire": QuantizedWire()}):
            strategy = made(comm, name, case, **options)
            comm.start_trace()
            found.append(one_batch(strategy, case))
            trace = comm.stop_trace()
            sent.append([m.num_bytes for m in trace.select(comm.rank, "all_gather")])
        numbers = {CODEC.num_bytes(length): length for flat in strategy.flats
                   for length in flat.counts}
        assert sum(4 * numbers[num_bytes] for num_bytes in sent[1]) == sum(sent[0]) > 0
        ours, theirs = (np.concatenate([a[key].ravel() for key in found[0]]) for a in found)
        assert 0 < np.linalg.norm(ours - theirs) < 0.2 * np.linalg.norm(ours)
    world.run(body)
