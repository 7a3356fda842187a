"""A model whose parameters are not all used: which ones depends on the rows that a rank is given.

    x (b, 4) ─┬─▶ left    rows with x₀ > 0 ──┬─▶ + ─▶ head      and `idle`, which no row uses
              └─▶ right   the other rows ────┘
"""

import numpy as np

from minipar.autograd import Tensor, cross_entropy
from minipar.comm import Cluster
from minipar.nn import Linear, Module
from minipar.optim import SGD
from minipar.parallel.strategy import Microbatch
from tests.support.cases import ALL

ROWS, NUM_CLASSES = 12, 3


class Picky(Module):
    """`apart`: left and right are members of a list, so that FSDP makes each a unit of its own."""

    def __init__(self, apart: bool = False):
        super().__init__()
        if apart:
            self.sides = [Linear(4, 5), Linear(4, 5)]
        else:
            self.left, self.right = Linear(4, 5), Linear(4, 5)
        self.apart, self.idle, self.head = apart, Linear(2, 2), Linear(5, NUM_CLASSES)

    def logits(self, x: np.ndarray) -> Tensor:
        """x (b, 4) → (b, 3)."""
        is_left = x[:, :1] > 0
        total = Tensor(np.zeros((len(x), 5), x.dtype))
        for i, rows in enumerate((is_left, ~is_left)):
            if rows.any():
                side = self.sides[i] if self.apart else (self.left, self.right)[i]
                total = total + side(Tensor(x)) * rows.astype(x.dtype)
        return self.head(total)

    def loss(self, x: np.ndarray, labels: np.ndarray, loss_divisor: float | None = None) -> Tensor:
        """Cross-entropy of the labels (b,), summed and divided by `loss_divisor`."""
        return cross_entropy(self.logits(x), labels, loss_divisor)


def batch(step: int, num_groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Every other of `num_groups` equal groups of rows goes left; in the next step right."""
    draw = np.random.default_rng(step)
    x, group = draw.standard_normal((ROWS, 4)), np.arange(ROWS) * num_groups // ROWS
    x[:, 0] = np.abs(x[:, 0]) * (-1.0) ** (group + step)
    return x, draw.integers(0, NUM_CLASSES, ROWS)


def train_picky(comm, name: str, num_groups: int, apart: bool = False) -> dict:
    """Three steps: losses, gradients and parameters by name."""
    model = Picky(apart).initialize(0, np.float64)
    strategy = ALL[name](model, comm)
    optimizer, found = SGD(strategy.slabs, lr=0.1, momentum=0.9), {}
    for step in range(3):
        (x, labels), mine = batch(step, num_groups), list(strategy.rows(ROWS))
        optimizer.zero_grad()
        found[f"loss {step}"] = strategy.forward_backward([Microbatch(x[mine], labels[mine], mine)])
        found |= {f"gradient {step} of {key}": gradient
                  for key, gradient in strategy.slabs.gradients().items()}
        strategy.step(optimizer)
    return found | strategy.state_dict()


def check_picky(world, name: str, apart: bool = False, num_groups: int | None = None) -> None:
    """Strategy `name` finishes with the gradients of one process.

    Neighbouring ranks use different sides, if there are as many groups as ranks (the default).
    """
    num_groups = num_groups or world.size
    alone = Cluster(1).run(lambda comm: train_picky(comm, "alone", num_groups, apart))[0][0]
    assert not alone["gradient 0 of idle.weight"].any()
    for side in ("sides.0", "sides.1") if apart else ("left", "right"):
        assert alone[f"gradient 0 of {side}.weight"].any()

    def body(comm):
        for key, value in train_picky(comm, name, num_groups, apart).items():
            if not (name == "dp" and comm.rank and key.startswith("gradient")):
                np.testing.assert_allclose(value, alone[key], rtol=1e-10, atol=1e-13, err_msg=key)
    world.run(body)
