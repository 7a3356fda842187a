"""Lesson 23: the library's pruning on an MLP that reads digits: size, FLOPs, time, picture."""

from collections.abc import Callable

import numpy as np

from minipar.autograd import no_grad
from minipar.comm import Communicator
from minipar.comm.collectives import all_reduce
from minipar.comm.mesh import DeviceMesh
from minipar.compress.footprint import ModelVersion, measure, model_bytes, sparse_versions
from minipar.compress.pruning.masks import Masks, prunable_weights
from minipar.compress.pruning.prune import prune
from minipar.compress.pruning.saliency import magnitude, random
from minipar.compress.pruning.shrink import shrink, without_masks
from minipar.compress.pruning.structured import unit_masks
from minipar.compress.pruning.two_of_four import n_of_m
from minipar.data import Batches, digits, shard_range
from minipar.nn import MLP
from minipar.optim import AdamW
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.strategy import Microbatch
from minipar.viz import PrunedModel, draw_pruning_masks

from .kit import Lesson, Row
from .measuring import counted

SIZES, BATCH, STEPS, MORE = (64, 128, 64, 10), 64, 200, 80
ROWS, LAYER, CORNER = 512, "2.weight", (slice(48), slice(48))   # timed; drawn
WAYS = [("80 % gone", "zeros, dense"), ("80 % gone", "kept only, gathered"),
        ("90 % gone", "zeros, dense"), ("random 80 %", "zeros, dense"), ("2 of 4", "zeros, dense"),
        ("2 of 4", "compressed")]
SHOWN = ("dense", "80 % gone: zeros, dense", "80 % gone: kept only, gathered",
         "2 of 4: compressed", "half of the neurons")
SMALL, DATA = "half of the neurons", digits()
Pruned = tuple[MLP, dict[str, np.ndarray], float]       # after fine-tuning; masks; accuracy


def compare_with_library(lesson: Lesson, own_magnitude: Callable, two_of_four: Callable,
                         without_neurons: Callable) -> None:
    """Compare masks with the library's, prune a trained model in several ways, and measure it."""
    comm = lesson.comm
    dense = MLP(SIZES).initialize(0)
    train(comm, dense, range(STEPS))
    same_masks(lesson, dense, own_magnitude, two_of_four, without_neurons)
    recipes = {"dense": ("nothing", 0.0), "80 % gone": ("magnitude", 0.8),
               "90 % gone": ("magnitude", 0.9), "random 80 %": ("random", 0.8),
               "2 of 4": ("2 of 4", 0.5), SMALL: ("neurons", 0.5)}
    start = dense.state_dict()
    results = {name: pruned(comm, start, *recipe) for name, recipe in recipes.items()}
    lesson.say(f"An MLP {'-'.join(map(str, SIZES))} learns digits, is pruned in several ways "
               f"after {STEPS} steps, and trains {MORE} more. All ranks find the threshold "
               "together.")
    decide(lesson, dense, results)
    if comm.rank == 0:
        costs = report(lesson, dense, results)
        lesson.say("**A processor multiplies a zero like any number**: masks save bytes, but no "
                   "time. Gathering is *slower*. Only a smaller dense product is faster.")
        quality = {name: q for name, (_, _, q) in results.items()}
        lesson.grid(["test set", "recognized", "÷ dense"], [
            (name, f"{q:.1%}", f"{q / quality['dense']:.3f}") for name, q in quality.items()])
        points = [PrunedModel(name, 100 * quality[name.partition(":")[0]], tuple(cost))
                  for name, cost in costs.items()]
        corners = {name: masks[LAYER][CORNER] for name, (_, masks, _) in results.items()
                   if masks and name != "90 % gone"}
        kept = unit_masks(dense, 0.5)[LAYER][CORNER]
        lesson.picture(lambda path: draw_pruning_masks(
            path, {**corners, SMALL: kept}, points,
            ("size ÷ dense", "FLOPs ÷ dense", "time ÷ dense"), "digits recognized, %",
            f"Masks of the middle layer (a corner), and what pruned models cost, {ROWS} samples"))


