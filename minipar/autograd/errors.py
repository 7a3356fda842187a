"""The errors of the engine: what a call needed, what it got, and how to mend it.

Each function returns the exception; its caller raises it.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..backend import Array

if TYPE_CHECKING:
    from .function import Function
    from .tensor import Node, Tensor


def explained_error(error: Exception, function: "type[Function]", arrays: list[Array]) -> Exception:
    """The error with the operation's name, the inputs that it got, and those that it expects.

    It is a TypeError, ValueError or IndexError, as `error` is; else a ValueError.  An input that is
    no array may have a message of its own, `refusal`, which is then raised instead.
    """
    for array in arrays:
        if hasattr(array, "refusal"):
            return TypeError(array.refusal)
    kind = next((k for k in (TypeError, ValueError, IndexError) if isinstance(error, k)),
                ValueError)
    return kind(f"{function.__name__}: {error}; got {_describe(arrays)}"
                + (f"; expected {function.expects}" if function.expects else ""))


def _describe(arrays: list[Array]) -> str:
    return " and ".join(f"{tuple(a.shape)} {a.dtype}" if hasattr(a, "shape") else repr(a)
                        for a in arrays if a is not None)


def mixed_dtypes_error(first: np.dtype, other: np.dtype) -> TypeError:
    """The error for inputs of different precisions: float32 * float64 would double later costs."""
    return TypeError(f"{first} and {other} do not mix: convert one with astype")


def changed_dtype_error(given: np.dtype, result: np.dtype) -> TypeError:
    """The error for a result whose precision differs from the inputs'."""
    return TypeError(f"the inputs are {given}, but the result is {result}: convert the {result} "
                     "operand with astype")


def needs_floats_error(dtype: np.dtype) -> TypeError:
    """The error for a leaf of integers that requires a gradient."""
    return TypeError(f"a gradient needs floating-point numbers, not {dtype}: "
                     "convert with Tensor(data.astype(np.float32), requires_grad=True)")


def not_a_leaf_error(tensor: "Tensor") -> AttributeError:
    """The error for the gradient or slot of a tensor that is no leaf with requires_grad."""
    made = "was made by an operation" if tensor.grad_target else "asks for none"
    return AttributeError("only a leaf with requires_grad=True has a gradient; this tensor " + made)


def no_array_error() -> TypeError:
    """The error for a Tensor in the place of an array."""
    return TypeError("this needs an array, not a Tensor: pass tensor.data (and to differentiate "
                     "through it, use an operation of minipar.autograd or "
                     "minipar.parallel.conjugate)")


def freed_graph_error() -> RuntimeError:
    """The error for a second backward through a graph."""
    return RuntimeError("backward() went through this graph before and freed it: run the forward "
                        "again, or add the losses and call backward() once")


def changed_leaf_error(node: "Node") -> RuntimeError:
    """The error for a backward through values that have changed since forward."""
    return RuntimeError(f"a parameter that {node.function.__name__} used has changed since this "
                        "forward, as by an optimizer's step, and the gradient would belong to "
                        "neither value: call backward() of all losses before the step, or run the "
                        "forward again after it")


def no_initial_gradient_error(root: "Tensor", grad: Array | None) -> Exception:
    """The error for a backward with nothing to do, or from a gradient of wrong shape or dtype."""
    if root.grad_target is None:
        return RuntimeError("backward() from a tensor that depends on nothing with "
                            "requires_grad=True (or that was made under no_grad)")
    if grad is None:
        return RuntimeError(f"backward() of a tensor of shape {root.shape} needs the gradient of "
                            "the same shape: only a single number has the obvious one, 1")
    return ValueError(f"backward() of a tensor {root.shape} {root.dtype} needs a gradient of the "
                      f"same shape and dtype, not {grad.shape} {grad.dtype}")


def wrong_gradients_error(node: "Node", grads: Any) -> RuntimeError:
    """The error for a Function whose backward lacks a gradient of an input that needs one."""
    name, inputs = node.function.__name__, node.inputs
    if len(grads) != len(inputs):
        return RuntimeError(f"{name}.backward returned {len(grads)} gradients for {len(inputs)} "
                            "inputs")
    missing = next(i for i, target in enumerate(inputs)
                   if target is not None and grads[i] is None)
    return RuntimeError(f"{name}.backward returned None for input {missing}, which needs a "
                        "gradient")
