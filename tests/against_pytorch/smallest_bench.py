"""`make bench` with every size at its smallest: the worker that test_bench.py lets it start."""

import sys
from importlib import import_module
from typing import Any

from minipar.nn import GPTConfig
from tests.bench.__main__ import main

GPT = GPTConfig(vocab_size=17, context=64, num_layers=4, num_heads=2, width=64, tied=False)
SMALLEST: dict[str, dict[str, Any]] = {     # in this order: some import the sizes of gpt
    "gpt": {"CONFIG": GPT},
    "gpt2_small": {"CONFIG": GPT},
    "gpu": {},                              # has the sizes of gpt and gpt2_small
    "mlp": {"SIZES": (16, 8, 10), "BATCH": 8},
    "small_models": {"SIZES": (16, 8, 9, 8, 9, 8, 9, 10), "BATCH": 8},
    "decode": {"TOGETHER": 2},
    "memory": {},
    "serve": {"NUM_REQUESTS": 2, "PROMPT": 4, "ANSWER": 4},
    "simulators": {"ALL_REDUCES": (("ring", 8, 8, 350_000), ("recursive_doubling", 16, 4, 220_000)),
                   "NUM_MICROBATCHES": 128},
    "on_ranks.deep_mlp": {},
    "on_ranks.data_parallel": {},
    "on_ranks.data_parallel_pytorch": {},
    "on_ranks.pipeline": {"SIZES": (16, *[8] * 6, 10), "BATCH": 8},
    "on_ranks.bubbles": {},
    "on_ranks.tensor_parallel": {},
    "on_ranks.collectives": {},
}


def shrink() -> None:
    """Give every measurement its smallest sizes."""
    for name, sizes in SMALLEST.items():
        module = import_module(f"tests.bench.{name}")
        for size, value in sizes.items():
            assert hasattr(module, size), f"{name} has no {size}"
            setattr(module, size, value)


if __name__ == "__main__":
    shrink()
    sys.exit(main(sys.argv[1:]))
