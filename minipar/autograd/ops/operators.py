"""Python's operators on Tensors: `a + b`, `a @ b`, `a[i]`, `a.sum()`."""

# mypy: disable-error-code="method-assign,assignment"
# (tensor_interface.py declares the methods assigned here)

from ..engine import backward
from ..tensor import Tensor
from . import elementwise as e
from . import movement, reductions
from .matmul import MatMul

Tensor.backward = backward
Tensor.__add__ = lambda a, b: e.Add.apply(a, b)
# 0 + x is x: Python's sum begins with 0
Tensor.__radd__ = lambda a, b: a if type(b) is int and not b else e.Add.apply(b, a)
Tensor.__sub__ = lambda a, b: e.Subtract.apply(a, b)
Tensor.__rsub__ = lambda a, b: e.Subtract.apply(b, a)
Tensor.__mul__ = lambda a, b: e.Multiply.apply(a, b)
Tensor.__rmul__ = lambda a, b: e.Multiply.apply(b, a)
Tensor.__truediv__ = lambda a, b: e.Divide.apply(a, b)
Tensor.__rtruediv__ = lambda a, b: e.Divide.apply(b, a)
Tensor.__neg__ = lambda a: e.Multiply.apply(a, -1.0)
Tensor.__pow__ = lambda a, p: e.Power.apply(a, p=p)
Tensor.__matmul__ = lambda a, b: MatMul.apply(a, b)
Tensor.__rmatmul__ = lambda a, b: MatMul.apply(b, a)
Tensor.__getitem__ = movement.getitem
Tensor.T = property(movement.transpose)
Tensor.sum = reductions.sum
Tensor.mean = reductions.mean
Tensor.max = reductions.max
Tensor.reshape = movement.reshape
Tensor.transpose = movement.transpose
Tensor.split = movement.split
Tensor.astype = e.astype
