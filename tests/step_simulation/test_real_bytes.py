"""What a simulated step keeps and sends, in bytes, is what a small real one keeps and sends."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from minipar.backend import allocating_with
from minipar.backend.mapped_file import MappedFile
from minipar.backend.shape_array import ShapeArray
from minipar.comm.mesh import DeviceMesh
from minipar.memory.offload.activations import OffloadActivations
from minipar.memory.temporaries import StepLedger
from minipar.nn import GPT, GPTConfig, MoEConfig, RopeConfig
from minipar.nn.moe import Router
from minipar.optim import AdamW
from minipar.plan.cluster import read_cluster
from minipar.plan.layout import Layout
from minipar.step_simulation import simulate_step
from minipar.step_simulation.measure import random_microbatches
from minipar.step_simulation.step import make_parallel, mesh_sizes, take_step
from minipar.testing import worlds

MODEL = GPTConfig(64, context=16, num_layers=4, num_heads=4, width=32)
WIDE = GPTConfig(64, context=128, num_layers=2, num_heads=4, width=128)
EXPERTS = replace(MODEL, experts=MoEConfig(4, 2))
# each expert has 11 or 12 of a microbatch's 45 choices; every second block has experts
UNEVEN = replace(MODEL, context=15, num_kv_heads=2, norm="rms", mlp="swiglu", bias=False,
                 rope=RopeConfig(10000.0), tied=False,
                 experts=MoEConfig(4, 3, every=2, num_shared=1, width=24))
CASES = [
    (MODEL, {"dp": 4, "kind": "zero1", "offload": "optimizer"}),
    (MODEL, {"dp": 4, "kind": "fsdp", "offload": "optimizer"}),
    (MODEL, {"dp": 2, "pp": 2, "offload": "optimizer"}),
    (WIDE, {"dp": 2, "tp": 2, "offload": "optimizer,activations"}),
    (EXPERTS, {"dp": 4, "ep": 4}), (EXPERTS, {"dp": 4, "ep": 2, "kind": "fsdp"}),
    (EXPERTS, {"dp": 2, "ep": 2, "tp": 2, "sp": True, "kind": "zero1", "offload": "optimizer"}),
    (UNEVEN, {"dp": 4, "ep": 2, "kind": "zero1"}), (UNEVEN, {"dp": 2, "ep": 2, "pp": 2}),
]


def real_steps(comm, model, layout):
    """(bytes at the peak by kind, most bytes on the host, bytes of all-to-alls) of this rank."""
    file, ledger = MappedFile(), StepLedger()
    kinds = ["optimizer states"] * ("optimizer" in layout.offload)
    with ledger.recording(), allocating_with(dict.fromkeys(kinds, file.zeros)):
        strategy = make_parallel(layout, GPT(model).initialize(0),
                                 DeviceMesh(comm, **mesh_sizes(layout)), bucket_mb=100.0)
        optimizer = AdamW(strategy.slabs)
    for _ in range(2 if strategy.reduces_each_backward else 1):
        ledger.forget_peaks()
        comm.start_trace()
        offload = OffloadActivations(file.empty, strategy.model.parameters())
        with ledger.recording(), offload.recording() if "activations" in layout.offload \
                else nullcontext():
            take_step(strategy, optimizer, random_microbatches(model, layout))
        sent = comm.stop_trace().bytes_sent(comm.rank, "all_to_all over ep")
    return ledger.at_peak, ledger.peak_of["offloaded"], sent


@worlds(4)
@pytest.mark.parametrize("model, sizes", CASES, ids=lambda part: " ".join(
    f"{name}={value}" for name, value in part.items()) if isinstance(part, dict) else "")
@pytest.mark.one_in(3)
def test_bytes_of_a_simulated_step_are_those_of_a_real_one(world, model, sizes, monkeypatch):
    layout = Layout(**{"sp": False, "batch": 4 * sizes["dp"]} | sizes)
    step = simulate_step(read_cluster("1x4:cpu_core"), model, layout, traced=range(4))
    choose = Router.choose
    monkeypatch.setattr(Router, "choose", lambda router, scores: choose(        # in turn
        router, ShapeArray(scores.shape, np.float32)))

    def body(comm):
        memory, on_host, sent = real_steps(comm, model, layout)
        number = step.stands_for[comm.rank]
        one = step.ranks[number]
        assert one.on_host == on_host and (on_host > 0) == bool(layout.offload)
        assert step.trace.bytes_sent(number, "all_to_all over ep") == sent
        assert (sent > 0) == bool(model.experts)
        if "activations" not in layout.offload:         # those on their way depend on the link
            assert sum(one.memory.values()) == sum(memory.values()) - memory.get("offloaded", 0)
            for kind in ("parameters", "gradients", "optimizer states"):
                assert one.memory.get(kind, 0) == memory.get(kind, 0)
    world.run(body)
