"""DDP and FSDP beside PyTorch's on two gloo processes: losses, parameters, and every collective.

Number and sizes of a step's collectives are compared with what minipar's trace says was sent.  On
two ranks a ring all-reduce of n elements sends n / 2 twice from each rank, an all-gather or a
reduce-scatter once.
"""

import json
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import all_reduce, chunk_bounds
from minipar.environment import mpirun_environment
from minipar.nn import GPT, GPTConfig
from minipar.optim import SGD
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.strategy import Microbatch
from minipar.parallel.wire_formats.wire import Wire
from minipar.parallel.zero.fsdp import FullyShardedDataParallel

ROOT, PROGRAM = Path(__file__).parents[2], Path(__file__).with_name("torch_ranks.py")
NUM_STEPS, BATCH, RATE, BUCKET_MB = 4, 6, 0.1, 0.002
CONFIG = {"vocab_size": 12, "context": 6, "num_layers": 3, "num_heads": 2, "width": 8}
IDS = np.random.default_rng(0).integers(0, 12, (NUM_STEPS, BATCH, 7))
BLOCK, ROOT_UNIT = 872, {True: 160, False: 256}         # elements; the root's by whether it is tied


def pytorch(strategy, tied, tmp_path):
    """The output of torch_ranks.py."""
    job = json.dumps({"strategy": strategy, "config": {**CONFIG, "tied": tied},
                      "ids": IDS.tolist(), "lr": RATE, "bucket_mb": BUCKET_MB})
    ranks = [subprocess.Popen(
        [sys.executable, PROGRAM, str(rank), "2", tmp_path / "store", job], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**mpirun_environment(), "PYTHONPATH": str(ROOT)}) for rank in range(2)]
    said = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said[0][1] + said[1][1]
    return json.loads(said[0][0].strip().splitlines()[-1])


def minipar(make, tied):
    """Losses, parameters at the end, and the trace of the last step on each rank."""
    def main(comm):
        model = GPT(GPTConfig(**CONFIG, tied=tied)).initialize(seed=0, dtype=np.float64)
        strategy = make(model, comm)
        optimizer, losses = SGD(strategy.slabs, lr=RATE, momentum=0.9), []
        for step, ids in enumerate(IDS):
            mine = np.array(strategy.rows(BATCH))
            if step == NUM_STEPS - 1:
                comm.start_trace()
            optimizer.zero_grad()
            batch = Microbatch(ids[mine, :-1], ids[mine, 1:], mine)
            losses.append(strategy.forward_backward([batch]))
            strategy.step(optimizer)
        return losses, comm.stop_trace(), strategy.state_dict()
    ranks, _ = Cluster(2).run(main)
    return ranks[0][0], ranks[0][2], [trace for _, trace, _ in ranks]


class RingWire(Wire):
    """As PyTorch's gloo: a bucket's sum on a ring."""

    all_reduce = staticmethod(partial(all_reduce, algorithm="ring"))


def ddp(model, comm):
    return DistributedDataParallel(model, comm, BUCKET_MB, BUCKET_MB, wire=RingWire())


def by_block(model, comm):
    """As PyTorch's fully_shard of each block, then of the model: the rest is one root unit."""
    return FullyShardedDataParallel(model, comm, units=[*model.h])


def compare(theirs, losses, state):
    """SGD, in float64: a wrong scale of the gradients would show."""
    assert losses == pytest.approx(theirs["losses"], rel=1e-10)
    assert state.keys() == theirs["state"].keys()
    for name, values in state.items():
        np.testing.assert_allclose(values, theirs["state"][name], rtol=0, atol=1e-10, err_msg=name)


def sent(trace, label):
    """The sizes of the messages that one rank sent under that label, and their numbers."""
    return Counter(m.num_bytes // 8 for m in trace.select(label=label))


@pytest.mark.parametrize("tied", [True, False])
def test_ddp(tied, tmp_path):
    """The same buckets: as many all-reduces, of the same sizes."""
    theirs = pytorch("ddp", tied, tmp_path)
    losses, state, traces = minipar(ddp, tied)
    compare(theirs, losses, state)
    seen = theirs["collectives"][-1]
    assert len(seen) == 10 and {name for name, _ in seen} == {"all_reduce"}
    expected = Counter(stop - start for _, size in seen for start, stop in chunk_bounds(size, 2))
    for rank, trace in enumerate(traces):
        assert sent(trace, "all_reduce") == expected, f"rank {rank}"
        assert len(trace.select()) == 2 * len(seen), "other messages than all-reduces"


@pytest.mark.parametrize("tied", [True, False])
def test_fsdp(tied, tmp_path):
    """The same reduce-scatters.  Of the all-gathers two differ, in who is kept between uses.

    PyTorch keeps the root from its first use to its last, beside the two units of prefetch, and
    gathers the last block anew for backward.  minipar never holds more than two units: the root
    is gathered again for the head, and the last block is still there when backward begins.
    """
    theirs = pytorch("fsdp", tied, tmp_path)
    losses, state, traces = minipar(by_block, tied)
    compare(theirs, losses, state)
    seen, root = Counter(map(tuple, theirs["collectives"][-1])), ROOT_UNIT[tied]
    assert seen == {("all_gather", root): 1, ("all_gather", BLOCK): 6,
                    ("reduce_scatter", root): 1, ("reduce_scatter", BLOCK): 3}
    for rank, trace in enumerate(traces):
        assert sent(trace, "reduce_scatter") == {root // 2: 1, BLOCK // 2: 3}, f"rank {rank}"
        assert sent(trace, "all_gather") == {root // 2: 2, BLOCK // 2: 5}, f"rank {rank}"
