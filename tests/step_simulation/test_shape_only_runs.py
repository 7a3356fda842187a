"""Every way of training runs on arrays without numbers: same time, messages, bytes and memory."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from minipar.backend.mapped_file import MappedFile
from minipar.backend.shape_array import ShapeArray
from minipar.comm.mesh import DeviceMesh
from minipar.comm.simulated import Cluster
from minipar.comm.simulated.copy_stream import copy_streams
from minipar.launcher import metered
from minipar.memory.offload.activations import OffloadActivations
from minipar.memory.remat.plans import rematerialize
from minipar.memory.remat.policies import plan_policy
from minipar.memory.remat.selective import rematerialize_attention
from minipar.memory.temporaries import StepLedger
from minipar.mixed_precision import precision_preset, set_precision
from minipar.nn import GPT, GPTConfig, MoEConfig, RopeConfig
from minipar.optim import AdamW
from minipar.parallel.pipeline.schedule.registry import SCHEDULES
from minipar.parallel.registry import STRATEGIES, make_strategy
from minipar.parallel.strategy import Microbatch

MODEL = GPTConfig(vocab_size=13, context=8, num_layers=2, num_heads=4, width=16)
LLAMA = replace(MODEL, num_kv_heads=2, norm="rms", mlp="swiglu", rope=RopeConfig(10000.0),
                bias=False, tied=False)
ALL = {"pp": 2, "dp": 2, "tp": 2}
CASES = [
    *[(name, {"dp": 3}, {}) for name, entry in STRATEGIES.items()
      if not entry.kind.__module__.startswith("minipar.parallel.pipeline")],
    *[("zero1", ALL, {"schedule": name}) for name in SCHEDULES if name != "interleaved"],
    ("terapipe", {"pp": 2}, {"num_slices": 2}),
    ("ddp", ALL, {"schedule": "interleaved", "virtual_stages": 2}),
    ("zero2", {"pp": 2, "dp": 2}, {}), ("fsdp", {"pp": 2, "dp": 2}, {}),
    ("ddp", {"pp": 2, "tp": 2}, {"scatter_gather": True}),
    ("zero1", {"pp": 2, "tp": 2}, {"sequence_parallel": True}),
    ("fsdp", {"dp": 2, "tp": 2}, {"sequence_parallel": True}),
    ("ddp", {"cp": 2, "dp": 2}, {}), ("fsdp", {"cp": 2, "tp": 2}, {}),
    *[("zero1", {"dp": 2}, {"remat": name}) for name in ("selective", "full", "sqrt", "every:2")],
    *[("zero1", {"dp": 2, "tp": 2}, {"precision": name}) for name in ("bf16", "fp16", "fp8")],
    ("zero1", ALL, {"model": LLAMA}),
    ("ddp", {"dp": 2, "tp": 2}, {"model": replace(MODEL, dropout=0.1)}),
    # all tokens use all experts, whatever the router says
    *[("zero1", mesh, {"model": replace(LLAMA, experts=MoEConfig(2, 2, num_shared=1))})
      for mesh in ({"dp": 4, "ep": 2}, {"pp": 2, "dp": 2, "ep": 2}, {"dp": 2, "ep": 2, "tp": 2})],
    *[("zero1", mesh, {"offloads": True}) for mesh in (ALL, {"dp": 2})],
]


def run(kind: str, mesh: dict, array=None, model=MODEL, precision="", remat="", offloads=False,
        **options):
    """Two steps; all that a simulated cluster knows about them."""
    def main(comm):
        gpt = GPT(model)
        if precision:
            set_precision(gpt, precision_preset(precision, gpt))
        gpt.initialize(array=array)
        if remat == "selective":
            rematerialize_attention(gpt)
        elif remat:
            rematerialize(gpt, plan_policy(remat))
        ledger = StepLedger()
        with ledger.recording():
            strategy = make_strategy(kind, gpt, DeviceMesh(comm, **mesh), **options)
            optimizer = AdamW(strategy.slabs)
            rows = strategy.rows(6)
            ids = np.random.default_rng(0).integers(0, 13, (6, 8))[rows.start:rows.stop]
            batch = [Microbatch(part, part, np.arange(len(part)))
                     for part in np.array_split(ids, 2)]
            offload = OffloadActivations(
                MappedFile().empty if array is None else ShapeArray, gpt.parameters(),
                *copy_streams(comm), min_bytes=256)         # not the tokens
            for step in range(2):
                optimizer.zero_grad()
                with offload.recording() if offloads else nullcontext():
                    strategy.forward_backward(batch, step=step)
                strategy.clip_grad_norm(1e9)        # on numbers, it then changes nothing either
                strategy.step(optimizer)
            assert (offload.num_in > 0) == offloads
        return ledger.peak, ledger.at_peak, comm.now()

    cluster = Cluster(int(np.prod([size for axis, size in mesh.items() if axis != "ep"])),
                      trace=True)
    ranks, seconds = cluster.run(metered(main))
    return seconds, ranks, cluster.trace.messages, cluster.trace.spans


@pytest.mark.parametrize("kind, mesh, options", CASES, ids=lambda part: " ".join(
    f"{name}={value if isinstance(value, str | int) else '…'}" for name, value in part.items())
    if isinstance(part, dict) else part)
@pytest.mark.one_in(6)
def test_a_run_without_numbers_takes_what_a_run_with_numbers_takes(kind, mesh, options):
    real, shapes = (run(kind, mesh, array, **options)
                    for array in (None, ShapeArray((), np.float32)))
    assert shapes == real
    seconds, ranks, messages, spans = real
    assert seconds > 0 and messages and spans and all(peak > 0 for peak, *_ in ranks)
