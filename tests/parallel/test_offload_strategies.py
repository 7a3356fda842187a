"""With every strategy: the same numbers, bit for bit, whatever waits in a file."""

import re
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from minipar.autograd import no_grad
from minipar.backend import allocating_with
from minipar.backend.mapped_file import MappedFile, is_mapped
from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.comm.simulated.copy_stream import copy_streams
from minipar.inference import generate
from minipar.launcher import metered
from minipar.memory.ledger import Ledger
from minipar.memory.offload.activations import OffloadActivations
from minipar.nn import GPT, GPTConfig
from minipar.optim import SGD, AdamW
from minipar.parallel.registry import STRATEGIES, make_strategy, strategies_with
from minipar.parallel.strategy import Microbatch
from minipar.testing.worlds import worlds

CONFIG = GPTConfig(23, context=16, num_layers=4, num_heads=2, width=16, dropout=0.1)
NOT_HERE = ("dp", "pipedream", "two_bw", "terapipe")       # rank 0 steps; or pp alone


def train(comm, name, kinds=(), activations=False, num_steps=3):
    """Losses and final parameters; whatever the strategy allocates of `kinds` is in a file."""
    file, ledger = MappedFile(), Ledger()
    with ledger.recording(), allocating_with(dict.fromkeys(kinds, file.zeros)):
        model = GPT(CONFIG).initialize(1, np.float64)
        options = {"bucket_mb": 0.01} if name in strategies_with("bucket_mb") else {}
        strategy = make_strategy(name, model, comm, **options)
        optimizer = AdamW(strategy.slabs, lr=1e-2)
    offload = OffloadActivations(file.empty, model.parameters(), *copy_streams(comm), min_bytes=1)
    ids = np.random.default_rng(comm.rank).integers(0, 23, (4, 17))
    batches = [Microbatch(ids[i:i + 2, :-1], ids[i:i + 2, 1:], np.arange(2) + i) for i in (0, 2)]
    losses = []
    for i in range(num_steps):
        optimizer.zero_grad()
        with ledger.recording(), offload.recording() if activations else nullcontext():
            losses.append(strategy.forward_backward(batches, 5, i))
        strategy.clip_grad_norm(0.5)
        strategy.step(optimizer)
    assert (offload.num_in > 0) == activations
    return losses, strategy.state_dict(), ledger, optimizer


@worlds(1, 3, mpi=(4,))
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow)
                                  if name in ("zero2", "zero3", "fsdp") else name
                                  for name in STRATEGIES if name not in NOT_HERE])
@pytest.mark.one_in(4)
def test_every_strategy_with_optimizer_states_and_activations_offloaded(world, name):
    def body(comm):
        plain, moved = train(comm, name), train(comm, name, ["optimizer states"], True)
        assert moved[0] == plain[0]
        for key, values in plain[1].items():
            np.testing.assert_array_equal(moved[1][key], values)
        assert all(is_mapped(array) for state in moved[3].states for array in state.values())
        assert plain[2].live_of["optimizer states"] > 0 == moved[2].live_of["optimizer states"]
    world.run(body)


@worlds(1, 2, mpi=(4,))
@pytest.mark.one_in(3)
def test_fsdp_with_everything_in_a_file(world):
    def body(comm):
        kinds = ["parameters", "gradients", "optimizer states"]
        plain, moved = train(comm, "fsdp"), train(comm, "fsdp", kinds, True)
        assert moved[0] == plain[0]
        for key, values in plain[1].items():
            np.testing.assert_array_equal(moved[1][key], values)
        ledger = moved[2]
        assert not ledger.live_of["parameters"] and not ledger.live_of["gradients"]
        shard = sum(slab.data.nbytes for slab in moved[3].slabs)
        assert ledger.live_of["offloaded"] >= 4 * shard         # of whole pages, counted by arrays
    world.run(body)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="asks Linux what is resident")
def test_nothing_stays_resident_after_a_step():
    """Of 16Ψ = 4.6 MB in the file; it is mapped under a name that says it was deleted."""
    config = GPTConfig(64, context=16, num_layers=5, num_heads=2, width=64)

    def resident():
        mappings = re.split(r"\n(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text())
        return 1024 * sum(int(re.search(r"Rss: +(\d+)", each)[1]) for each in mappings
                          if "deleted" in each.partition("\n")[0])

    def body(comm):
        file = MappedFile()
        kinds = "parameters", "gradients", "optimizer states"
        with allocating_with(dict.fromkeys(kinds, file.zeros)):
            strategy = make_strategy("fsdp", GPT(config).initialize(), comm)
            optimizer = AdamW(strategy.slabs)
        ids = np.random.default_rng(0).integers(0, 64, (2, 17))
        before = resident()
        for i in range(2):
            optimizer.zero_grad()
            strategy.forward_backward([Microbatch(ids[:, :-1], ids[:, 1:], np.arange(2))], 0, i)
            strategy.clip_grad_norm(0.01)
            strategy.step(optimizer)
            assert resident() - before < 200_000 < sum(slab.data.nbytes for slab in strategy.slabs)
        assert file.size > 4e6
    Cluster(1).run(body)


def test_weights_of_one_block_at_a_time_generate_the_same():
    file, ledger = MappedFile(), Ledger()
    plain = GPT(CONFIG).initialize(1)
    prompt = np.array([1, 2, 3])
    expected = list(generate(plain, prompt, 5))

    def body(comm):
        in_file = dict.fromkeys(["parameters", "gradients"], file.zeros)
        with ledger.recording(), allocating_with(in_file):
            model = GPT(CONFIG).initialize(1)
            strategy = make_strategy("fsdp", model, comm)
            assert list(generate(model, prompt, 5)) == expected
            with no_grad():
                model(prompt[None])
        return [slab.data.nbytes for slab in strategy.slabs]
    (sizes,), _ = Cluster(1).run(body)
    weights = ledger.peak - ledger.peak_of["KV cache"]
    assert weights == ledger.peak_of["communication"] == max(sizes)
    assert sum(sizes) > 2 * max(sizes)


def test_pipelines_move_what_waits_for_backward():

    def body(comm, offloads):
        model = GPT(CONFIG).initialize(1, np.float64)
        strategy = make_strategy("ddp", model, DeviceMesh(comm, pp=2))
        offload = OffloadActivations(MappedFile().empty, model.parameters(), *copy_streams(comm),
                                     min_bytes=1)
        ids = np.random.default_rng(0).integers(0, 23, (8, 17))
        batches = [Microbatch(ids[i:i + 2, :-1], ids[i:i + 2, 1:], np.arange(2) + i)
                   for i in range(0, 8, 2)]
        optimizer = SGD(strategy.slabs, 0.1)
        with offload.recording() if offloads else nullcontext():
            loss = strategy.forward_backward(batches, 5, 0)
        strategy.step(optimizer)
        assert (offload.num_in > 20) == offloads
        return loss, strategy.state_dict()
    plain = Cluster(2).run(metered(partial(body, offloads=False)))[0]
    moved = Cluster(2).run(metered(partial(body, offloads=True)))[0]
    for (loss, state), (other, theirs) in zip(moved, plain):
        assert loss == other
        for name, values in theirs.items():
            np.testing.assert_array_equal(state[name], values)
