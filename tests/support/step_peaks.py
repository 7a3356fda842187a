"""A training step of a GPT in several ways: its peak by a ledger, and by Python's allocator."""

import gc
import tracemalloc
from functools import cache

import numpy as np

from minipar.autograd import backward
from minipar.memory.ledger import Ledger
from minipar.memory.remat.plans import rematerialize
from minipar.memory.remat.policies import plan_policy
from minipar.mixed_precision import precision_preset, set_precision
from minipar.nn import GPT, GPTConfig
from minipar.nn.step_context import training_step
from minipar.optim import AdamW

CONFIG = GPTConfig(vocab_size=96, context=128, num_layers=6, num_heads=4, width=64)
ROWS = 8
WAYS = {"float32": lambda model: model,
        "bf16": lambda model: set_precision(model, precision_preset("bf16", model)),
        "fp8": lambda model: set_precision(model, precision_preset("fp8", model)),
        "full": lambda model: rematerialize(model, plan_policy("full")),
        "full, bf16": lambda model: WAYS["full"](WAYS["bf16"](model))}


@cache
def peaks_of(way: str, kind: type[Ledger], config: GPTConfig = CONFIG) -> tuple[int, int]:
    """(bytes that a ledger of this kind counts, that Python's allocator had) at the peak of a step.

    It is the second of two steps, when the optimizer has its states.  Python's own memory is left
    out.
    """
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (2, ROWS, config.context))
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        ledger = kind()
        with ledger.recording():
            model = WAYS[way](GPT(config)).initialize(0)
            optimizer = AdamW(model.slabs)
            for step in range(2):
                ledger.forget_peaks()
                tracemalloc.reset_peak()
                of_python = tracemalloc.get_traced_memory()[0] - ledger.live
                optimizer.zero_grad()
                with training_step(0, step, range(ROWS)):
                    loss = model.loss(*ids)
                backward(loss)
                loss = None
                optimizer.step()
        return ledger.peak, tracemalloc.get_traced_memory()[1] - of_python
    finally:
        tracemalloc.stop()
        gc.enable()
