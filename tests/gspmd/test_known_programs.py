"""45 programs: shardings as OpenXLA's Shardy finds them, no more bytes than XLA's collectives."""

import numpy as np
import pytest

from minipar import Cluster
from minipar.gspmd.spec import show

from .cases import BY_NAME, CASES, dims, largest_error, run_alone

NAMES = [case.name for case in CASES]

@pytest.mark.parametrize("name", NAMES)
def test_shardings_are_those_of_shardy(name):
    case = BY_NAME[name]
    graph, shardings, _ = case.plan(np.float32)
    for value_name, _, _, _, expected in case.inputs:
        if value_name in graph.inputs and expected is not None:
            assert show(shardings.of(graph.inputs[value_name])) == show(dims(expected)), value_name
    if not case.is_gradient:
        for value, expected in zip(graph.outputs, case.outputs):
            assert expected is None or shardings.of(value) == dims(expected)


@pytest.mark.parametrize("name", [name for name in NAMES if "gradient" not in name])
def test_collectives_send_no_more_bytes(name):
    case = BY_NAME[name]
    _, _, program = case.plan(np.float32)
    assert program.num_bytes <= case.num_bytes, [each.kind for each in program.collectives]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.one_in(3)
def test_outputs_and_gradients_are_those_of_one_device(name):
    case = BY_NAME[name]
    arrays, planned = case.arrays(), case.plan()
    expected = run_alone(case.program, arrays)
    num_ranks = int(np.prod(list(case.mesh.values())))
    errors, _ = Cluster(num_ranks).run(
        lambda comm: largest_error(comm, case.mesh, planned, arrays, expected))
    assert max(errors) < 1e-10


MESHES = [{"x": 2}, {"x": 4}, {"x": 3}, {"data": 2, "model": 4}, {"data": 3, "model": 2}]


OTHER_MESHES = [(name, mesh) for name in NAMES for mesh in MESHES
                if set(BY_NAME[name].mesh) == set(mesh)]


@pytest.mark.parametrize(("name", "mesh"), OTHER_MESHES, ids=str)
@pytest.mark.one_in(4)
def test_any_mesh_gives_the_same(name, mesh):
    """Sizes that do not divide are padded."""
    case = BY_NAME[name]._replace(mesh=mesh)
    arrays, planned = case.arrays(), case.plan()
    expected = run_alone(case.program, arrays)
    errors, _ = Cluster(int(np.prod(list(mesh.values())))).run(
        lambda comm: largest_error(comm, mesh, planned, arrays, expected))
    assert max(errors) < 1e-10
