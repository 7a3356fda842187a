"""The rest of Tensor, beside differentiation: its number, its text, its operators, declared.

`ops/operators.py` defines the operators: they need the operations, which need Tensor.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..backend import Array
    from .tensor import Tensor


class TensorInterface:
    """Base of Tensor."""

    __slots__ = ()
    data: "Array"
    grad_target: Any

    shape, ndim = property(attrgetter("data.shape")), property(attrgetter("data.ndim"))
    size, dtype = property(attrgetter("data.size")), property(attrgetter("data.dtype"))

    def item(self) -> float:
        """The number in a tensor of one element."""
        return self.data.item()

    def __array__(self, *arguments: Any, **options: Any) -> "Array":
        raise TypeError("this needs an array, not a Tensor: pass tensor.data (and to differentiate "
                        "through it, use an operation of minipar.autograd or parallel.conjugate)")

    def __bool__(self) -> bool:
        return bool(self.data)

    def __repr__(self) -> str:
        function = getattr(self.grad_target, "function", None)
        made = f", made by {function.__name__}" if function else ""
        return f"Tensor({self.data!r}{made})"

    if TYPE_CHECKING:
        T: Tensor

        def backward(self, grad: Array | None = None, defer_weights: bool = False,
                     poll: Callable[[], None] | None = None) -> Callable[[], None] | None:
            """Compute the gradients of all leaves: see engine.py."""

        def __add__(self, other: Any) -> Tensor: ...
        def __radd__(self, other: Any) -> Tensor: ...
        def __sub__(self, other: Any) -> Tensor: ...
        def __rsub__(self, other: Any) -> Tensor: ...
        def __mul__(self, other: Any) -> Tensor: ...
        def __rmul__(self, other: Any) -> Tensor: ...
        def __truediv__(self, other: Any) -> Tensor: ...
        def __rtruediv__(self, other: Any) -> Tensor: ...
        def __neg__(self) -> Tensor: ...
        def __pow__(self, p: float) -> Tensor: ...
        def __matmul__(self, other: Any) -> Tensor: ...
        def __rmatmul__(self, other: Any) -> Tensor: ...
        def __getitem__(self, index: Any) -> Tensor: ...

        def sum(self, axis: Any = None, keepdims: bool = False) -> Tensor:
            """Σ over axes."""

        def mean(self, axis: Any = None, keepdims: bool = False) -> Tensor:
            """The mean over axes."""

        def max(self, axis: Any = None, keepdims: bool = False) -> Tensor:
            """The maximum over axes."""

        def reshape(self, *shape: Any) -> Tensor:
            """The same elements in another shape."""

        def transpose(self, *axes: Any) -> Tensor:
            """The axes in another order."""

        def split(self, num_pieces: int, axis: int = 0) -> list[Tensor]:
            """Equal pieces along an axis."""

        def astype(self, dtype: Any) -> Tensor:
            """The numbers in another dtype."""
