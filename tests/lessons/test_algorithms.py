"""Each function of a lesson equals the library's: one table of functions and counterparts.

`own` calls the lesson's function on this rank's data, `library` its counterpart; both return arrays
or lists of arrays.  (Those of lessons/micro.py: test_micro.py.)
"""

import runpy
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from minipar.comm import Cluster, Communicator, collectives
from minipar.comm.collectives.all_reduce import torus
from minipar.comm.cost import fit
from minipar.nn import GPT, MLP, GPTConfig
from minipar.optim import AdamW
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.testing import worlds
from tests.lessons.test_form import LESSONS, ROOT, SCRIPTS, parts_of

SIZES = (0, 1, 7, 24)


class Case(NamedTuple):
    """A function of a lesson, and how the library does the same."""

    lesson: int
    function: str
    own: Callable[..., Any]         # (the function, comm, size, all names of the lesson)
    library: Callable[..., Any]     # (comm, size)
    sizes: tuple[int, ...] = SIZES
    tolerance: float = 0.0


def numbers(comm, size):
    """This rank's numbers, whole, so that every order of adding gives the same sum."""
    return np.random.default_rng(comm.rank).integers(-99, 99, size).astype(float)


# ---- lesson 00: `size` is the number of layers

def small_gpt(layers):
    config = GPTConfig(50, 16, layers, 2, 8)
    return config, GPT(config).initialize()


def count_parameters(function, comm, layers, names):
    return function(50, 16, layers, 8)


def count_bytes(function, comm, layers, names):
    return function(small_gpt(layers)[1].num_parameters())


def count_flops(function, comm, layers, names):
    """Of the weights in products, of 3 sequences."""
    return function(12 * layers * 8**2 + 50 * 8, 3 * 16)


def library_bytes(comm, layers):
    from support.lesson_00 import count_bytes
    model = small_gpt(layers)[1]
    return count_bytes(model, AdamW(model.slabs))


def library_flops(comm, layers):
    """Without those of the biases, 2 · 9 d a layer and token."""
    from support.lesson_00 import count_flops, run
    ids = np.zeros((3, 16), int)
    meter, _ = run(small_gpt(layers)[1], ids, ids, 3 * 16)
    return count_flops(meter)["linear layers"] - 3 * 16 * 2 * 9 * layers * 8


def train_a_step(function, comm, layers, names):
    weights, x, labels = mlp_data(layers)
    function(comm, weights, x, labels, 0.01)
    return weights


def mlp_data(layers):
    rng = np.random.default_rng(layers)
    return list(rng.normal(0, 0.5, (layers, 8, 8))), rng.random((13, 8)), rng.integers(0, 8, 13)


def library_step(comm, layers):
    weights, x, labels = mlp_data(layers)
    model = MLP([8] * (layers + 1)).initialize(0, np.float64)
    for i, weight in enumerate(weights):
        model[2 * i].weight.data[...], model[2 * i].bias.data[...] = weight, 0
    strategy = make_strategy("ddp", model, comm)
    mine = np.array(strategy.rows(13), int)
    strategy.forward_backward([Microbatch(x[mine], labels[mine], mine)])
    strategy.step(AdamW(strategy.slabs, lr=0.01, weight_decay=0.0))
    return [strategy.state_dict()[f"{2 * i}.weight"] for i in range(layers)]


# ---- lesson 01

def times_of(size):
    """Seconds of messages, a line with noise, and their bytes."""
    n = np.array([8 * 4**k for k in range(8 + size)])      # so that no part is negative
    return n, (5e-6 + n * 1e-10) * (1 + 0.1 * np.random.default_rng(size).random(len(n)))


def library_fit(comm, size):
    link, _ = fit(*times_of(size))
    return [link.latency, 1 / link.bandwidth]


def from_the_left(function, comm, size, names):
    """Of a rank alone only what does not wait for itself."""
    x = numbers(comm, size)
    return x if comm.size == 1 else function(comm, x)


def gathered_from_the_left(comm, size):
    return collectives.all_gather(comm, numbers(comm, size)[None])[comm.rank - 1]


# ---- lesson 02: in place; what is no result of the operation counts as nothing

def in_place(function, comm, size, names):
    """Called on a copy of this rank's numbers."""
    function(comm, x := numbers(comm, size))
    return x