def same_masks(lesson: Lesson, dense: MLP, own_magnitude: Callable, two_of_four: Callable,
               without_neurons: Callable) -> None:
    """Prune the trained model by the lesson's functions and by the library's."""
    comm, weights = lesson.comm, prunable_weights(dense)
    first, second, third = (p.data for p in weights.values())
    flat = np.concatenate([p.data.ravel() for p in weights.values()])
    mine = shard_range(flat.size, comm.rank, comm.size)
    own = own_magnitude(comm, flat[mine.start:mine.stop], round(0.8 * flat.size))
    masks = prune(dense, magnitude(weights), 0.8)
    flat = np.concatenate([mask.ravel() for mask in masks.values()])[mine.start:mine.stop]
    small = MLP(SIZES).initialize(0)
    small.load_state_dict(dense.state_dict())
    Masks(small, unit_masks(small, 0.5))
    sizes = [w.shape for w in without_neurons(first, second, SIZES[1] // 2)]
    lesson.say("The library cuts masks as a model is cut over ranks, and prunes each kind of model "
               "that it has. On the trained weights:")
    lesson.table([
        Row("magnitude, 80 %: masks that differ from the lesson's", 0, int(np.sum(flat != own))),
        Row("2 of 4: masks that differ", 0, int(np.sum(n_of_m(np.abs(second)) != two_of_four(
            second)))),
        Row("half of the neurons: columns of the first layer", shrink(small)[0].sizes[1],
            sizes[0][1])], "the lesson's, and the library's")


def train(comm: Communicator, model: MLP, steps: range) -> float:
    """Train data-parallel; return the accuracy on the test set."""
    strategy = DistributedDataParallel(model, comm)
    optimizer, batches = AdamW(strategy.slabs, 3e-3), Batches(DATA.train_x, DATA.train_y, BATCH, 0)
    for step in steps:
        optimizer.zero_grad()
        rows, batch = strategy.rows(BATCH), batches.batch(step)
        strategy.forward_backward([Microbatch(*(a[rows.start:rows.stop] for a in batch))], 0, step)
        strategy.step(optimizer)
    with no_grad():
        return float(np.mean(model.logits(DATA.test_x).data.argmax(1) == DATA.test_y))


def pruned(comm: Communicator, start: dict, how: str, amount: float) -> Pruned:
    """Prune a trained model in one way, or not at all, and fine-tune it."""
    model, later = MLP(SIZES).initialize(0), range(STEPS, STEPS + MORE)
    model.load_state_dict(start)
    parameters = prunable_weights(model)
    if how in ("nothing", "neurons"):
        Masks(model, unit_masks(model, amount))
        model, _ = shrink(model)
        return model, {}, train(comm, model, later)
    if how == "2 of 4":
        found = {name: n_of_m(s) for name, s in magnitude(parameters).items()}
    else:
        scores = random(parameters) if how == "random" else magnitude(parameters)
        found = prune(model, scores, amount, mesh=DeviceMesh(comm, dp=-1))
    masks = Masks(model, found)
    return model, masks.local_masks(), train(comm, model, later)


def predict(sizes: tuple[int, ...], masks: dict[str, np.ndarray], way: str = "") -> tuple[int, int]:
    """Bytes to store and FLOPs of one forward of ROWS samples."""
    pairs, biases = list(zip(sizes, sizes[1:])), sum(sizes[1:])
    n, kept = sum(a * b for a, b in pairs), sum(int(mask.sum()) for mask in masks.values())
    num_bytes = {"": 4 * n, "zeros, dense": 4 * kept + n // 8, "compressed": 4 * kept + kept // 4,
                 "kept only, gathered": 8 * kept + 4 * (biases + len(pairs))}
    products = n if way in ("", "zeros, dense") else kept
    return num_bytes[way] + 4 * biases, ROWS * (2 * products + biases + sum(sizes[1:-1]))


def decide(lesson: Lesson, dense: MLP, results: dict[str, Pruned]) -> None:
    """Show that all ranks decide the same masks, and with which messages."""
    comm = lesson.comm
    trace, masks = counted(comm, lambda: prune(dense, magnitude(prunable_weights(dense)), 0.8,
                                               mesh=DeviceMesh(comm, dp=-1)))
    once, _ = counted(comm, lambda: all_reduce(comm, np.zeros(256, np.int64)))
    bits = np.concatenate([mask.ravel() for mask in masks.values()]).astype(np.int8)
    differ = np.sum(all_reduce(comm, bits, "max") != all_reduce(comm, bits, "min"))
    if comm.rank:
        return
    n, left = bits.size, results["80 % gone"][1].values()
    fours = results["2 of 4"][1][LAYER].reshape(-1, 4, SIZES[2]).sum(1)
    lesson.table([
        Row("all-reduces of 256 counts: bytes of a float32", 4 if comm.size > 1 else 0,
            trace.bytes_sent(label="masks") // max(1, once.bytes_sent())),
        Row("weights whose mask differs between ranks", 0, int(differ)),
        Row("80 % gone: weights that remain", n - round(0.8 * n), sum(map(np.sum, left))),
        Row("2 of 4: fewest kept of four inputs", 2, int(fours.min())),
        Row("2 of 4: most", 2, int(fours.max()))], "masks")


def report(lesson: Lesson, dense: MLP, results: dict[str, Pruned]) -> dict[str, list[float]]:
    """Show size, FLOPs and time; return them as fractions of the dense model's."""
    versions = {"dense": ModelVersion(model_bytes(dense), without_masks(dense))}
    predicted = {"dense": predict(SIZES, {})}
    for name, way in WAYS:
        model, masks, _ = results[name]
        versions[f"{name}: {way}"] = sparse_versions(model, masks, name == "2 of 4")[way]
        predicted[f"{name}: {way}"] = predict(SIZES, masks, way)
    small = results[SMALL][0]
    versions[SMALL] = ModelVersion(model_bytes(small), small)
    predicted[SMALL] = predict(small.sizes, {})
    found = measure(versions, DATA.train_x[:ROWS])
    before = found["dense"]
    lesson.counts([Row(name, predicted[name][0], cost.num_bytes, "B")
                   for name, cost in found.items()], "Bytes of eight versions")
    lesson.counts([Row(name, predicted[name][1], cost.flops, "FLOPs")
                   for name, cost in found.items()], f"FLOPs of a forward of {ROWS} samples")
    lesson.grid(["", "bytes ÷ dense", "FLOPs ÷ dense", "time ÷ dense"], [
        (name, *(f"{part:.2f}" for part in (cost.num_bytes / before.num_bytes,
                                            cost.flops / before.flops,
                                            cost.seconds / before.seconds)))
        for name, cost in found.items() if name in SHOWN])
    return {name: [cost.num_bytes / before.num_bytes, cost.flops / before.flops,
                   cost.seconds / before.seconds] for name, cost in found.items()}
