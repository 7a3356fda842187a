"""Links measured by ping-pong, the table of the fastest algorithms, the file that keeps both."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.algorithms import ALGORITHMS
from minipar.comm.cost import choose, network_of_cluster, seconds_on
from minipar.comm.cost.calibration import (
    BUILT_IN,
    FORMAT,
    Calibration,
    CalibrationTable,
    file_of,
    from_json,
    read,
    read_on_all,
    write,
)
from minipar.comm.cost.measure import (
    measure_algorithms,
    measure_combining,
    measure_links,
    rows_of,
    table_of,
)
from minipar.comm.simulated.links import Link, Links
from minipar.testing import worlds

WITHIN, BETWEEN = Link(2e-6, 8e9), Link(7e-5, 1.25e9)
SOME = Calibration(WITHIN, BETWEEN, 3e10, (
    CalibrationTable(4, 1, {"all_reduce": ((0, ("recursive_doubling", "tree")),
                                           (5000, ("ring",)))}),
    CalibrationTable(2, 1, {"all_reduce": ((0, ("tree",)),),
                            "barrier": ((0, ("dissemination",)),)})))


@pytest.mark.parametrize(("num_ranks", "per_node"), [(4, 2), (6, 3), (3, 1), (4, 4)])
def test_links_are_recovered_from_a_cluster(num_ranks, per_node):
    cluster = Cluster(num_ranks, devices_per_node=per_node, links=Links(WITHIN, BETWEEN))
    for found in cluster.run(lambda comm: measure_links(comm, num_rounds=2))[0]:
        for fitted, link, there in zip(found, (WITHIN, BETWEEN),
                                       (per_node > 1, per_node < num_ranks)):
            if there:
                assert np.allclose(fitted.link, link, rtol=1e-9) and fitted.worst < 1e-9
            else:
                assert fitted is None


def test_a_table_measured_on_a_cluster_is_the_models():
    cluster = Cluster(nodes=2, devices_per_node=3, links=Links(WITHIN, BETWEEN))
    sizes = [64 * 4**k for k in range(8)]

    def body(comm):
        times = measure_algorithms(comm, "all_reduce", sizes, num_rounds=1)
        return times, table_of(comm, {"all_reduce": (sizes, times)})
    results, _ = cluster.run(body)
    assert all(result == results[0] for result in results)
    times, table = results[0]
    network = network_of_cluster(cluster, range(6))
    assert set(times) == set(ALGORITHMS["all_reduce"])
    for name, measured in times.items():
        model = [seconds_on("all_reduce", name, 6, size // 8 * 8, network) for size in sizes]
        assert measured == pytest.approx(model, rel=0.05), name     # float32: other pieces
    assert (table.num_ranks, table.num_nodes) == (6, 2)
    for i, size in enumerate(sizes):
        name = [names for start, names in table.rows["all_reduce"] if start <= size][-1][0]
        chosen = choose("all_reduce", 6, size, network)
        assert times[name][i] <= 1.1 * times[chosen][i]


def test_rows_begin_where_the_lines_cross():
    sizes = [100, 1000, 10000, 100000]
    times = {"a": [1.0, 1.0, 10.0, 100.0], "b": [4.0, 4.0, 4.0, 40.0], "c": [9.0] * 4}
    rows = rows_of(sizes, times)
    assert [(start, names[0]) for start, names in rows] == [
        (0, "a"), (pytest.approx(10**3.602, rel=0.01), "b"), (pytest.approx(22500, rel=0.01), "c")]
    assert rows[0] == (0, ("a", "b", "c"))
    assert rows_of([0], {"a": [2.0], "b": [1.0]}) == ((0, ("b", "a")),)


def test_a_hair_faster_is_no_crossover():
    assert rows_of([10, 20, 40], {"a": [1.0, 1.05, 1.0], "b": [1.1, 1.0, 1.2]}) == \
        ((0, ("a", "b")),)
    (_, first), (start, then) = rows_of([10, 20, 40], {"a": [1.0, 1.05, 4.0], "b": [1.1, 1.0, 1.2]})
    assert (first, then) == (("a", "b"), ("b", "a")) and 10 < start <= 20


def test_the_ranking_of_as_many_ranks_or_fewer():
    def first(*case):
        return SOME.ranking(*case)[:1]
    assert first("all_reduce", 4999, 4, 1) == first("all_reduce", 0, 9, 1) == \
        ("recursive_doubling",)
    assert first("all_reduce", 5000, 4, 1) == ("ring",)
    assert first("all_reduce", 5000, 3, 1) == ("tree",)
    assert first("barrier", 0, 4, 1) == ("dissemination",)
    assert first("barrier", 0, 4, 2) == first("scan", 0, 4, 1) == ()
    assert BUILT_IN.ranking("all_reduce", 1 << 20, 4, 1)[0] == "blocked_ring"
    assert Calibration(WITHIN, BETWEEN, 1.0).ranking("all_reduce", 4096, 8, 1) == \
        ("recursive_doubling",)                                     # the built-in one


def test_with_tables_the_later_one_counts():
    newer = CalibrationTable(4, 1, {"scan": ((0, ("linear",)),)})
    assert SOME.with_tables(*SOME.tables, newer).tables == (newer, SOME.tables[1])


def test_a_file_is_read_back(tmp_path):
    path = tmp_path / "new" / "folder" / "x.json"
    assert read(path) == (None, "")
    write(path, SOME)
    assert read(path) == (SOME, "")
    assert [file.name for file in path.parent.iterdir()] == ["x.json"]


def changed(**changes):
    return json.dumps({**json.loads(SOME.as_json()), **changes})


@pytest.mark.parametrize(("text", "wrong"), [
    ("", "no JSON"), (SOME.as_json()[:-9], "no JSON"), ("[1]", "no calibration"),
    ("{}", "no calibration"), (changed(format=FORMAT + 1), f"of format {FORMAT + 1}, not"),
    (changed(within=[1e-6]), "."), (changed(within=[-1.0, 1e9]), "-1.0 stands where"),
    (changed(combining="fast"), "no calibration"), (changed(combining=True), "True stands where"),
    (changed(tables=[{"ranks": 4}]), "no calibration"),
    (changed(tables=[{"ranks": 4, "nodes": 0}]), "0 stands where"),
    (changed(tables=[{"ranks": 4, "nodes": 1, "scan": [[5, ["linear"]]]}]), "rise from 0"),
    (changed(tables=[{"ranks": 4, "nodes": 1, "scan": []}]), "rise from 0")])
def test_a_broken_file_is_ignored_in_one_line(tmp_path, text, wrong, monkeypatch, capsys):
    monkeypatch.setenv("MINIPAR_CACHE", str(tmp_path))
    MPI = SimpleNamespace(Get_library_version=lambda: "MPICH Version: 5.0.2\nmore")
    path = file_of(MPI)
    assert path.parent == tmp_path and path.name.endswith("mpich-version-5.0.2.json")
    path.write_text(text)
    alone = SimpleNamespace(Get_rank=lambda: 0, bcast=lambda value: value)
    assert read_on_all(alone, MPI) == BUILT_IN
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"minipar: {path} is ignored: " in said and wrong in said
    assert "python -m minipar calibrate" in said
    write(path, SOME)
    assert read_on_all(alone, MPI) == SOME and not capsys.readouterr().err


def test_infinite_bandwidth_survives():
    strange = Calibration(Link(0.0, float("inf")), BETWEEN, 1.0)
    assert from_json(strange.as_json()) == strange


def test_the_cache_folder(monkeypatch):
    MPI = SimpleNamespace(Get_library_version=lambda: "x")
    monkeypatch.delenv("MINIPAR_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(file_of(MPI).parent) == "/somewhere/minipar"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert str(file_of(MPI).parent) == "/home/ada/.cache/minipar"


@worlds(2, 3, mpi=(2, 4))
def test_combining_is_measured_alike_on_all_ranks(world):
    def body(comm):
        found = comm.split(0)
        rate = np.array([measure_combining(found, 1 << 12, 2)])
        others = np.empty(1)
        comm.sendrecv(rate, (comm.rank + 1) % comm.size, others, (comm.rank - 1) % comm.size)
        assert rate == others > 0
    world.run(body)
