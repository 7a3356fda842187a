"""One training step of GPT-2 small: 124 M parameters, 4 × 256 tokens, float32, AdamW, one thread.

    what            a step, against PyTorch eager with its fused AdamW
    where           the share of each kind of operation in minipar's step, as its meter times it

The head has 50,257 columns, so that it and its cross-entropy take about a third of the step.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator

from minipar.autograd.meter import Meter
from minipar.backend.malloc import keep_freed_memory
from minipar.nn import GPT, GPTConfig

from .gpt import make_batch, make_step, torch_steps
from .timing import Row, check_same, interleave, medians, milliseconds

CONFIG = GPTConfig(vocab_size=50_257, context=256, num_layers=12, num_heads=12, width=768)
BATCH, NUM_SHARES = 4, 6


def measure(num_rounds: int) -> Iterator[Row]:
    """Yield the rows; a step takes seconds, so that a few rounds suffice."""
    keep_freed_memory()
    ids, targets = make_batch(BATCH, CONFIG)
    model = GPT(CONFIG).initialize(seed=0)
    steps = {"minipar": make_step(model, ids, targets),
             **torch_steps(model.state_dict(), ids, targets, CONFIG)}
    check_same("a step of GPT-2 small", steps)
    seconds = medians(interleave(steps, max(2, num_rounds // 5), num_warmup=1))
    ours = seconds["minipar"]
    what, rate = "GPT-2 small, 4 × 256 tokens", f"{milliseconds(ours)}, {ids.size / ours:,.0f}"
    row = Row(what, f"{rate} tokens/s")
    if "PyTorch" in seconds:
        theirs = seconds["PyTorch"]
        row = Row(what, f"{rate} tokens/s", f"PyTorch {milliseconds(theirs)}", theirs / ours)
    yield row
    yield from share_rows(steps["minipar"])


def share_rows(step: Callable[[], float]) -> list[Row]:
    """The operations that take most of a step, forward and backward apart."""
    spent: Counter[str] = Counter()

    def stop(start: float, name: str, phase: str, flops: int, num_bytes: int) -> None:
        spent[f"{name}, {phase}"] += time.perf_counter() - start
    meter, start = Meter(time.perf_counter, stop), time.perf_counter()
    with meter.running():
        step()
    whole = time.perf_counter() - start
    return [Row(f"  {name}", milliseconds(seconds), f"{seconds / whole:.0%} of the step")
            for name, seconds in spent.most_common(NUM_SHARES)]
