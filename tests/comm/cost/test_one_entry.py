"""An all-reduce of the tests' own, added by one entry: it runs, is predicted, chosen and drawn."""

import runpy

import numpy as np
import pytest

from minipar.comm import Cluster, rounds
from minipar.comm.algorithms import ALGORITHMS, Algorithm
from minipar.comm.arguments import find_operator
from minipar.comm.collectives import all_reduce, operations
from minipar.comm.cost import Network, candidates, choose, predict, seconds_on, textbook
from minipar.comm.cost.calibration import Calibration, CalibrationTable
from minipar.comm.cost.choose import pick
from minipar.comm.simulated.links import Link
from minipar.commands.main import main
from minipar.testing import worlds
from minipar.viz import record_rounds
from minipar.viz.pages.rounds_page import page_data
from tests.repository.test_layering import ROOT
from tests.support.print_table import simulated_cell

NODES = Network(runs=(2, 3))


def direct(comm, flat, op):
    """p - 1 rounds of n bytes: each rank sends its vector to all others."""
    mine, arrived, p = flat.copy(), np.empty_like(flat), comm.size
    for step in range(1, p):
        comm.sendrecv(mine, (comm.rank + step) % p, arrived, (comm.rank - step) % p)
        find_operator(op)(flat, arrived, out=flat)


ENTRY = Algorithm(direct, lambda c: rounds.exchange([[c.n] * c.p] * c.p, 1),
                  lambda s: (s.p - 1, s.n * (s.p - 1), s.n * (s.p - 1)))


@pytest.fixture
def add(monkeypatch):
    """A function that adds the entry, some of it replaced."""
    return lambda **fields: monkeypatch.setitem(ALGORITHMS["all_reduce"], "direct",
                                                ENTRY._replace(**fields))


def sent_by_auto(p: int) -> int:
    """The messages of an all-reduce of one number by "auto"."""
    cluster = Cluster(p, trace=True)
    cluster.run(lambda comm: all_reduce(comm, np.ones(1)))
    return cluster.trace.num_sent()


def crossovers() -> dict:
    """The data of the interactive piece."""
    return runpy.run_path(str(ROOT / "docs" / "interactive" / "crossovers" / "data.py"))["data"]()


@worlds(1, 2, 3, 5, mpi=(3, 4))
@pytest.mark.parametrize("fields", [{}, {"rounds": None, "form": None}], ids=["whole", "bare"])
def test_it_runs_by_its_name(world, add, fields):
    add(**fields)

    def body(comm):
        found = all_reduce(comm, np.arange(5) + comm.rank, algorithm="direct")
        assert found.tolist() == [comm.size * i + sum(range(comm.size)) for i in range(5)]
        with pytest.raises(ValueError, match="choose from ring, .*direct, auto"):
            all_reduce(comm, found, algorithm="indirect")
    world.run(body)


def test_its_cost_is_predicted_and_counted(add):
    add()
    assert all(simulated_cell("all_reduce", "direct", p) == (True,) * 3 for p in (1, 2, 3, 8))
    assert predict("all_reduce", "direct", 5, 6) == (4, 4 * 48, 20, 4 * 48)
    assert textbook("all_reduce", "direct", 5, 48)[:2] == (4, 4 * 48)


def test_auto_takes_it_where_it_is_the_fastest(add):
    assert choose("all_reduce", 3, 8) != "direct" and sent_by_auto(3) != 3 * 2
    add()
    assert choose("all_reduce", 3, 8) == "direct" and sent_by_auto(3) == 3 * 2
    assert choose("all_reduce", 8, 8) != "direct"
    add(is_candidate=False)
    assert choose("all_reduce", 3, 8) != "direct"


def test_it_is_listed_and_drawn(add, capsys, tmp_path):
    add(person="Nobody")
    assert crossovers()["costs"][8]["direct"] == [7, 7, 7]
    run = record_rounds("all_reduce", "direct", 4)
    assert page_data(run)["title"] == "all-reduce, Nobody's"
    assert page_data(run)["model"] == ["3", "12", "12 kB"]
    assert page_data(run)["about"][1] == direct.__doc__.split("\n")[0]
    assert main(["collective", "all_reduce", "--algorithm", "direct", "-p", "4", "--bytes", "160",
                 "--png", str(tmp_path / "a.svg"), "--html", str(tmp_path / "a.html")]) == 0
    shown = capsys.readouterr().out
    assert shown.count("equal") == 4 and "predicted" in shown and "not predicted" not in shown
    assert "all_reduce by direct" in (tmp_path / "a.html").read_text()


def test_without_rounds_it_is_counted_and_not_predicted(add, capsys):
    add(rounds=None)
    with pytest.raises(ValueError, match="no rounds known of all_reduce by 'direct': choose from"):
        predict("all_reduce", "direct", 3, 8)
    assert "direct" not in candidates("all_reduce", NODES) and choose("all_reduce", 3, 8)
    assert sent_by_auto(3) != 3 * 2
    assert simulated_cell("all_reduce", "direct", 3) == (True, True, None)
    assert page_data(record_rounds("all_reduce", "direct", 4))["model"] == ["not predicted"] * 3
    assert crossovers()["unpredicted"] == ["direct"] and "direct" not in crossovers()["costs"][8]
    assert main(["collective", "all_reduce", "--algorithm", "direct", "-p", "4"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("not predicted") == 4 and "3,000,000" in shown and "≠" not in shown


def test_without_a_form_auto_does_not_compare_it(add):
    add(form=None)
    with pytest.raises(ValueError, match="no form known of all_reduce by 'direct': choose from"):
        textbook("all_reduce", "direct", 3, 8)
    assert choose("all_reduce", 3, 8) != "direct"
    assert predict("all_reduce", "direct", 3, 1).rounds == 2
    link = Link(1.0, 1.0)
    assert seconds_on("all_reduce", "direct", 70, 1, Network(link, link, np.inf)) == 69 * 2


def test_a_measured_table_may_take_it_all_the_same(add):
    add(rounds=None, form=None)
    link = Link(1e-6, 1e10)
    table = CalibrationTable(3, 1, {"all_reduce": ((0, ("direct",)),)})
    known = Calibration(link, link, 1e10, (table,))
    network = Network(runs=(3,))
    assert pick(known, 3, network, ALGORITHMS["all_reduce"], "all_reduce", 8) == "direct"


def test_one_with_parts_is_for_several_nodes(add):
    add(form=None, parts=lambda nodes, n: [("within", ("all_reduce", "ring", max(nodes), n)),
                                           ("between", ("all_reduce", "ring", len(nodes), n))])
    assert "direct" in candidates("all_reduce", NODES)
    assert "direct" not in candidates("all_reduce", Network(runs=(5,)))
    link, slow = Link(1.0, np.inf), Link(100.0, np.inf)
    nodes = Network(link, slow, np.inf, (30,) * 3)
    assert seconds_on("all_reduce", "direct", 90, 8, nodes) == 2 * 29 + 100 * 2 * 2


def test_each_operation_has_its_algorithms():
    assert ALGORITHMS.keys() == operations.OPERATIONS.keys()
    functions = [[entry.run for entry in ALGORITHMS[name].values()] for name in ("scan", "exscan")]
    assert functions[0] == functions[1]
