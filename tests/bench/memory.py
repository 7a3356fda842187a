"""The time that saved memory costs: the GPT's training step with every option, and its peak.

One process.  The peak is that of activations, counted by the ledger in a step of its own.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from minipar.backend.malloc import keep_freed_memory
from minipar.backend.mapped_file import MappedFile
from minipar.memory.ledger import Ledger
from minipar.memory.offload.activations import OffloadActivations
from minipar.memory.remat.plans import rematerialize
from minipar.memory.remat.policies import plan_policy
from minipar.memory.remat.selective import rematerialize_attention
from minipar.mixed_precision import precision_preset, set_precision
from minipar.nn import GPT
from minipar.parallel.cost.activations import gpt_activations

from .gpt import BATCH, CONFIG, make_batch, make_step
from .timing import Row, interleave, medians, milliseconds

PLANS = ("full", "every:2", "sqrt")
FORMATS = ("bf16", "fp16", "fp8")


def options() -> dict[str, Callable[[], tuple[GPT, Callable[[], AbstractContextManager]]]]:
    """By name: a function that makes the model, and the context in which its steps run."""
    def plain() -> GPT:
        return GPT(CONFIG).initialize(seed=0)

    def offloaded() -> tuple[GPT, Callable[[], AbstractContextManager]]:
        model = plain()
        return model, OffloadActivations(MappedFile().empty, model.parameters()).recording

    found = {"none": lambda: (plain(), nullcontext),
             "remat selective": lambda: (rematerialize_attention(plain()), nullcontext)}
    plans = {plan: plan for plan in PLANS}
    plans["optimal, half of the bytes"] = f"optimal:{gpt_activations(CONFIG, BATCH) // 2}B"
    for name, plan in plans.items():
        found[f"remat {name}"] = lambda plan=plan: (rematerialize(plain(), plan_policy(plan)),
                                                    nullcontext)
    found["offload activations"] = offloaded
    for fmt in FORMATS:
        found[fmt] = lambda fmt=fmt: (
            set_precision(model := plain(), precision_preset(fmt, model)), nullcontext)
    return found


def measure(num_rounds: int) -> list[Row]:
    """A row for each option: its time over that of a plain step, and its peak of activations."""
    keep_freed_memory()
    ids, targets = make_batch(BATCH, CONFIG)
    steps, peaks = {}, {}
    for name, make in options().items():
        model, context = make()
        step = make_step(model, ids, targets)

        def run(step: Callable = step, context: Callable = context) -> float:
            with context():
                return step()
        run()                           # what is measured or planned at the first batch
        ledger = Ledger(model.parameters())
        with ledger.recording():
            run()
        steps[name], peaks[name] = run, ledger.peak_of["activations"]
    seconds = medians(interleave(steps, num_rounds))
    return [Row(f"GPT step, {name}", f"{milliseconds(seconds[name])}, peak {peak / 1e6:.1f} MB",
                f"none {milliseconds(seconds['none'])}", seconds[name] / seconds["none"])
            for name, peak in peaks.items()]
