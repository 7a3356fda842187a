"""Exercise matmul_backward."""

import numpy as np
import pytest

from minipar.autograd import Tensor, gradcheck, matmul


def tensor(*shape, seed=0):
    values = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return Tensor(values, requires_grad=True)


def test_matmul_backward_of_matrices():
    gradcheck(matmul, tensor(2, 3), tensor(3, 4))


def test_matmul_backward_of_square_matrices():
    gradcheck(matmul, tensor(3, 3, seed=1), tensor(3, 3, seed=2))


def test_matmul_backward_of_a_batch_of_matrices():
    gradcheck(matmul, tensor(2, 5, 2, 3), tensor(2, 5, 3, 4))


@pytest.mark.parametrize("a, b", [((2, 5, 2, 3), (3, 4)), ((3, 4), (5, 4, 2)),
                                  ((1, 2, 3), (4, 3, 2)), ((2, 1, 2, 3), (1, 3, 3, 2))])
def test_matmul_backward_of_broadcast_axes(a, b):
    a, b = tensor(*a), tensor(*b)
    matmul(a, b).sum().backward()
    assert a.grad.shape == a.shape, f"a is {a.shape}, its gradient {a.grad.shape}"
    assert b.grad.shape == b.shape, f"b is {b.shape}, its gradient {b.grad.shape}"
    gradcheck(matmul, a, b)


def test_matmul_backward_of_one_input():
    a, b = tensor(2, 3), tensor(3, 4)
    gradcheck(lambda a: matmul(a, b.data), a)       # a itself is then not saved
    gradcheck(lambda b: matmul(a.data, b), b)
