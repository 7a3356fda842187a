"""Modules: trees of parameters with stable names, and nothing about parallelism.

A new model has shapes but no numbers, and costs nothing to build.  `initialize` gives it numbers,
each parameter drawn from a generator seeded by its own name, so that every layout of a model over
any number of ranks starts from the same values; on shape-only arrays (`shape_array.py`) a model of
any size runs, to count what it would cost.

A strategy changes a model from outside: `transform_parameters` puts a function, such as a
collective, between a parameter and everyone who uses it.
"""

import copy
import difflib
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

import numpy as np

from ..autograd import IGNORE_INDEX, Tensor
from ..backend import Array, asarray_like, is_gpu, is_host, to_host
from ..random import generator
from .parameter import Parameter
from .slab import Slab


class Module:
    """A part of a model.  Assign Parameters, Modules and lists of Modules; define `forward`."""

    ignore_index = IGNORE_INDEX     # a target that does not count in this model's loss

    def __init__(self):
        self.__dict__.update(_parameters={}, _modules={}, _transforms=[], full_name="", slabs=[])

    def __setattr__(self, name: str, value: Any) -> None:
        parts = value if isinstance(value, list | tuple) else ()
        if any(isinstance(part, Module | Parameter) for part in parts):
            if not all(isinstance(part, Module) for part in parts):
                raise TypeError(f"{name} has a Parameter in a list, where it would have no name: "
                                "make it an attribute of a Module of its own")
            value = ModuleList(list(parts))
        stores = {Parameter: self._parameters, Module: self._modules, object: self.__dict__}
        kind = next(kind for kind in stores if isinstance(value, kind))
        for other in stores.keys() - {kind}:
            stores[other].pop(name, None)       # a name means one thing
        if kind is object:
            super().__setattr__(name, value)
        else:
            stores[kind][name] = value          # in the place of what it replaces, if anything

    def __getattr__(self, name: str) -> Any:
        """Called where ordinary look-up failed: parameters, through their transforms; modules."""
        own = self.__dict__
        if name in own.get("_parameters", ()):
            value = own["_parameters"][name]
            for transform in own["_transforms"]:
                value = transform(value)
            return value
        if name in own.get("_modules", ()):
            return own["_modules"][name]
        known = [*own, *own.get("_parameters", ()), *own.get("_modules", ()), *dir(type(self))]
        close = difflib.get_close_matches(name, [k for k in known if not k.startswith("_")], 1)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}"
                             + (f": did you mean {close[0]!r}?" if close else ""))

    def forward(self, *inputs: Any) -> Tensor:
        """What the module computes; each subclass defines its own."""
        raise TypeError(f"{type(self).__name__} defines no forward()")

    def __deepcopy__(self, memo: dict) -> "Module":
        """A copy with parameters, and slabs, of its own."""
        own = {name: value for name, value in self.__dict__.items() if name != "slabs"}
        copied = object.__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(own, memo), slabs=[])
        by_name = dict(copied.named_parameters())
        copied.slabs = [Slab([(s.name, by_name[s.name]) for s in slab.segments], slab.data)
                        for slab in self.slabs]
        return copied

    def __call__(self, *inputs: Any, **options: Any) -> Tensor:
        """Run `forward`."""
        return self.forward(*inputs, **options)

    def __repr__(self) -> str:
        """The tree of modules with the shapes of their parameters; layers that are alike, once.

            (h): ModuleList(
              (0-11): 12 x Block(
                (ln_1): LayerNorm(weight (768,), bias (768,), epsilon=1e-05)

        As PyTorch's, but with the shapes of parameters in the place of sizes.
        """
        about = [f"{name} {parameter.shape}" for name, parameter in self._parameters.items()]
        about += [f"{name}={value!r}" for name, value in self.__dict__.items()
                  if type(value) in (int, float, str) and name != "full_name"]
        inside = [", ".join(about)] if about else []
        trees = {name: repr(module) for name, module in self._modules.items()}
        for _, run in groupby(trees, lambda name: (trees[name], name.isdigit() or name)):
            first, *others = run
            count = f"({first}-{others[-1]}): {len(others) + 1} x " if others else f"({first}): "
            inside.append(count + trees[first])
        text = ("\n" + "\n".join(inside)).replace("\n", "\n  ") + "\n" if trees else "".join(inside)
        return f"{type(self).__name__}({text})"

    def run_parts(self, parts: Iterable[Callable], x: Any) -> Any:
        """Apply parts of this model one after the other.

        Whoever wants some of what they save made anew, or moved, puts a function in its place.
        """
        for part in parts:
            x = part(x)
        return x

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, "Module"]]:
        """This module and all below it, each with its full name, in the order of assignment."""
        yield prefix, self
        for name, module in self._modules.items():
            yield from module.named_modules(f"{prefix}.{name}" if prefix else name)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Every parameter once, under the first of its full names."""
        seen = set()
        for prefix, module in self.named_modules():
            for name, parameter in module._parameters.items():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield f"{prefix}.{name}" if prefix else name, parameter

    def parameters(self) -> list[Parameter]:
        """Every parameter once."""
        return [parameter for _, parameter in self.named_parameters()]

    def num_parameters(self) -> int:
        """How many numbers there are to learn."""
        return sum(parameter.size for parameter in self.parameters())

    def transform_parameters(self, transform: Callable[[Tensor], Tensor],
                             first: bool = False) -> None:
        """From now on whoever uses a parameter of this module gets `transform(parameter)`.

        After the transforms that are there; with `first` before them, on the parameter itself.
        """
        for _, module in self.named_modules():
            module._transforms.insert(0 if first else len(module._transforms), transform)

    def initialize(self, seed: int = 0, dtype: Any = np.float32, array: Array = None):
        """Give every parameter its initial values, in one flat slab per placement; return self.

        Values are drawn in float64 from a generator seeded by (seed, full name), so they do not
        depend on dtype, layout or order.  `array` (default a NumPy array) decides where they live:
        a CuPy array on its GPU; a shape-only array has no numbers and keeps it so.
        """
        self.to_empty(dtype, array)
        for name, parameter in self.named_parameters():
            if is_host(parameter.data) or is_gpu(parameter.data):
                values = parameter.initializer(generator(seed, name), parameter.global_shape)
                values = parameter.local_part(values).astype(dtype)
                parameter.data[...] = asarray_like(values, parameter.data)
        return self

    def to_empty(self, dtype: Any = np.float32, array: Array = None):
        """Give every parameter memory, but no values yet; return self.

        For a model whose values `load_state_dict` brings: nothing is drawn that it would replace.
        """
        for name, module in self.named_modules():
            module.full_name = name
        array = np.empty(0) if array is None else array
        if np.dtype(dtype).kind != "f":
            raise ValueError(f"parameters are floating-point numbers, not {np.dtype(dtype)}: "
                             "give dtype=np.float32 or np.float64")
        self.make_slabs(np.empty_like(array, shape=0, dtype=dtype))
        return self

    def make_slabs(self, like: Array) -> None:
        """Put the parameters into slabs of the kind of `like`, one for each way of replication."""
        placements: dict[tuple[str, ...], list] = {}
        for name, parameter in self.named_parameters():
            placements.setdefault(parameter.replicated, []).append((name, parameter))
        self.slabs = [Slab(named, like) for named in placements.values() or [[]]]

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters():
            parameter.grad = None

    def state_dict(self) -> dict[str, np.ndarray]:
        """A host copy of every parameter by its full name."""
        self._check_initialized()
        return {name: np.array(to_host(p.data)) for name, p in self.named_parameters()}

    def _check_initialized(self) -> None:
        if not all(parameter.initialized for parameter in self.parameters()):
            raise ValueError("the parameters have shapes but no numbers: call initialize() first")

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Copy the values in, those of whole parameters.

        Raises ValueError, and changes nothing, if an entry is missing, left over or of another
        shape; the message names all of them.
        """
        own = dict(self.named_parameters())
        self._check_initialized()
        wrong = [f"missing {name}" for name in own if name not in state]
        wrong += [f"unexpected {name}" for name in state if name not in own]
        wrong += [f"{name} has shape {state[name].shape}, expected {own[name].global_shape}"
                  for name in own
                  if name in state and state[name].shape != own[name].global_shape]
        if wrong:
            raise ValueError("these parameters do not fit the model: " + "; ".join(wrong))
        for name, parameter in own.items():
            values = parameter.local_part(state[name]).astype(parameter.dtype, copy=False)
            parameter.data[...] = asarray_like(values, parameter.data)


class ModuleList(Module):
    """Modules named by their position: h.0, h.1, …"""

    def __init__(self, modules: list[Module]):
        super().__init__()
        self._modules.update({str(i): module for i, module in enumerate(modules)})

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __len__(self) -> int:
        return len(self._modules)

    def __getitem__(self, index: int) -> Module:
        return list(self._modules.values())[index]


class Sequential(ModuleList):
    """Modules applied one after the other."""

    def __init__(self, *modules: Module):
        super().__init__(list(modules))

    def forward(self, x: Tensor) -> Tensor:
        """The output of the last module."""
        return self.run(x)

    def run(self, x: Tensor) -> Tensor:
        """All modules, one after the other; a plan may be put in its place (memory/plans.py)."""
        for module in self:
            x = module(x)
        return x

