"""Python's operators on Tensors: `a + b`, `a @ b`, `a[i]`, `a.sum()`."""

# mypy: disable-error-code="method-assign,assignment"
# (tensor.py declares the methods assigned here)

from ..engine import backward
from ..tensor import Tensor
from . import elementwise as e
from . import movement, reductions
from .matmul import MatMul


def operators(function):
    """(a OP b, b OP a).  If b sets __array_ufunc__ = None, Python asks b, as with NumPy."""
    def run(a, b):
        steps_back = getattr(b, "__array_ufunc__", 0) is None and not isinstance(b, Tensor)
        return NotImplemented if steps_back else function.apply(a, b)
    return run, lambda a, b: function.apply(b, a)


Tensor.backward = backward
Tensor.__add__ = operators(e.Add)[0]
# 0 + x is x: Python's sum begins with 0
Tensor.__radd__ = lambda a, b: a if type(b) is int and not b else e.Add.apply(b, a)
Tensor.__sub__, Tensor.__rsub__ = operators(e.Subtract)
Tensor.__mul__, Tensor.__rmul__ = operators(e.Multiply)
Tensor.__truediv__, Tensor.__rtruediv__ = operators(e.Divide)
Tensor.__matmul__, Tensor.__rmatmul__ = operators(MatMul)
Tensor.__neg__ = lambda a: e.Multiply.apply(a, -1.0)
Tensor.__pow__ = lambda a, p: e.Power.apply(a, p=p)
Tensor.__getitem__ = movement.getitem
Tensor.T = property(movement.transpose)
Tensor.sum = reductions.sum
Tensor.mean = reductions.mean
Tensor.max = reductions.max
Tensor.reshape = movement.reshape
Tensor.transpose = movement.transpose
Tensor.split = movement.split
Tensor.astype = e.astype
