"""Python's operators on Tensors: `a + b`, `a @ b`, `a[i]`, `a.sum()`."""

# mypy: disable-error-code="method-assign,assignment"
# (tensor_interface.py declares the methods assigned here)

from collections.abc import Callable
from typing import Any

from ..engine import backward
from ..function import Function
from ..tensor import Tensor
from . import elementwise as e
from . import movement, reductions
from .matmul import MatMul


def operator(function: type[Function]) -> Callable[[Tensor, Any], Any]:
    """`a OP b`, unless b computes it: a tensor of another kind steps back as NumPy's arrays do."""
    def run(a: Tensor, b: Any) -> Any:
        if getattr(b, "__array_ufunc__", 0) is None and not isinstance(b, Tensor):
            return NotImplemented
        return function.apply(a, b)
    return run


Tensor.backward = backward
Tensor.__add__ = operator(e.Add)
Tensor.__radd__ = lambda a, b: e.Add.apply(b, a)
Tensor.__sub__ = operator(e.Subtract)
Tensor.__rsub__ = lambda a, b: e.Subtract.apply(b, a)
Tensor.__mul__ = operator(e.Multiply)
Tensor.__rmul__ = lambda a, b: e.Multiply.apply(b, a)
Tensor.__truediv__ = operator(e.Divide)
Tensor.__rtruediv__ = lambda a, b: e.Divide.apply(b, a)
Tensor.__neg__ = lambda a: e.Multiply.apply(a, -1.0)
Tensor.__pow__ = lambda a, p: e.Power.apply(a, p=p)
Tensor.__matmul__ = operator(MatMul)
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
