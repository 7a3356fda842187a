"""Methods of Module that a training step does not need: its state by name, its copy, its tree."""

import copy
import difflib
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backend import asarray_like
from .parameter import mark_changed
from .slab import Buffers, Slab

if TYPE_CHECKING:
    from .module import Module


def state_dict(self: "Module") -> dict[str, np.ndarray]:
    """A host copy of every whole parameter by its full name.  Collective if they are cut."""
    check_initialized(self)
    return {name: p.whole(p.data) for name, p in self.named_parameters()}


def load_state_dict(self: "Module", state: dict[str, np.ndarray]) -> None:
    """Copy in the values of whole parameters.

    Raises ValueError, and changes nothing, if an entry is missing, left over or of a different
    shape; the message names all of them.
    """
    own = dict(self.named_parameters())
    check_initialized(self)
    wrong = [f"missing {name}" for name in own if name not in state]
    wrong += [f"unexpected {name}" for name in state if name not in own]
    wrong += [f"{name} has shape {state[name].shape}, expected {own[name].global_shape}"
              for name in own if name in state and state[name].shape != own[name].global_shape]
    if wrong:
        raise ValueError("these parameters do not fit the model: " + "; ".join(wrong))
    for name, parameter in own.items():
        values = parameter.local_part(state[name]).astype(parameter.dtype, copy=False)
        parameter.data[...] = asarray_like(values, parameter.data)
    mark_changed(own.values())


def num_parameters(self: "Module") -> int:
    """The number of trainable numbers that this rank holds."""
    return sum(parameter.size for parameter in self.parameters())


def deep_copy(self: "Module", memo: dict) -> "Module":
    """A copy with parameters, and slabs, of its own."""
    own = {name: value for name, value in self.__dict__.items() if name != "slabs"}
    copied = object.__new__(type(self))
    memo[id(self)] = copied
    copied.__dict__.update(copy.deepcopy(own, memo), slabs=Buffers())
    by_name = dict(copied.named_parameters())
    copied.slabs = Buffers(Slab([(s.name, by_name[s.name]) for s in slab.segments], slab.data)
                           for slab in self.slabs)
    return copied


def tree(self: "Module") -> str:
    """The tree of modules with the shapes of their parameters; neighbours that are alike, once.

        (h): ModuleList(
          (0-11): 12 x Block(
            (ln_1): LayerNorm(weight (768,), bias (768,), epsilon=1e-05)

    The format is PyTorch's, but with the shapes of parameters in the place of sizes.
    """
    about = [f"{name} {parameter.shape}" for name, parameter in self._parameters.items()]
    about += [f"{name}={value!r}" for name, value in self.__dict__.items()
              if type(value) in (int, float, str) and name != "full_name"]
    inside = [", ".join(about)] if about else []
    trees = {name: repr(child) for name, child in self._modules.items()}
    for _, alike in groupby(trees, lambda name: (trees[name], name.isdigit() or name)):
        first, *others = alike
        count = f"({first}-{others[-1]}): {len(others) + 1} x " if others else f"({first}): "
        inside.append(count + trees[first])
    text = ("\n" + "\n".join(inside)).replace("\n", "\n  ") + "\n" if trees else "".join(inside)
    return f"{type(self).__name__}({text})"


def check_initialized(module: "Module") -> None:
    """Raise ValueError unless all parameters have values."""
    if not all(parameter.initialized for parameter in module.parameters()):
        raise ValueError("the parameters have shapes but no numbers: call initialize() first")


def nameless_error(name: str) -> TypeError:
    """The error for a list `name` that holds a Parameter."""
    return TypeError(f"{name} has a Parameter in a list, where it would have no name: make it an "
                     "attribute of a Module of its own")


def dtype_error(dtype: Any) -> ValueError:
    """The error for parameters that are no floats."""
    return ValueError(f"parameters are floating-point numbers, not {np.dtype(dtype)}: give "
                      "dtype=np.float32 or np.float64")


def unknown_attribute_error(module: "Module", name: str) -> AttributeError:
    """The error for an attribute that the module does not have, with the closest one it has."""
    own = module.__dict__
    known = [*own, *own.get("_parameters", ()), *own.get("_modules", ()), *dir(type(module))]
    close = difflib.get_close_matches(name, [k for k in known if not k.startswith("_")], 1)
    return AttributeError(f"{type(module).__name__} has no attribute {name!r}"
                          + (f": did you mean {close[0]!r}?" if close else ""))
