"""Exercise unbroadcast."""

import numpy as np
import pytest

from minipar.autograd import Tensor, gradcheck
from minipar.autograd.ops.elementwise import unbroadcast

# shape of the input, shape that broadcasting made of it
CASES = [((3,), (2, 3)), ((3,), (4, 2, 3)), ((2, 1), (2, 3)), ((1, 3), (2, 3)), ((1, 1), (2, 3)),
         ((1,), (5,)), ((), (2, 3)), ((), (4,)), ((2, 1, 3), (5, 2, 4, 3)),
         ((1, 2, 1), (3, 4, 2, 1)), ((3, 3), (3, 3, 3)),
         ((1, 3), (1, 3)), ((2, 3), (2, 3)), ((), ()), ((1,), (2, 1))]


@pytest.mark.parametrize("shape, broadcast", CASES)
def test_unbroadcast_is_the_transpose(shape, broadcast):
    """⟨broadcast(x), g⟩ = ⟨x, unbroadcast(g)⟩ for any x and g."""
    rng = np.random.default_rng(len(broadcast))
    x, g = np.asarray(rng.standard_normal(shape)), np.asarray(rng.standard_normal(broadcast))
    before = g.copy()
    dx = unbroadcast(g, shape)
    assert dx.shape == shape, f"g {broadcast} for an input of shape {shape} became {dx.shape}"
    left, right = np.sum(np.broadcast_to(x, broadcast) * g), np.sum(x * dx)
    assert abs(left - right) < 1e-12, \
        f"{shape} from {broadcast}: ⟨Bx, g⟩ = {left}, but ⟨x, dx⟩ = {right}"
    assert np.array_equal(g, before), "the gradient is only read: others may hold the same array"


def test_unbroadcast_under_arithmetic():
    rng = np.random.default_rng(0)
    a = Tensor(rng.standard_normal((2, 1, 3)), requires_grad=True)
    b = Tensor(1 + rng.random((4, 1)), requires_grad=True)
    gradcheck(lambda a, b: a * b + a / b - 2.0 * b, a, b)
