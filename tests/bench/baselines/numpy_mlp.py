"""An MLP in plain NumPy and mpi4py, without autograd: the peer of the measurements of small models.

It trains as ShallowSpeed does (github.com/siboehm/ShallowSpeed): a batch in microbatches, gradients
summed in an array for each parameter; over data-parallel ranks one MPI_Iallreduce for each
parameter, started in the last backward; over pipeline stages GPipe with blocking messages.
"""

from typing import Any, NamedTuple

import numpy as np

from minipar.data import Batch


class Layer(NamedTuple):
    """y = x weight + bias, then ReLU unless it is the last; the summed gradients of both."""

    weight: np.ndarray
    bias: np.ndarray
    weight_grad: np.ndarray
    bias_grad: np.ndarray
    is_last: bool


def make_layers(state: dict[str, np.ndarray]) -> list[Layer]:
    """The layers of an `MLP`, from copies of the parameters of its `state_dict()`."""
    copies = [array.copy() for array in state.values()]
    pairs = list(zip(copies[::2], copies[1::2]))
    return [Layer(w, b, np.zeros_like(w), np.zeros_like(b), i == len(pairs) - 1)
            for i, (w, b) in enumerate(pairs)]


def forward(layers: list[Layer], x: np.ndarray) -> list[np.ndarray]:
    """The input and the output of each layer."""
    values = [x]
    for layer in layers:
        y = values[-1] @ layer.weight
        y += layer.bias
        values.append(y if layer.is_last else np.maximum(y, 0, out=y))
    return values


def backward(layers: list[Layer], values: list[np.ndarray], grad: np.ndarray, is_first: bool,
             requests: list | None = None, dp: Any = None) -> np.ndarray | None:
    """Add up the gradients of the parameters; return that of the input, unless `is_first`.

    With `requests`, the sum of each gradient over the ranks of `dp` is started there.
    """
    for i in reversed(range(len(layers))):
        layer, x, y = layers[i], values[i], values[i + 1]
        if not layer.is_last:
            grad = grad * (y > 0)
        layer.weight_grad[...] += x.T @ grad
        layer.bias_grad[...] += grad.sum(axis=0)
        if requests is not None:
            from mpi4py import MPI
            requests += [dp.Iallreduce(MPI.IN_PLACE, g)
                         for g in (layer.weight_grad, layer.bias_grad)]
        if i or not is_first:
            grad = grad @ layer.weight.T
    return None if is_first else grad


def cross_entropy(logits: np.ndarray, labels: np.ndarray, batch: int) -> tuple[float, np.ndarray]:
    """(the part of these rows in the mean loss of a batch, its gradient for the logits)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    exps = np.exp(shifted)
    sums = exps.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float((np.log(sums[:, 0]) - shifted[rows, labels]).sum()) / batch
    exps /= sums
    exps[rows, labels] -= 1
    exps /= batch
    return loss, exps


def zero_grad(layers: list[Layer]) -> None:
    """Set all gradients to 0."""
    for layer in layers:
        layer.weight_grad.fill(0)
        layer.bias_grad.fill(0)


def sgd(layers: list[Layer], lr: float) -> None:
    """weight -= lr · gradient."""
    for layer in layers:
        layer.weight[...] -= lr * layer.weight_grad
        layer.bias[...] -= lr * layer.bias_grad


def step(layers: list[Layer], microbatches: list[Batch], batch: int, lr: float, dp: Any = None
         ) -> float:
    """One step of SGD on this rank's microbatches of a batch; the sum of their losses."""
    zero_grad(layers)
    total, requests = 0.0, []
    for i, (x, labels, _) in enumerate(microbatches):
        values = forward(layers, x)
        loss, grad = cross_entropy(values[-1], labels, batch)
        is_last = dp is not None and i == len(microbatches) - 1
        backward(layers, values, grad, True, requests if is_last else None, dp)
        total += loss
    if requests:
        from mpi4py import MPI
        MPI.Request.Waitall(requests)
    sgd(layers, lr)
    return total


def gpipe_step(layers: list[Layer], microbatches: list[Batch], batch: int, lr: float, pp: Any
               ) -> float:
    """`step` over two stages, each with its `layers`: all forwards, then all backwards."""
    zero_grad(layers)
    is_first, other = pp.rank == 0, 1 - pp.rank
    stack, total = [], 0.0
    for x, _, _ in microbatches:
        if not is_first:
            x = np.empty((len(x), layers[0].weight.shape[0]), x.dtype)
            pp.Recv(x, other)
        stack.append(forward(layers, x))
        if is_first:
            pp.Send(stack[-1][-1], other)
    for _, labels, _ in reversed(microbatches):
        values = stack.pop()
        if is_first:
            grad = np.empty_like(values[-1])
            pp.Recv(grad, other)
        else:
            loss, grad = cross_entropy(values[-1], labels, batch)
            total += loss
        grad = backward(layers, values, grad, is_first)
        if grad is not None:
            pp.Send(grad, other)
    sgd(layers, lr)
    return total