def in_segments(function, comm, size, names):
    function(comm, x := numbers(comm, size), 3)
    return x


def scattered(function, comm, size, names):
    return names["pieces"](comm, in_place(function, comm, size, names), comm.rank, 1)


def on_root(function, comm, size, names):
    x = in_place(function, comm, size, names)
    return None if comm.rank else x


def by_broadcast(name):
    return lambda comm, size: collectives.broadcast(comm, numbers(comm, size), algorithm=name)


def by_gather(comm, size):
    x = numbers(comm, size)
    bounds = collectives.chunk_bounds(size, comm.size)
    return collectives.gather(comm, x[slice(*bounds[comm.rank])], algorithm="binomial",
                              counts=[stop - start for start, stop in bounds])


# ---- lesson 03: a row of `size` numbers for each rank

def matrix(comm, size):
    return numbers(comm, comm.size * size).reshape(comm.size, size)


def gather_rows(function, comm, size, names):
    function(comm, rows := matrix(comm, size))
    return rows


def by_all_gather(name):
    return lambda comm, size: collectives.all_gather(
        comm, matrix(comm, size)[comm.rank][None], algorithm=name)


def by_reduce_scatter(name):
    return lambda comm, size: collectives.reduce_scatter(
        comm, matrix(comm, size), algorithm=name)[0]


def on_power_of_two(call):
    """The call on as many of the ranks as a power of two; on the others, nothing."""
    def run(*args):
        at = next(i for i, arg in enumerate(args) if isinstance(arg, Communicator))
        comm = args[at]
        core = comm.split(0 if comm.rank < 2**(comm.size.bit_length() - 1) else None)
        return None if core is None else call(*args[:at], core, *args[at + 1:])
    return run


# ---- lesson 04

def on_numbers(function, comm, size, names):
    return function(comm, numbers(comm, size))


def on_any_number(function, comm, size, names):
    """An algorithm for 2^k ranks, on all ranks."""
    return names["on_any_number"](function, comm, numbers(comm, size))


def on_nodes(function, comm, size, names):
    """On one node; and, if p is even, on nodes of 2 ranks."""
    x = numbers(comm, size)
    return [function(comm, x, per_node) for per_node in ([2] if comm.size % 2 == 0 else []) + [
        comm.size]]


def by_all_reduce(name):
    return lambda comm, size: collectives.all_reduce(comm, numbers(comm, size), algorithm=name)


def by_torus(comm, size):
    x, found = numbers(comm, size), []
    for per_node in ([2] if comm.size % 2 == 0 else []) + [comm.size]:
        found.append(x.copy())
        torus(comm, found[-1], "sum", per_node)
    return found


# ---- lesson 05: a row for each rank, as in lesson 03

def on_matrix(function, comm, size, names):
    return function(comm, matrix(comm, size))


def by_all_to_all(name):
    return lambda comm, size: collectives.all_to_all(comm, matrix(comm, size), algorithm=name)


def leaving(wait):
    """When simulated ranks leave a barrier that rank r reaches after r seconds."""
    def late(comm):
        comm.report_compute("compute", int(comm.rank * comm.cluster.flops_per_second), 0, 0.0)
        wait(comm)
        return comm.now()

    def run(comm):
        wait(comm)
        return Cluster(comm.size).run(late)[0]
    return run


# ---- lesson 12: `size` is the number of microbatches

def pipeline_data(comm, m):
    """Weights of all ranks, samples and labels (m, rows, …)."""
    rng = np.random.default_rng(m)
    return (rng.standard_normal((comm.size, 16, 16)) / 4, rng.standard_normal((m, 4, 16)),
            rng.integers(0, 16, (m, 4)))


def run_stage(schedule, comm, m, names):
    weights, x, labels = pipeline_data(comm, m)
    stage = names["Stage"](comm, weights[comm.rank], x, labels)
    schedule(stage, m)
    for request in stage.sends:
        request.wait()
    return stage.weight.grad


def by_executor(name):
    def run(comm, m):
        from support.lesson_12 import library_gradients
        return library_gradients(comm, name, *pipeline_data(comm, m))[comm.rank]
    return run


