"""Post-training quantization: a trained model, some data, no training.

    quantize(model, IntGrid(4), Granularity.parse("group:64"), method="gptq", calibration=[ids, …])

The weights of linear layers and embeddings become integers, or floats of 8 or 4 bits
(`float_grid.py`).  Method "nearest" rounds each weight; "gptq" preserves the outputs of linear
layers (`gptq.py`; embeddings are rounded).  GPTQ goes through the model part by part, so that each
layer is calibrated with the inputs that it will get:

    calibration ─▶ embed ─▶ h.0 ─▶ h.1 ─▶ …
                            └ c_attn: Hessian of its inputs, quantize; c_proj: again; c_fc; c_proj;
                              then the outputs of the quantized h.0 are the inputs of h.1

With `activations`, the inputs of linear layers are quantized to 8 bits as well, and the layers
multiply integers.  Calibration data decides the ranges of the inputs.

Source: Nagel et al., A white paper on neural network quantization (2021), section 3; Frantar et al.
(2022).
"""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial

import numpy as np

from ...autograd import Tensor, no_grad
from ...backend import Array
from ...nn import Embedding, Linear, Module
from ...nn.chain import chain
from ...nn.module import ChainPart
from ...number_formats.affine import INT8, IntGrid
from .float_grid import Grid
from .gptq import gptq, hessian
from .granularity import CHANNEL, Granularity
from .layers import (
    ACTIVATIONS,
    QuantizedLinear,
    check_integer_product,
    layer_grid,
    quantizable_layers,
    set_quantized_weight,
    use_integer_inputs,
    weight_rows,
)
from .observers import Observer
from .quantized_tensor import QuantizedTensor

METHODS = ("nearest", "gptq")


def quantize(model: Module, grid: Grid = INT8, per: Granularity = CHANNEL, method: str = "nearest",
             calibration: Sequence[Array] = (), activations: bool = False,
             observer: str = "minmax", damping: float = 0.01, order: str = "index",
             skip: Sequence[str] = ()) -> Module:
    """Quantize the linear layers and embeddings of `model` in place, and return it.

    `calibration` are inputs as model.logits takes them.  `observer` (observers.py) chooses the
    ranges of weights and activations.  `damping` and `order` are GPTQ's.  Layers whose names match
    a pattern of `skip`, such as "lm_head" or "h.0.*", stay as they are.  A block format, such as
    mxfp4, fixes the granularity.  Raises ValueError for impossible combinations.
    """
    layers = not_skipped(quantizable_layers(model), skip)
    _check(layers, grid, per, method, activations, len(calibration))
    per = grid.per or per
    parts = chain(model) if method == "gptq" else []
    for _, layer in layers:
        if isinstance(layer, Embedding) or method == "nearest":
            set_quantized_weight(model, layer, QuantizedTensor.nearest(
                weight_rows(layer), *layer_grid(layer, grid, per), observer))
    _gptq_by_parts(parts, {layer for _, layer in layers}, calibration,
                   lambda layer, h: set_quantized_weight(model, layer, gptq(
                       weight_rows(layer), h, grid, per, observer, damping, order=order)))
    if model.slabs:
        model.make_slabs(model.slabs[0].data)       # without the quantized weights
    if activations:
        _fit_activations(model, observer, calibration)
    return model


def _check(layers: Sequence[tuple[str, Linear | Embedding]], grid: Grid, per: Granularity,
           method: str, activations: bool, num_batches: int) -> None:
    """Raise ValueError for impossible combinations, before anything changes."""
    if method not in METHODS:
        raise ValueError(f"a method is one of {', '.join(METHODS)}, not {method!r}")
    if (method == "gptq" or activations) and not num_batches:
        raise ValueError("gptq and activations need calibration data: give a few batches of inputs")
    if activations and not isinstance(grid, IntGrid):
        raise ValueError(f"a product of integers needs weights that are integers, not {grid.name}: "
                         "leave activations out")
    if activations:
        check_integer_product(per)
    for name, layer in layers:
        if not np.all(np.isfinite(layer.weight.data)):
            raise ValueError(f"{name}.weight has NaN or infinity, which have no place on a grid: "
                             "go back to a checkpoint that is sound")
    longest = max((layer.weight.shape[0] for _, layer in layers if isinstance(layer, Linear)),
                  default=0)
    if per.size > longest and not grid.per:
        raise ValueError(f"no layer has {per.size} inputs to share a scale, at most {longest}: "
                         "quantize per channel, or choose smaller groups")


def not_skipped(layers: list[tuple[str, Linear | Embedding]],
                skip: Sequence[str]) -> list[tuple[str, Linear | Embedding]]:
    """The layers whose names match no pattern of `skip`.

    Raises ValueError for a pattern without a match, and if no layer is left.
    """
    for pattern in skip:
        if not any(fnmatchcase(name, pattern) for name, _ in layers):
            raise ValueError(f"no layer is called {pattern!r}: there are "
                             f"{', '.join(name for name, _ in layers)}")
    left = [(name, layer) for name, layer in layers
            if not any(fnmatchcase(name, pattern) for pattern in skip)]
    if not left:
        raise ValueError(f"skipping {', '.join(skip)} leaves no layer to quantize: skip fewer")
    return left


def _gptq_by_parts(parts: Sequence[ChainPart], chosen: Container[Module],
                   calibration: Sequence[Array],
                   quantize_layer: Callable[[Linear, Array], object]) -> None:
    with no_grad():
        batches = list(calibration)
        for part in parts:
            layers = [m for module in part.modules for _, m in module.named_modules()
                      if type(m) is Linear and m in chosen]
            for layer in layers:
                quantize_layer(layer, _hessian_of(layer, part, batches))
            batches = [part(x) for x in batches]


def _hessian_of(layer: Linear, part: ChainPart, batches: Sequence) -> Array:
    """The Hessian of the inputs of `layer` in `part`, as a mean over the batches."""
    total = np.zeros((layer.weight.shape[0],) * 2, np.float64, like=layer.weight.data)

    def add(_: Module, x: Array) -> None:
        total[...] += hessian(x) / len(batches)
    with capture_inputs([layer], add):
        for x in batches:
            part(x)
    return total


def _fit_activations(model: Module, observer: str, calibration: Sequence[Array]) -> None:
    layers = [m for _, m in model.named_modules() if isinstance(m, QuantizedLinear)]
    seen = {layer: Observer(observer, ACTIVATIONS) for layer in layers}
    with no_grad(), capture_inputs(
            layers, lambda layer, x: seen[layer].observe(x.reshape(1, x.size))):
        for x in calibration:
            model.logits(x)
    for layer in layers:
        use_integer_inputs(model, layer, *seen[layer].calculate_qparams())


@contextmanager
def capture_inputs(layers: Iterable[Module],
                   see: Callable[[Module, Array], None]) -> Iterator[None]:
    """Context in which every input x of these layers is passed to see(layer, x)."""
    def watch(layer: Module, forward: Callable, x: Tensor) -> Tensor:
        see(layer, x.data)
        return forward(x)
    doors = [layer.around(partial(watch, layer)) for layer in layers]
    try:
        yield
    finally:
        for door in doors:
            door.remove()
