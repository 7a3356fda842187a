"""Modules: trees of parameters with stable names, and nothing about parallelism.

A new model has shapes but no numbers, so it takes hardly any memory.  `initialize` draws each
parameter from a generator seeded by (seed, the parameter's name).  So every layout of a model, over
any number of ranks, starts from the same values.  With shape-only arrays (`backend/shape_array.py`)
a model of any size runs, so that its costs can be counted.

A strategy changes a model from outside, by two doors:

    parameter.on_use(f)     a use of the weight sees f(weight): gathered, masked or rounded
    module.around(f)        a call is f(forward, *inputs): f may open contexts, change inputs and
                            outputs, run `forward` again

Where a layer has to compute in a different way, another layer takes its place (`replacing`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self

import numpy as np

from ..autograd import IGNORE_INDEX, Tensor
from ..backend import Array, asarray_like, is_gpu, is_host
from ..random import generator
from . import module_state as state
from .parameter import Parameter, RemovableHandle
from .slab import Buffers, Slab


class Module:
    """Base of all parts of a model.

    A subclass assigns Parameters, Modules and lists of Modules as attributes and defines `forward`.
    """

    ignore_index = IGNORE_INDEX     # a target that does not count in this model's loss

    def __init__(self):
        self.__dict__.update(_parameters={}, _modules={}, _around=[], full_name="",
                             slabs=Buffers())

    def __setattr__(self, name: str, value: Any) -> None:
        parts = value if isinstance(value, list | tuple) else ()
        if any(isinstance(part, Module | Parameter) for part in parts):
            if not all(isinstance(part, Module) for part in parts):
                raise state.nameless_error(name)
            value = ModuleList(list(parts))
        stores = {Parameter: self._parameters, Part: self.__dict__, Module: self._modules,
                  object: self.__dict__}
        kind = next(kind for kind in stores if isinstance(value, kind))
        for other in stores.keys() - {kind}:
            stores[other].pop(name, None)       # a name means one thing
        if kind is object:
            super().__setattr__(name, value)
        else:
            stores[kind][name] = value          # in the place of what it replaces, if anything

    def __getattr__(self, name: str) -> Any:
        """A parameter, after its transforms, or a module; called if there is no such attribute."""
        own = self.__dict__
        if name in own.get("_parameters", ()):
            value = own["_parameters"][name]
            for transform in value.transforms:
                value = transform(value)
            return value
        if name in own.get("_modules", ()):
            return own["_modules"][name]
        raise state.unknown_attribute_error(self, name)

    def forward(self, *inputs: Any) -> Tensor:
        """Compute the module's output; each subclass defines its own."""
        raise TypeError(f"{type(self).__name__} defines no forward()")

    def __call__(self, *inputs: Any, **options: Any) -> Tensor:
        """Run `forward`, inside what `around` has added."""
        if not self._around:
            return self.forward(*inputs, **options)
        forward = self.forward
        for wrapper in self._around:
            forward = partial(wrapper, forward)
        return forward(*inputs, **options)

    def around(self, wrapper: Callable, inside: bool = False) -> RemovableHandle:
        """Run wrapper(forward, *inputs) at each call of this module from now on.

        It runs around the wrappers added so far; with `inside`, within all of them.
        """
        self._around.insert(0 if inside else len(self._around), wrapper)
        return RemovableHandle(self._around, wrapper)

    @classmethod
    def replacing(cls, module: "Module", **attributes: Any) -> Self:
        """A `cls` that takes the place of `module`, with its parameters, modules and attributes."""
        made = object.__new__(cls)
        made.__dict__.update(vars(module), **attributes)
        return made

    @cached_property
    def run_parts(self) -> "PartsRunner":
        """The runner of this model's parts: `model.run_parts(parts, x)`.

        Recomputation and offloading alter its calls by `around`.
        """
        return PartsRunner()

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, "Module"]]:
        """This module and all below it, each with its full name, in the order of assignment."""
        yield prefix, self
        for name, module in self._modules.items():
            yield from module.named_modules(f"{prefix}.{name}" if prefix else name)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Every parameter once, under the first of its full names."""
        names: dict[Parameter, str] = {}
        for prefix, module in self.named_modules():
            for name, parameter in module._parameters.items():
                names.setdefault(parameter, f"{prefix}.{name}" if prefix else name)
        yield from ((name, parameter) for parameter, name in names.items())

    def parameters(self) -> list[Parameter]:
        """Every parameter once."""
        return [parameter for _, parameter in self.named_parameters()]

    def initialize(self, seed: int = 0, dtype: Any = np.float32, array: Array = None):
        """Put the parameters into slabs (`make_slabs`), with their initial values; return self.

        Values are drawn in float64 from a generator seeded by (seed, full name), so they do not
        depend on dtype, layout or order.  `array` (by default a NumPy array) decides where they
        live: a CuPy array puts them on its GPU.  With a shape-only array they stay without numbers.
        """
        self.to_empty(dtype, array)
        for name, p in self.named_parameters():
            if is_host(p.data) or is_gpu(p.data):
                values = p.initializer(generator(seed, name), p.global_shape)
                p.data[...] = asarray_like(p.local_part(values).astype(dtype), p.data)
        return self

    def to_empty(self, dtype: Any = np.float32, array: Array = None):
        """Give every parameter memory, but draw no values, for `load_state_dict`; return self."""
        for name, module in self.named_modules():
            module.full_name = name
        if np.dtype(dtype).kind != "f":
            raise state.dtype_error(dtype)
        self.make_slabs(np.empty(0, dtype, like=array))
        return self

    def make_slabs(self, like: Array) -> None:
        """Put the parameters into slabs, flat arrays of the kind of `like`.

        Parameters that are replicated along the same mesh axes share a slab.
        """
        by_replication: dict[tuple[str, ...], list] = {}
        for name, parameter in self.named_parameters():
            by_replication.setdefault(parameter.replicated, []).append((name, parameter))
        self.slabs = Buffers(Slab(named, like) for named in by_replication.values() or [[]])

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for _, module in self.named_modules():
            for parameter in module._parameters.values():
                parameter.grad = None

    state_dict, load_state_dict = state.state_dict, state.load_state_dict
    num_parameters, __deepcopy__, __repr__ = state.num_parameters, state.deep_copy, state.tree


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
        return self.run_parts(self, x)


class PartsRunner(Module):
    """Applies parts, one after the other."""

    def forward(self, parts: Iterable[Callable], x: Any) -> Any:
        """The output of the last part."""
        for part in parts:
            x = part(x)
        return x


class Part(Module):
    """A step of a model's forward that has no parameters of its own.

    It computes with the modules of `model` that have these `names`, or with the modules that have
    replaced them since.  It is not registered in the model, so parameters keep their names.
    """

    def __init__(self, model: Module, *names: str):
        super().__init__()
        self.__dict__.update(_modules=model._modules, names=[*filter(model._modules.get, names)])

    @property
    def modules(self) -> list[Module]:
        """The modules that it computes with."""
        return [self._modules[name] for name in self.names]

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This part alone: the modules are the model's."""
        yield prefix, self


@dataclass(frozen=True)
class ChainPart:
    """One step of a model's forward; `modules` are those whose parameters it uses.

    The first part of a model takes an array, each other part the output of the part before.
    `is_block`: one of many alike, not the beginning or end of the model.
    """

    name: str
    apply: Callable[[Any], Tensor]
    modules: Sequence[Module]
    is_block: bool = True

    def __call__(self, x: Any) -> Tensor:
        """The part's output for x."""
        return self.apply(x)

    def parameters(self) -> list[Parameter]:
        """The parameters that the part uses, each once."""
        return list(dict.fromkeys(p for module in self.modules for p in module.parameters()))

    def num_parameters(self) -> int:
        """The number of elements of these parameters, counted globally: the same on every rank."""
        return sum(int(np.prod(parameter.global_shape)) for parameter in self.parameters())


def replace_module(model: Module, old: Module, new: Module) -> None:
    """Put `new` in every place of `old` in `model`."""
    for _, module in [*model.named_modules()]:
        module._modules.update({name: new for name, each in module._modules.items()
                                if each is old})
