"""Lesson 19; `size` is the number of a row of annotations, or of a matrix's own rows."""

import numpy as np

from minipar.comm import Cluster, collectives
from minipar.gspmd import plan
from tests.lessons.algorithms import Case, numbers, says


def dims(cut):
    """The cut dimension of each tensor, -1 for none."""
    return [np.array(cut.get(name, -1)) for name in ("x", "w1", "w2")]


def own_types(propagate, comm, size, names):
    from support.lesson_19 import ANNOTATIONS
    return dims(propagate(names["PROGRAM"], ANNOTATIONS[size]))


def library_types(comm, size):
    from support.lesson_19 import ANNOTATIONS, TwoProducts, half_squares, spec, whole_tensors
    whole = whole_tensors(2)
    inputs = plan(half_squares, whole["x"], model=TwoProducts(whole["w1"], whole["w2"]),
                  mesh={"ranks": 2}, names=["x"], dtype=np.float64, annotations={
                      name: spec(dim) for name, dim in ANNOTATIONS[size].items()}).program.inputs
    return dims({name: dim for name, local in inputs.items()
                 for dim, axes in enumerate(local.layout.dims) if axes})


def own_run(run, comm, size, names):
    from support.lesson_19 import ANNOTATIONS, own_results
    return own_results(comm, names["PROGRAM"], names["propagate"], run, ANNOTATIONS[size])


def library_run(comm, size):
    from support.lesson_19 import ANNOTATIONS, library_results
    return library_results(comm, ANNOTATIONS[size])


def own_gather(gather, comm, size, names):
    """The whole, and the gradient of a piece, if each rank has another gradient of the whole."""
    found = []
    for dim in (0, 1):
        x = names["Tensor"](numbers(comm, 3 * size).reshape((size, 3) if dim == 0 else (3, size)))
        whole = gather(x, comm, dim)
        names["backward"](whole, (comm.rank + 1) * whole.data)
        found += [whole.data, x.grad]
    return found


def library_gather(comm, size):
    found = []
    for dim in (0, 1):
        piece = numbers(comm, 3 * size).reshape((size, 3) if dim == 0 else (3, size))
        rows = collectives.all_gather(comm, piece if dim == 0 else piece.T.copy())
        grad = collectives.reduce_scatter(comm, (comm.rank + 1) * rows).reshape(size, 3)
        found += [rows, grad] if dim == 0 else [rows.T, grad.T]
    return found


CASES = [
    Case("propagate", own_types, library_types, (0, 1, 2)),
    Case("run", own_run, library_run, (0, 1, 2), 1e-10),
    Case("gather", own_gather, library_gather, (1, 4)),
]
PARTS = {"half_squares"}


def check_change(names):
    """Losses stay right; without rows, or with all cut, so do the gradients of both weights."""
    from support.lesson_19 import library_results, own_results

    def body(comm):
        found = []
        for annotations in ({"x": 0}, {"w1": 1}, {"x": 0, "w1": 0, "w2": 0}):
            own = own_results(comm, names["PROGRAM"], names["propagate"], names["run"], annotations)
            found.append([np.allclose(*pair) for pair in zip(
                own, library_results(comm, annotations), strict=True)])
        return found, gradient_of_x(comm), gradient_of_x(comm.split(comm.rank))

    def gradient_of_x(comm):
        values = {name: names["Tensor"](array) for name, array in inputs.items()}
        cut = names["propagate"](names["PROGRAM"], {"w1": 1} if comm.size > 1 else {})
        for name, dim in cut.items():
            if name in values:
                values[name].data = names["part"](comm, values[name].data, dim)
        names["backward"](names["run"](comm, names["PROGRAM"], cut, values))
        return values["x"].grad
    inputs = {"x": np.ones((3, 4)), "w1": np.eye(4), "w2": np.ones((4, 4))}
    for p in (2, 4):
        results = Cluster(p).run(body)[0]
        for found, part_of_sum, right in results:
            assert found == [[True, False, False], [True] * 3, [True] * 3]
            assert not np.allclose(part_of_sum, right)
            np.testing.assert_allclose(sum(part for _, part, _ in results), right)
    says("19", "DDP without its all-reduce", "both weights have the right gradients",
         "only x's is a part of the sum",
         "With all by rows nothing changes")
