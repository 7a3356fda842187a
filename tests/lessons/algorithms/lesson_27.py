"""Lesson 27; `size` is a number of nodes, or unused."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np

from minipar.comm.cost.textbook import textbook
from minipar.plan import search
from minipar.plan.cluster import ClusterSpec, Software
from minipar.plan.models import layer_parameters, model_of
from minipar.plan.time import messages
from minipar.plan.time.step_time import step_time
from tests.lessons.algorithms import Case, says

# Nothing but what the lesson has: no latency, no attention, no head, products at their full rate.
SOFTWARE = Software(product=1.0, flash=(1e9, 1e9), unfused=1e-12, loss=0.0, link=1.0, nic=1.0,
                    adam_bytes=0.0, zero1_bytes=4.0)
CARDS, SAMPLES = ClusterSpec("", "", {"bf16": 5e14}, 8e10, 8e10, 1e20, 128, 3e11, 4e10,
                             software=SOFTWARE), 48


def wide_model(layers):
    """So wide and long that products do not lose time on short sums."""
    return model_of({"layers": layers, "width": 2**22, "heads": 64, "vocab": 64, "sequence": 2**20,
                     "gated": False})


def same_model(names, layers):
    """The lesson's: half a layer is a block."""
    model = wide_model(layers)
    return names["Model"](2 * layers, layer_parameters(model) // 2, model.width, model.context, 2,
                          (2, 2, 12), (5, 12))


def same_cluster(names, nodes, alpha=0.0):
    return names["Cluster"](8 * nodes, 8, 5e14, 8e10, alpha, 3e11, 4e10)


def library_layouts(nodes):
    """Those with 1F1B, no recomputation, and ZeRO-1 where there is dp."""
    every = search.layouts(replace(CARDS, nodes=nodes), wide_model(8 * nodes), SAMPLES)
    return [replace(e, sp=False) for e in every
            if (e.schedule, e.remat, e.cp) == ("1f1b", "none", 1)
            and e.kind == ("zero1" if e.dp > 1 else "ddp")]


def same_layout(names, e):
    return names["Layout"](e.dp, e.tp, e.pp, e.microbatch)


def library_sizes(comm, nodes):
    model = wide_model(8 * nodes)
    return np.array([(e.microbatches, model.num_layers * layer_parameters(model) // (e.tp * e.pp),
                      2 * e.microbatch * model.context * model.width)
                     for e in library_layouts(nodes)])


def meshes(p):
    """The layouts of p ranks, with microbatches of 2 samples."""
    return [SimpleNamespace(dp=dp, tp=tp, pp=pp, b=2)
            for dp, tp, pp in product(*3 * [range(1, p + 1)]) if dp * tp * pp == p]


def planned(comm, names, which):
    """Of the MLP of lesson_27.step for each mesh: bytes by axis, or by kind."""
    from support.lesson_27 import expected
    found = [expected(SimpleNamespace(**names), comm.size, names["Layout"](**vars(e)))[which]
             for e in meshes(comm.size)]
    return [np.array([*each.values()]) for each in found]


def sent_by_library(comm, size):
    from support.lesson_27 import step
    found = [step(comm, e).sent for e in meshes(comm.size)]
    return [np.array([each[axis] for axis in ("tp", "pp", "dp")]) for each in found]


def held_by_library(comm, size):
    """On all ranks; but only the first stage has its activations predicted."""
    from support.lesson_27 import step
    steps = [step(comm, e) for e in meshes(comm.size)]
    kinds = ("parameters", "gradients", "optimizer states", "activations")
    return [np.array([each.peaks[kind] for kind in kinds]) for each in steps]


def of_first_stage(comm, found):
    """Rank 0's, since later stages have fewer microbatches in flight."""
    from minipar.comm.collectives import broadcast
    return [broadcast(comm, np.array(each, float)) for each in found]


def rings(nodes):
    """(ranks, how far they are apart) on nodes of 8."""
    return [(p, apart) for p in (1, 2, 4, 8, 16, 64) for apart in (1, 2, 4, 8, 16)
            if p * apart <= 8 * nodes]


def times(function, comm, nodes, names):
    """Relative to the library's."""
    model, cluster = same_model(names, 8 * nodes), same_cluster(names, nodes)
    return np.array([function(model, cluster, same_layout(names, e), SAMPLES) / step_time(
        replace(CARDS, nodes=nodes), wide_model(8 * nodes), e).seconds
        for e in library_layouts(nodes) if e.pp <= 2 and e.dp * e.tp >= 8])


CASES = [
    Case("layouts", lambda own, comm, nodes, names: np.array(sorted(
        own(same_model(names, 8 * nodes), 8 * nodes, SAMPLES))),
        lambda comm, nodes: np.array(sorted((e.dp, e.tp, e.pp, e.microbatch)
                                            for e in library_layouts(nodes))), (1, 2)),
    Case("sizes", lambda own, comm, nodes, names: np.array([own(
        same_model(names, 8 * nodes), same_layout(names, e), SAMPLES)
        for e in library_layouts(nodes)]), library_sizes, (1, 2)),
    Case("sent", lambda own, comm, size, names: of_first_stage(comm, planned(comm, names, 0)),
         lambda comm, size: of_first_stage(comm, sent_by_library(comm, size)), (1,)),
    Case("memory", lambda own, comm, size, names: of_first_stage(comm, planned(comm, names, 1)),
         lambda comm, size: of_first_stage(comm, held_by_library(comm, size)), (1,)),
    Case("rate", lambda own, comm, nodes, names: np.array([
        own(same_cluster(names, nodes), *ring) for ring in rings(nodes)]),
        lambda comm, nodes: np.array([messages.rate(replace(CARDS, nodes=nodes), *ring)
                                      for ring in rings(nodes)]), (1, 8)),
    Case("all_reduce", lambda own, comm, nodes, names: np.array([
        own(same_cluster(names, nodes, 1.0), *ring, 3e12) for ring in rings(nodes)]),
        lambda comm, nodes: np.array([
            cost.rounds + cost.num_bytes / messages.rate(replace(CARDS, nodes=nodes), p, apart)
            for p, apart in rings(nodes)
            for cost in [textbook("all_reduce", "ring", p, 3e12)]]), (1, 8), 1e-9),
    Case("seconds", times, lambda comm, nodes: np.ones(sum(
        e.pp <= 2 and e.dp * e.tp >= 8 for e in library_layouts(nodes))), (1, 2), 1e-3),
]
PARTS = {"plan"}                                # what is sorted is checked above


def check_change(names):
    """No layout of Llama fits; small batches do."""
    from support import lesson_27
    own = SimpleNamespace(**names)
    model, cluster = lesson_27.llama(own), lesson_27.cluster_of(own, 64)
    assert not own.plan(model, cluster, lesson_27.BATCH)
    assert min(own.sizes(model, e, lesson_27.BATCH)[0] for e in own.layouts(model, 64, 512)
               if e.dp == 64 and e.b == 1) == 8
    fit = {batch: len(own.plan(model, cluster, batch)) for batch in (32, 64)}
    assert fit == {32: 5, 64: 0}
    says("27", "Nothing. A step has 512 sequences", "at least 8 microbatches",
         "32 sequences fit in five ways, 64 in none")
