"""One training step of a GPT: minipar's autograd, the hand-written floor, PyTorch eager.

Forward, backward and AdamW on float32, one thread.  4 layers, width 256, 8 heads, sequence 128,
batch 8, vocabulary 512, a head of its own.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from minipar.backend.malloc import keep_freed_memory
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, GPTConfig
from minipar.optim import AdamW
from minipar.parallel.cost.activations import gpt_activations

from .baselines.numpy_gpt import NumpyGPT
from .timing import (
    Row,
    check_same,
    import_torch,
    interleave,
    medians,
    milliseconds,
    training_step,
)

CONFIG = GPTConfig(vocab_size=512, context=128, num_layers=4, num_heads=8, width=256, tied=False)
BATCH = 8


def make_batch(num_samples: int, config: GPTConfig) -> tuple[np.ndarray, np.ndarray]:
    """Random ids and targets (num_samples, context)."""
    tokens = np.random.default_rng(0).integers(config.vocab_size,
                                               size=(num_samples, config.context + 1))
    return tokens[:, :-1].copy(), tokens[:, 1:].copy()


def make_step(model: GPT, ids: np.ndarray, targets: np.ndarray) -> Callable[[], float]:
    """minipar's training step, with AdamW."""
    return training_step(AdamW(model.slabs, lr=1e-3), lambda: model.loss(ids, targets))


def torch_steps(state: dict[str, np.ndarray], ids: np.ndarray, targets: np.ndarray,
                config: GPTConfig, device: str = "cpu") -> dict[str, Callable[[], float]]:
    """PyTorch's training step with its fused AdamW; empty if PyTorch is not installed."""
    torch = import_torch()
    if torch is None:
        return {}
    from .baselines.torch_models import TorchGPT, copy_state
    model = copy_state(state, TorchGPT(config)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    ids, targets = torch.tensor(ids, device=device), torch.tensor(targets, device=device)
    return {"PyTorch": training_step(optimizer, lambda: model.loss(ids, targets))}


def measure(num_rounds: int, malloc: str = "kept") -> Iterator[Row]:
    """Yield the rows for one setting of malloc, "kept" (freed memory is kept) or "stock"."""
    kept = malloc == "kept"
    if kept and not keep_freed_memory():
        yield Row("GPT step, freed memory kept", "this C library has no such setting")
        return
    ids, targets = make_batch(BATCH, CONFIG)
    model = GPT(CONFIG).initialize(seed=0)
    floor = NumpyGPT(model.state_dict(), CONFIG.num_heads, lr=1e-3)
    steps = {"minipar": make_step(model, ids, targets), "floor": lambda: floor.step(ids, targets),
             **torch_steps(model.state_dict(), ids, targets, CONFIG)}
    check_same("GPT step", steps)
    seconds = medians(interleave(steps, num_rounds))

    ours, what = seconds["minipar"], f"GPT step, {'freed memory kept' if kept else 'stock malloc'}"
    row = Row(what, f"{milliseconds(ours)}, {ids.size / ours:,.0f} tokens/s")
    if "PyTorch" in seconds:
        row = replace(row, theirs=f"PyTorch {milliseconds(seconds['PyTorch'])}",
                      ratio=seconds["PyTorch"] / ours, target=1.10 if kept else None)
    yield row
    yield Row("  its time over hand-written NumPy's", milliseconds(ours),
              f"floor {milliseconds(seconds['floor'])}", ours / seconds["floor"],
              1.03 if kept else None, at_least=False)
    if kept:
        yield measure_products(num_rounds)
        yield measure_saved(model, ids, targets)


def measure_products(num_rounds: int) -> Row:
    """The speed of the matrix products, which take most of the step: the part of the BLAS."""
    rows, width = BATCH * CONFIG.context, CONFIG.width
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32)
            for shape in ((rows, width), (width, 4 * width)))
    products, torch = {"minipar": lambda: x @ w}, import_torch()
    if torch is not None:
        torch_x, torch_w = torch.tensor(x), torch.tensor(w.T.copy()).T      # as nn.Linear has it
        products["PyTorch"] = lambda: torch_x @ torch_w
    seconds = medians(interleave(products, 10 * num_rounds))
    rates = {name: 2 * rows * width * 4 * width / s / 1e9 for name, s in seconds.items()}
    row = Row(f"  of it: a matrix product, ({rows}, {width}) ({width}, {4 * width})",
              f"{rates['minipar']:.0f} GFLOP/s")
    if "PyTorch" in rates:
        row = replace(row, theirs=f"PyTorch {rates['PyTorch']:.0f} GFLOP/s",
                      ratio=rates["minipar"] / rates["PyTorch"])
    return row


def measure_saved(model: GPT, ids: np.ndarray, targets: np.ndarray) -> Row:
    """Bytes saved by one forward, which must be exactly those of the formula."""
    ledger, expected = Ledger(model.parameters()), gpt_activations(model.config, len(ids))
    with ledger.recording():
        loss = model.loss(ids, targets)
    assert ledger.live == expected, f"saved {ledger.live} bytes, the formula says {expected}"
    assert math.isfinite(loss.item())
    return Row("  saved activations", f"{ledger.live / 2**20:.2f} MiB",
               f"formula {expected / 2**20:.2f} MiB", ledger.live / expected, 1.0, at_least=False)
