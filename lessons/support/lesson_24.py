"""Lesson 24: the library's quantization of an MLP that reads digits; errors, bytes, picture."""

from collections.abc import Callable

import numpy as np

from minipar.autograd import no_grad
from minipar.comm import Communicator
from minipar.compress import (
    Granularity,
    IntGrid,
    QuantizedTensor,
    affine_matmul,
    convert,
    pack_quantized,
    prepare_qat,
)
from minipar.compress.quantization import gptq
from minipar.compress.quantization.layers import ACTIVATIONS, weight_rows
from minipar.compress.quantization.observers import weight_qparams
from minipar.compress.quantization.post_training import quantize
from minipar.data import Batches, digits
from minipar.nn import MLP
from minipar.optim import SGD
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.strategy import Microbatch
from minipar.viz import GridPanel, draw_quantization_grids

from .kit import Lesson, Row

SIZES = [64, 96, 48, 10]
STEPS, MORE = 150, 60
PERS = [Granularity("tensor"), Granularity("channel"), Granularity("group", 32)]


def compare_with_library(lesson: Lesson, encode: Callable, product: Callable,
                         own_gptq: Callable) -> None:
    """Compare codes, products and GPTQ with the library's; quantize and score a trained MLP."""
    trained = train(lesson.comm, MLP(SIZES).initialize(0), 0, STEPS).state_dict()
    w, x = weight_rows(fresh(trained)[0]), digits().train_x[:256]
    same_numbers(lesson, w, x, encode, product, own_gptq)
    weight_errors(lesson, w)
    integer_products(lesson, trained, w, x)
    quality(lesson, trained, x)
    draw(lesson, w)


def same_numbers(lesson: Lesson, w: np.ndarray, x: np.ndarray, encode: Callable, product: Callable,
                 own_gptq: Callable) -> None:
    """Encode, multiply and round by the lesson's functions and by the library's."""
    grid, channel = IntGrid(8, "asymmetric"), Granularity("channel")
    kept = QuantizedTensor.nearest(w, grid, channel)
    codes, zero = kept.codes().T, kept.zero.T
    sx, zx = weight_qparams(x.reshape(1, -1), grid)
    inputs = grid.encode(x, sx, zx)
    sums = product(inputs.astype(int), int(zx[0, 0]), codes.astype(int), zero.astype(int))
    few = gptq.gptq(w[:1], gptq.hessian(x), IntGrid(4, "asymmetric"), channel).rows()
    lesson.say(f"An MLP {SIZES} was trained, data-parallel. The library's codes have 8 bits, "
               "its scales are float32. On the first layer's weights and 256 images:")
    lesson.table([
        Row("codes of weights that differ from the lesson's", 0, int(np.sum(codes != encode(
            w.T, kept.scale.T, zero, 8)))),
        Row("sums of the product that differ", 0, int(np.sum(sums != affine_matmul(
            inputs, zx, codes, zero)))),
        Row("GPTQ of an output, 4 bits: largest difference", 1e-5, float(np.abs(
            few[0] - own_gptq(w[0].astype(float), x.astype(float), 4)).max()), "", "≤")],
        "the lesson's, and the library's")


def weight_errors(lesson: Lesson, w: np.ndarray) -> None:
    """Round the weights w (out, in) to grids: errors inside a grid, and beyond its end."""
    rows = []
    for bits in (8, 4):
        for per in PERS:
            kept = QuantizedTensor.nearest(w, IntGrid(bits), per)
            rows.append(Row(f"int{bits} per {per}: largest error of a weight, at most scale / 2",
                            float(kept.scale.max()) / 2 * (1 + 1e-5),
                            float(np.abs(w - kept.rows()).max()), rule="≤"))
            rows.append(Row(f"int{bits} per {per}",
                            float(np.sqrt(np.mean(kept.scale**2) / 12)),
                            float(np.sqrt(np.mean((w - kept.rows())**2))), rule="≈"))
    lesson.counts(rows[::2], "Largest error of a weight, at most half a step")
    lesson.table(rows[1::2], "root of the mean squared error, scale / √12")
    grid, end = IntGrid(8), np.abs(w).max()        # the largest weight: where the grid ends
    scale, zero = grid.calculate_qparams(-end, end)
    beyond = grid.decode(grid.encode(2 * end, scale, zero), scale, zero)
    lesson.say("A grid fitted to these weights ends at the largest. A number twice as large is "
               "clipped, so its error is half of itself:")
    lesson.table([Row("int8: |x − x̂| of the largest weight, at most scale / 2", float(scale) / 2,
                      abs(float(end - grid.decode(grid.encode(end, scale, zero), scale, zero))),
                      rule="≤"),
                  Row("   of twice the largest weight", float(end), float(2 * end - beyond),
                      rule="≈")], "inside the grid, and outside")


