"""One training step of an MLP 784-512-512-10 on a batch of 128: SGD and Adam, against PyTorch.

So small that the cost of each call counts; a step moves every weight through the cache several
times.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from minipar.backend.malloc import keep_freed_memory
from minipar.nn import MLP
from minipar.optim import SGD, Adam

from .timing import (
    Row,
    check_same,
    import_torch,
    interleave,
    medians,
    milliseconds,
    training_step,
)

SIZES, BATCH, RATE = (784, 512, 512, 10), 128, 1e-3


def measure(num_rounds: int) -> Iterator[Row]:
    """Yield a row for each optimizer."""
    keep_freed_memory()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCH, SIZES[0])).astype(np.float32)
    labels = rng.integers(SIZES[-1], size=BATCH)
    for name, kind, target in (("SGD", SGD, 1.1), ("Adam", Adam, 1.0)):
        yield _measure(name, kind, target, x, labels, 20 * num_rounds)


def _measure(name: str, kind: type, target: float, x: np.ndarray, labels: np.ndarray,
             num_rounds: int) -> Row:
    model = MLP(SIZES).initialize(seed=0)
    optimizer = kind(model.slabs, lr=RATE)
    steps = {"minipar": training_step(optimizer, lambda: model.loss(x, labels)),
             **_torch_steps(name, model.state_dict(), x, labels)}
    check_same(f"MLP step, {name}", steps)
    seconds = medians(interleave(steps, num_rounds))
    ours = seconds.pop("minipar")
    row = Row(f"MLP step, {name}", f"{milliseconds(ours)}, {len(x) / ours:,.0f} samples/s")
    if not seconds:
        return row
    theirs = seconds["PyTorch"]
    return replace(row, theirs=f"PyTorch {milliseconds(theirs)}", ratio=theirs / ours,
                   target=target)


def _torch_steps(name: str, state: dict[str, np.ndarray], x: np.ndarray,
                 labels: np.ndarray) -> dict:
    """PyTorch's step with its optimizer of that name; none if it is not installed."""
    torch = import_torch()
    if torch is None:
        return {}
    from .baselines.torch_models import TorchMLP, copy_state
    model = copy_state(state, TorchMLP(SIZES))
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=RATE)
    x, labels = torch.tensor(x), torch.tensor(labels)
    return {"PyTorch": training_step(optimizer, lambda: model.loss(x, labels))}
