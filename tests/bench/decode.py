"""Decoding of the GPT that `make demo` trains: one sequence by `generate`, and many together.

float32, one thread, 4 layers, width 128, 4 heads, context 64, vocabulary 96.  The likeliest tokens
after a prompt of 8, up to the context.  PyTorch's cache is a tensor of the whole context, too.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from minipar.backend.malloc import keep_freed_memory
from minipar.inference import Engine, ModelRunner, SamplingParams, SchedulerConfig, generate
from minipar.inference.cache import KVSizes, PagedKVCache, SequenceInput
from minipar.inference.model import forward_over_cache
from minipar.nn import GPT, GPTConfig

from .baselines.numpy_decode import NumpyDecoder
from .timing import Row, import_torch, interleave, medians

CONFIG = GPTConfig(vocab_size=96, context=64, num_layers=4, num_heads=4, width=128)
PROMPT = [*range(8)]
NUM_TOKENS = CONFIG.context - len(PROMPT) + 1
BLOCK, TOGETHER = 16, 32
NUMPY_SPEED, TORCH_SPEED, BATCH_SPEED = 0.9, 1.2, 5.0           # targets


def measure(num_rounds: int) -> Iterator[Row]:
    """Yield the rows of one process."""
    keep_freed_memory()
    model = GPT(CONFIG).initialize(seed=0)
    yield from one_sequence(model, 2 * num_rounds)
    yield from together(model, num_rounds)


# ---- one sequence

def one_sequence(model: GPT, num_rounds: int) -> list[Row]:
    """Tokens per second of one sequence, against NumPy by hand and PyTorch."""
    by_hand = NumpyDecoder(model.state_dict(), CONFIG.num_heads)
    runs = {"minipar": lambda: list(generate(model, np.array(PROMPT), NUM_TOKENS, temperature=0)),
            "NumPy": lambda: by_hand.generate(PROMPT, NUM_TOKENS), **torch_run(model)}
    answers = {name: run() for name, run in runs.items()}
    assert len({*map(tuple, answers.values())}) == 1, f"different tokens: {answers}"
    seconds = medians(interleave(runs, num_rounds))
    speed = {name: NUM_TOKENS / value for name, value in seconds.items()}
    row = Row("decode, batch 1: its speed over hand-written NumPy's",
              per_second(speed["minipar"]), f"NumPy {per_second(speed['NumPy'])}",
              speed["minipar"] / speed["NumPy"], NUMPY_SPEED)
    if "PyTorch" not in speed:
        return [row]
    return [row, replace(row, what="  over PyTorch's, eager, with a cache",
                         theirs=f"PyTorch {per_second(speed['PyTorch'])}",
                         ratio=speed["minipar"] / speed["PyTorch"], target=TORCH_SPEED)]


def torch_run(model: GPT) -> dict[str, Callable[[], list[int]]]:
    """{"PyTorch": the greedy decoding of the same model}; empty if PyTorch is not installed."""
    torch = import_torch()
    if torch is None:
        return {}
    from .baselines.torch_models import TorchDecoder, TorchGPT, copy_state
    decoder = TorchDecoder(copy_state(model.state_dict(), TorchGPT(CONFIG)), CONFIG)
    return {"PyTorch": lambda: decoder.generate(PROMPT, NUM_TOKENS)}


# ---- many sequences

def together(model: GPT, num_rounds: int) -> Iterator[Row]:
    """Tokens per second of 32 sequences at once: steps of the model alone, and the whole engine."""
    for what, run in (("model and paged cache", step_of), ("engine", requests_of)):
        runs = {str(n): run(model, n) for n in (1, TOGETHER)}
        seconds = medians(interleave(runs, num_rounds, num_warmup=1))
        one, many = 1 / seconds["1"], TOGETHER / seconds[str(TOGETHER)]
        tokens = 1 if run is step_of else NUM_TOKENS
        yield Row(f"{TOGETHER} sequences at once, {what}: its speed over one at a time",
                  per_second(many * tokens), f"one {per_second(one * tokens)}", many / one,
                  BATCH_SPEED)


def step_of(model: GPT, num_sequences: int) -> Callable[[], None]:
    """A step that decodes one token of each of `num_sequences` sequences of 40."""
    tables = np.arange(num_sequences * 4).reshape(-1, 4).tolist()
    cache = PagedKVCache(KVSizes.of(model), num_sequences * 4, BLOCK, model.slabs[0].data)
    forward_over_cache(model, cache, [SequenceInput(range(40), 0, table) for table in tables])
    inputs = [SequenceInput([i], 40, table) for i, table in enumerate(tables)]
    return lambda: forward_over_cache(model, cache, inputs)


def requests_of(model: GPT, num_requests: int) -> Callable[[], None]:
    """An engine that answers `num_requests` requests, all there at the start."""
    num_blocks = 4 * num_requests

    def run() -> None:
        engine = Engine(ModelRunner(model, num_blocks, BLOCK), SchedulerConfig(num_blocks, BLOCK))
        for _ in range(num_requests):
            engine.submit(PROMPT, NUM_TOKENS - 1, SamplingParams(temperature=0))
        engine.run()
    return run


def per_second(tokens: float) -> str:
    """A speed as text."""
    return f"{tokens:,.0f} tokens/s"