def integer_products(lesson: Lesson, trained: dict[str, np.ndarray], w: np.ndarray,
                     x: np.ndarray) -> None:
    """Multiply inputs x (rows, in) and weights w (out, in) as integers; count the bytes."""
    kept = QuantizedTensor.nearest(w, IntGrid(8), Granularity("channel"))
    sx, zx = weight_qparams(x.reshape(1, -1), ACTIVATIONS)
    codes, k = ACTIVATIONS.encode(x, sx, zx), w.shape[1]
    sums = affine_matmul(codes, zx, kept.codes().T, kept.zero.T)
    direct = (codes.astype(np.int64) - int(zx[0, 0])) @ kept.codes().T.astype(np.int64)
    s_x, s_w, largest_w = float(sx[0, 0]), kept.scale.T, np.abs(w).max(axis=1)
    bound = k * (largest_w * s_x + np.abs(x).max() * s_w) / 2 + k * s_x * s_w / 4
    small = quantize(fresh(trained), IntGrid(8))
    lesson.say("With quantized inputs a layer's product is a product of integers: "
               "Σ (a − z) b = Σ a b − z Σ b, so a zero point costs only a column sum.")
    weights = sum(a * b for a, b in zip(SIZES, SIZES[1:]))
    outputs = sum(SIZES[1:])
    lesson.table([
        Row("int8 product: sum of all integers", int(direct.sum()), int(sums.sum())),
        Row("   outputs that differ from int64's", 0, int(np.sum(direct != sums))),
        Row(f"   largest error ÷ K(|w|sₓ + |x|s_w)/2 + K sₓs_w/4, K = {k}", 1.0,
            float((np.abs(x @ w.T - sums * s_x * s_w) / bound).max()), rule="≤"),
        Row("bytes, float32: 4 a number", 4 * (weights + outputs), num_bytes(fresh(trained)), "B"),
        Row("bytes, int8: 1 a weight + a scale and a bias an output", weights + 8 * outputs,
            num_bytes(small), "B"),
        Row("bytes, int4: 1/2 a weight + a scale and a bias an output", weights // 2 + 8 * outputs,
            num_bytes(quantize(fresh(trained), IntGrid(4))), "B")], "products and bytes")


def quality(lesson: Lesson, trained: dict[str, np.ndarray], x: np.ndarray) -> None:
    """Score the model in 8, 4 and 2 bits; train it for 2 bits."""
    models = {"float32": fresh(trained), "int8": quantize(fresh(trained), IntGrid(8)),
              "int8, weights and inputs": quantize(fresh(trained), IntGrid(8), calibration=[x],
                                           activations=True)}
    for bits, method in ((4, "nearest"), (2, "nearest"), (2, "gptq")):
        models[f"int{bits}, {method}"] = quantize(fresh(trained), IntGrid(bits), method=method,
                                                  calibration=[x])
    aware = train(lesson.comm, prepare_qat(fresh(trained), IntGrid(2)), STEPS, STEPS + MORE, 0.02)
    found = {name: score(m) for name, m in models.items()}
    faked = score(aware)
    found[f"int2, trained with it for {MORE} steps"] = score(convert(aware))
    assert found["int2, gptq"][0] < found["int2, nearest"][0], "GPTQ did not help"
    assert faked[0] < found["int2, nearest"][0], "training did not help"
    assert abs(score(aware)[0] - faked[0]) < 1e-5, "what was trained is not what is stored"
    assert found.pop("int8")[0] < 1.01 * found["float32"][0] + 1e-3, "int8 should be for free"
    lesson.grid(["measured on 360 test images", "loss", "recognized"],
                [(name, f"{loss:.3f}", f"{right:.1%}") for name, (loss, right) in found.items()])
    lesson.say("Quantization-aware training for 2 bits is data-parallel, too. Fake quantization "
               "stands between a parameter and its uses, so gradients, optimizer and messages "
               "remain as they are for float weights. Equal weights have equal grids on all ranks. "
               "Afterwards the float weights go, and the codes give the loss of the training.")


def draw(lesson: Lesson, w: np.ndarray) -> None:
    """Draw the weights and their grids: one for all channels, and one for a channel."""
    narrow = w[np.abs(w).max(axis=1).argmin()]
    common, own = (weight_qparams(some.reshape(1, -1), IntGrid(4))[0][0, 0] for some in (w, narrow))
    panels = [GridPanel(name, some, np.arange(-7, 8) * scale) for name, some, scale in (
        ("All channels on one grid", w, common), ("The narrowest channel on it", narrow, common),
        ("The narrowest channel on its own", narrow, own))]
    lesson.picture(lambda path: draw_quantization_grids(
        path, panels, "First layer of the MLP in 4 bits"))


def train(comm: Communicator, model: MLP, first: int, last: int, lr: float = 0.1) -> MLP:
    """Train steps first … last - 1, data-parallel."""
    strategy, data = DistributedDataParallel(model, comm), digits()
    optimizer, batches = SGD(strategy.slabs, lr, 0.9), Batches(data.train_x, data.train_y, 64, 0)
    for step in range(first, last):
        optimizer.zero_grad()
        batch = batches.batch(step)
        rows = strategy.rows(len(batch[0]))
        strategy.forward_backward([Microbatch(*(a[rows.start:rows.stop] for a in batch))], 0, step)
        strategy.step(optimizer)
    return model


def fresh(state: dict[str, np.ndarray]) -> MLP:
    """A new model with these parameters, without any strategy."""
    model = MLP(SIZES).initialize(0)
    model.load_state_dict(state)
    return model


def score(model: MLP) -> tuple[float, float]:
    """Loss in nats and accuracy on the test images."""
    data = digits()
    with no_grad():
        logits = model.logits(data.test_x)
        loss = float(model.criterion(logits, data.test_y).data)
    return loss, float(np.mean(logits.data.argmax(axis=1) == data.test_y))


def num_bytes(model: MLP) -> int:
    """The bytes of a plain or quantized model in a checkpoint."""
    plain = all(hasattr(m, "weight") and not hasattr(m, "quantized") for m in list(model)[::2])
    arrays = model.state_dict() if plain else pack_quantized(model)[0]
    return sum(array.nbytes for array in arrays.values())
