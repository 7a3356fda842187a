"""DeviceMesh: nesting, communicators along axes, refusals, node awareness, its picture."""

import warnings

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import all_gather, all_reduce
from minipar.comm.mesh import DeviceMesh, parse_mesh
from minipar.testing.worlds import worlds


def members(comm, rank: int) -> list[int]:
    """The world's numbers of the ranks of `comm`, in its order."""
    return all_gather(comm, np.array([rank])).ravel().tolist()


@worlds(4, mpi=(4,))
def test_axes_nest_by_name_not_as_written(world):
    def body(comm):
        for mesh in (DeviceMesh(comm, dp=2, tp=2), DeviceMesh(comm, tp=2, dp=2)):
            r = comm.rank
            assert list(mesh.shape.items()) == [("dp", 2), ("tp", 2)]
            assert (mesh.coordinate("dp"), mesh.coordinate("tp")) == divmod(r, 2)
            assert members(mesh["tp"], r) == [r // 2 * 2, r // 2 * 2 + 1]
            assert members(mesh["dp"], r) == [r % 2, r % 2 + 2]
            assert members(mesh["dp", "tp"], r) == members(mesh["tp", "dp"], r) == [0, 1, 2, 3]
            assert mesh["tp"].rank == mesh.coordinate("tp")
        other = DeviceMesh(comm, dp=2, tp=2, order=("tp", "dp"))
        assert (other.coordinate("tp"), other.coordinate("dp")) == divmod(r, 2)
        assert members(other["tp"], r) == [r % 2, r % 2 + 2]
    world.run(body)


@worlds(4, mpi=(4,))
def test_a_sum_over_two_axes_is_the_sum_over_one_after_the_other(world):
    def body(comm):
        mesh = DeviceMesh(comm, pp=1, dp=-1, cp=2, tp=1)
        mine = np.array([10 ** comm.rank])
        step = all_reduce(mesh["cp"], all_reduce(mesh["dp"], mine))
        assert step == all_reduce(mesh["dp", "cp"], mine) == 1111
        assert mesh["pp"].size == mesh["tp"].size == 1
        assert mesh.shape == {"pp": 1, "dp": 2, "cp": 2, "tp": 1}
    world.run(body)


def test_every_group_of_axes_on_24_ranks():
    def main(comm):
        mesh = DeviceMesh(comm, tp=2, cp=2, pp=3, dp=2)
        p, d, c, t = np.unravel_index(comm.rank, (3, 2, 2, 2))
        grid = np.arange(24).reshape(3, 2, 2, 2)
        for axes, expected in {
            ("pp",): grid[:, d, c, t], ("tp",): grid[p, d, c], ("dp", "cp"): grid[p, :, :, t],
            ("pp", "tp"): grid[:, d, c, :], ("pp", "dp", "cp", "tp"): grid,
        }.items():
            assert members(mesh[axes], comm.rank) == expected.ravel().tolist()
            groups = mesh.ranks_along(*axes)
            assert sorted(sum(groups, [])) == list(range(24))
            assert expected.ravel().tolist() in groups
    Cluster(24).run(main)


@worlds(4, mpi=(4,))
def test_refusals_are_one_line(world):
    def body(comm):
        for sizes, words in (({"dp": 3}, "dp=3 does not fit 4 ranks"),
                             ({"dp": 3, "tp": -1}, "multiply to 4"),
                             ({"dp": -1, "tp": -1}, "at most one"),
                             ({"dp": 0, "tp": 4}, "positive"),
                             ({"fp": 4}, "unknown axis 'fp'"), ({}, "at least one axis"),
                             ({"dp": 4, "ep": 3}, "ep=3 takes neighbours of dp=4, and does not"),
                             ({"dp": 2, "ep": 4, "tp": 2}, "choose a divisor of dp"),
                             ({"tp": 2, "ep": 4}, "dp=4 × tp=2 does not fit 4 ranks"),
                             ({"dp": 4, "order": ("tp",)}, "must name each")):
            with pytest.raises(ValueError, match=words) as caught:
                DeviceMesh(comm, **sizes)
            assert "\n" not in str(caught.value)
        mesh = DeviceMesh(comm, dp=4)
        for ask in (lambda: mesh["tp"], lambda: mesh.coordinate("tp"), lambda: mesh["dp", "dp"]):
            with pytest.raises(KeyError, match="dp"):
                ask()
    world.run(body)


def warnings_of(cluster: Cluster, **sizes: int) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cluster.run(lambda comm: DeviceMesh(comm, **sizes))
    return [str(warning.message) for warning in caught]


def test_a_warning_when_tp_crosses_nodes():
    for sizes in ({"dp": 2, "tp": 4}, {"pp": 2, "dp": 2, "tp": 2}, {"dp": 8}):
        assert warnings_of(Cluster(nodes=2, devices_per_node=4), **sizes) == []
    [text] = warnings_of(Cluster(nodes=2, devices_per_node=4), tp=8)
    assert "ranks 0, 1, 2, 3, 4, 5, 6, 7 spans 2 nodes" in text
    [text] = warnings_of(Cluster(nodes=2, devices_per_node=3), dp=3, tp=2)
    assert "ranks 2, 3 spans 2 nodes" in text
    [text] = warnings_of(Cluster(nodes=2, devices_per_node=2), dp=2, tp=2, order=("tp", "dp"))
    assert "ranks 0, 2" in text


def test_its_picture():
    def main(comm):
        return [str(DeviceMesh(comm, **sizes)) for sizes in
                ({"dp": 8}, {"dp": 2, "tp": 4}, {"pp": 2, "dp": 2, "tp": 2})]
    row, table, tables = Cluster(8).run(main)[0][0]
    assert row.splitlines()[-1].split() == list("01234567")
    assert table == ("8 ranks: dp 2 × tp 4\n"
                     "      tp 0  tp 1  tp 2  tp 3\n"
                     "dp 0     0     1     2     3\n"
                     "dp 1     4     5     6     7")
    assert tables.splitlines()[1] == "pp 0" and tables.splitlines()[5] == "pp 1"
    assert tables.splitlines()[-1].split() == ["dp", "1", "6", "7"]


def test_a_mesh_sends_nothing_after_it_is_made():
    def main(comm):
        mesh = DeviceMesh(comm, dp=2, tp=2)
        before = comm.now()
        assert mesh["tp"] is mesh["tp"] and mesh["dp", "tp"] is mesh["tp", "dp"]
        return comm.now() - before
    cluster = Cluster(4, trace=True)
    assert cluster.run(main)[0] == [0] * 4 and cluster.trace.messages == []


def test_a_mesh_is_read_from_text():
    assert parse_mesh("pp=2, dp=4,rows=3") == {"pp": 2, "dp": 4, "rows": 3}
    for text, said in (("dp", "expected axis=size, for example dp=4, not 'dp'"),
                       ("dp=0", "not 'dp=0'"), ("dp=2,,", "not ''"), ("2=dp", "not '2=dp'"),
                       ("dp=2,tp=2,dp=2", "axis dp is given twice")):
        with pytest.raises(ValueError, match=f"^--mesh {text}: .*{said}$"):
            parse_mesh(text)