CASES = [
    Case(1, "fit", lambda function, comm, size, names: function(*times_of(size)), library_fit,
         (0, 1, 6), 1e-15),
    Case(1, "at_once", from_the_left, gathered_from_the_left),
    Case(1, "without_waiting", from_the_left, gathered_from_the_left),
    Case(1, "in_turn", from_the_left, gathered_from_the_left),
    Case(0, "parameters", count_parameters,
         lambda comm, layers: small_gpt(layers)[1].num_parameters(), (1, 3)),
    Case(0, "training_bytes", count_bytes, library_bytes, (1, 3)),
    Case(0, "training_flops", count_flops, library_flops, (1, 3)),
    Case(0, "train", train_a_step, library_step, (1, 3), 1e-9),
    Case(2, "tree", in_place, by_broadcast("binomial")),
    Case(2, "chain", in_segments, by_broadcast("pipelined_chain")),
    Case(2, "scatter_all_gather", in_place, by_broadcast("scatter_all_gather")),
    Case(2, "scatter", scattered, lambda comm, size: collectives.scatter(
        comm, numbers(comm, size), algorithm="binomial")),
    Case(2, "gather", on_root, by_gather),
    Case(3, "ring", gather_rows, by_all_gather("ring")),
    Case(3, "doubling", on_power_of_two(gather_rows),
         on_power_of_two(by_all_gather("recursive_doubling"))),
    Case(3, "bruck", gather_rows, by_all_gather("bruck")),
    Case(3, "ring_reduce_scatter", lambda function, comm, size, names: function(
        comm, matrix(comm, size)), by_reduce_scatter("ring")),
    Case(3, "halving", on_power_of_two(lambda function, comm, size, names: function(
        comm, matrix(comm, size))), on_power_of_two(by_reduce_scatter("recursive_halving"))),
    Case(4, "ring", on_numbers, by_all_reduce("ring")),
    Case(4, "double", on_any_number, by_all_reduce("recursive_doubling")),
    Case(4, "halve_and_double", on_any_number, by_all_reduce("rabenseifner")),
    Case(4, "two_levels", on_nodes, by_torus),
    Case(5, "pairwise", on_matrix, by_all_to_all("pairwise")),
    Case(5, "bruck", on_matrix, by_all_to_all("bruck")),
    Case(5, "scan", on_matrix, lambda comm, size: collectives.scan(
        comm, matrix(comm, size), algorithm="recursive_doubling")),
    Case(5, "barrier", lambda function, comm, size, names: leaving(function)(comm),
         lambda comm, size: leaving(partial(collectives.barrier, algorithm="dissemination"))(comm),
         (1,)),
    Case(12, "gpipe", run_stage, by_executor("gpipe"), (1, 3, 8), 1e-14),
    Case(12, "one_f_one_b", run_stage, by_executor("1f1b"), (1, 3, 8), 1e-14),
]
PARTS = {           # of these functions, or made of them: without counterparts
    0: {"devices", "counted_linear"}, 1: {"neighbours", "ping_pong", "send_first"},
    2: {"pieces"}, 4: {"on_any_number"}, 12: {"Stage"}}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_function_is_in_the_table(script):
    lesson = int(script.name[:2])
    defined = {node.name for node in parts_of(script)[1] if hasattr(node, "name")}
    assert defined == {case.function for case in CASES if case.lesson == lesson} | PARTS.get(
        lesson, set())


@worlds(1, 2, 3, 4, 5)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.lesson:02}-{case.function}")
def test_a_function_equals_its_counterpart(world, case, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "lessons")
    monkeypatch.setattr(sys, "argv", ["lesson"])
    script = next(path for path in LESSONS if int(path.name[:2]) == case.lesson)
    names = runpy.run_path(str(script))

    def body(comm):
        for size in case.sizes:
            found = case.own(names[case.function], comm, size, names)
            right = case.library(comm, size)
            for one, other in zip(as_list(found), as_list(right), strict=True):
                assert np.shape(one) == np.shape(other), size
                np.testing.assert_allclose(one, other, rtol=0, atol=case.tolerance)
    world.run(body)


def as_list(result: Any) -> list:
    """The arrays of a result; a number or None counts as one."""
    if result is None:
        return [np.zeros(0)]
    return list(result) if isinstance(result, list | tuple) else [np.asarray(result)]
