"""Small models, where the cost of each call counts: operations on 4 × 8 arrays, and a deep MLP.

    operations      linear and ReLU, forward and backward, against NumPy without autograd
    784-128-127-126-125-124-123-10      128 samples in 4 microbatches of 32, SGD: the model and the
                    protocol of ShallowSpeed, against the same arithmetic in NumPy and mpi4py
                    (`baselines/numpy_mlp.py`)

Microseconds of an operation are the least of all rounds, the rest are medians.
"""

from collections.abc import Callable, Iterator

import numpy as np

from minipar import autograd as ag
from minipar.autograd import Tensor
from minipar.backend.malloc import keep_freed_memory
from minipar.data import Batch
from minipar.nn import MLP
from minipar.optim import SGD

from .baselines import numpy_mlp
from .timing import (
    Row,
    check_same,
    import_torch,
    interleave,
    medians,
    milliseconds,
)

NUM_LAYERS, ROWS, WIDTH = 12, 4, 8
SIZES, BATCH, NUM_MICROBATCHES, RATE = (784, 128, 127, 126, 125, 124, 123, 10), 128, 4, 0.006
MICROSECONDS, TIMES_NUMPY = 9.0, 1.25          # targets


def measure(num_rounds: int) -> Iterator[Row]:
    """Yield the rows of one process."""
    keep_freed_memory()
    yield from operation_rows(100 * num_rounds)
    yield mlp_row(20 * num_rounds)


# ---- operations

def operation_rows(num_rounds: int) -> list[Row]:
    """Microseconds of an operation with its backward, of minipar, NumPy and PyTorch."""
    rng = np.random.default_rng(0)
    x, grad = rng.standard_normal((2, ROWS, WIDTH))
    layers = [(rng.standard_normal((WIDTH, WIDTH)), np.zeros(WIDTH)) for _ in range(NUM_LAYERS)]
    passes = {"minipar": _minipar_pass(x, layers, grad), "NumPy": _numpy_pass(x, layers, grad)}
    if torch := import_torch():
        passes["PyTorch"] = _torch_pass(torch, x, layers, grad)
    firsts = [first() for first in passes.values()]
    assert all(np.allclose(firsts[0], other) for other in firsts[1:])
    seconds = interleave(passes, num_rounds)
    ours, *others = (1e6 * min(values) / (2 * NUM_LAYERS) for values in seconds.values())
    theirs = ", ".join(f"{name} {other:.1f} µs" for name, other in zip(list(passes)[1:], others))
    return [Row(f"linear and ReLU on {ROWS} × {WIDTH} arrays: an operation and its backward",
                f"{ours:.1f} µs", f"{theirs}; target {MICROSECONDS:g} µs", ours / MICROSECONDS,
                1.0, at_least=False),
            Row("  times that of NumPy", f"{ours:.1f} µs", f"NumPy {others[0]:.1f} µs",
                ours / others[0])]


def _minipar_pass(x: np.ndarray, layers: list, grad: np.ndarray) -> Callable[[], np.ndarray]:
    inputs = Tensor(x)
    leaves = [(Tensor(w, requires_grad=True), Tensor(b, requires_grad=True)) for w, b in layers]

    def run() -> np.ndarray:
        y = inputs
        for w, b in leaves:
            w.slot.grad = b.slot.grad = None
            y = ag.relu(ag.linear(y, w, b))
        y.backward(grad)
        return leaves[0][0].grad
    return run


def _numpy_pass(x: np.ndarray, layers: list, grad: np.ndarray) -> Callable[[], np.ndarray]:
    def run() -> np.ndarray:
        values = [x]
        for w, b in layers:
            y = values[-1] @ w
            y += b
            values.append(np.maximum(y, 0, out=y))
        back = grad
        for i in reversed(range(NUM_LAYERS)):
            back = back * (values[i + 1] > 0)
            weight_grad, _ = values[i].T @ back, back.sum(axis=0)
            back = back @ layers[i][0].T if i else back
        return weight_grad
    return run


def _torch_pass(torch: object, x: np.ndarray, layers: list, grad: np.ndarray
                ) -> Callable[[], np.ndarray]:
    inputs, out_grad = torch.tensor(x), torch.tensor(grad)
    leaves = [(torch.tensor(w.T.copy(), requires_grad=True), torch.tensor(b, requires_grad=True))
              for w, b in layers]

    def run() -> np.ndarray:
        y = inputs
        for w, b in leaves:
            w.grad = b.grad = None
            y = torch.relu(torch.nn.functional.linear(y, w, b))
        y.backward(out_grad)
        return leaves[0][0].grad.numpy().T
    return run


# ---- the deep MLP

def make_batch(seed: int = 0) -> Batch:
    """Made-up samples: as many numbers as an image of a handwritten digit has."""
    rng = np.random.default_rng(seed)
    return Batch(rng.standard_normal((BATCH, SIZES[0])).astype(np.float32),
                 rng.integers(SIZES[-1], size=BATCH), np.arange(BATCH))


def mlp_row(num_rounds: int) -> Row:
    """A step of the MLP by `model.loss` and `backward`, against NumPy."""
    batch, model = make_batch(), MLP(SIZES).initialize(seed=0)
    optimizer = SGD(model.slabs, lr=RATE)
    layers = numpy_mlp.make_layers(model.state_dict())

    def ours() -> float:
        optimizer.zero_grad()
        total = 0.0
        for x, labels, _ in batch.split(NUM_MICROBATCHES):
            loss = model.loss(x, labels, BATCH)
            loss.backward()
            total += loss.item()
        optimizer.step()
        return total
    steps = {"minipar": ours, "NumPy": lambda: numpy_mlp.step(
        layers, batch.split(NUM_MICROBATCHES), BATCH, RATE)}
    check_same("a step of the deep MLP", steps)
    seconds = medians(interleave(steps, num_rounds))
    return Row("MLP of 7 layers, 4 microbatches of 32, SGD: time over NumPy's",
               milliseconds(seconds["minipar"]), f"NumPy {milliseconds(seconds['NumPy'])}",
               seconds["minipar"] / seconds["NumPy"], TIMES_NUMPY, at_least=False)
