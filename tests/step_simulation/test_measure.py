"""This machine as a cluster file: complete, readable, and taken by the simulation."""

from dataclasses import replace

import numpy as np
import pytest

from minipar.commands.simulate.cluster_file import as_toml, compare, layouts, write_cluster
from minipar.commands.tables import Output
from minipar.launcher import UsageError
from minipar.nn import GPTConfig
from minipar.plan.cluster import ClusterSpec, Software, read_cluster
from minipar.plan.layout import Layout, layout_fault
from minipar.plan.search import search
from minipar.step_simulation import simulate_step
from minipar.step_simulation.measure import fit_line, measure_machine, measured_step
from minipar.testing import worlds

MODEL = GPTConfig(vocab_size=64, context=16, num_layers=4, num_heads=4, width=32)
PROBES = ((16, 8, 1), (32, 16, 2), (32, 32, 1))
ALONE = ClusterSpec("", "", {"fp32": 1e9}, 1e9, 1e9, 1e9, 1, link=1e9, nic=1e9, per_node=4,
                        dtype="fp32", software=Software(flash=None))


@worlds(1, 2, 4)
def test_a_machine_is_measured_and_its_file_read(world, tmp_path):
    path = tmp_path / "here.toml"

    def body(comm):
        measured = measure_machine(comm, 1, PROBES)
        if comm.rank == 0:
            path.write_text(as_toml(measured), encoding="utf-8")
            assert read_cluster(str(path)) == replace(measured, name="here")
        for layout in layouts(comm.size):
            assert measured_step(comm, MODEL, layout, 1) > 0
            assert simulate_step(measured, MODEL, layout).seconds > 0
        operations = measured.software.operations
        assert {"Linear weights", "Gelu forward", "AdamW optimizer"} < {*operations}
        assert all(len(line) == 3 and min(line) >= 0 < max(line) for line in operations.values())
        assert measured.per_node == comm.size and measured.cores >= 1
        assert (measured.software.latency > 0) == (comm.size > 1)
    world.run(body)


def test_the_plan_takes_such_a_file(tmp_path):
    path = tmp_path / "here.toml"
    operations = {"Gelu forward": [1e-6, 0.0, 0.5]}
    software = replace(ALONE.software, name="minipar", operations=operations)
    path.write_text(as_toml(replace(ALONE, software=software)), encoding="utf-8")
    cluster = read_cluster(f"1x4:{path}")
    assert cluster == replace(ALONE, name="here", software=software)
    assert search(cluster, MODEL, 8)


def test_a_line_goes_through_its_points_and_never_below_zero():
    work = [(1e6, 2e4), (5e6, 1e4), (2e7, 9e5), (3e4, 3e3)]
    line = 1e-5, 2e-10, 3e-9
    points = [(f, b, line[0] + line[1] * f + line[2] * b) for f, b in work]
    np.testing.assert_allclose(fit_line(points), line, rtol=1e-6)
    falling = [(f, b, 1e-3 - 1e-12 * f) for f, b in work]
    call, flop, byte = fit_line(falling)
    assert call > 0 and flop == byte == 0
    np.testing.assert_allclose(fit_line([(f, 4 * f, 1e-9 * f) for f, _ in work]),
                               (0, 1e-9, 0), rtol=1e-6)


def test_an_operation_with_a_line_takes_it_and_others_the_rates():
    def computing(operations):
        cluster = replace(ALONE, per_node=1,
                          software=replace(ALONE.software, operations=operations))
        log = simulate_step(cluster, MODEL, Layout(batch=1, sp=False)).ranks[0].log
        return sum(log.computing.values())
    usual, without, ten = (computing(line) for line in (
        {}, {"Gelu forward": [0, 0, 0]}, {"Gelu forward": [10, 0, 0]}))
    assert ten == pytest.approx(without + 10 * MODEL.num_layers) and without < usual


@pytest.mark.parametrize("cores, times", [(4, 1), (2, 2), (1, 4)])
def test_ranks_take_turns_on_their_cores(cores, times):
    layout = Layout(dp=4, batch=4, sp=False)
    alone, shared = (simulate_step(replace(ALONE, link=1e18, cores=number), MODEL, layout)
                     for number in (4, cores))
    assert len(alone.ranks) == 1 and len(shared.ranks) == (1 if times == 1 else 4)
    assert shared.seconds == pytest.approx(times * alone.seconds, rel=0.25)
    assert shared.seconds >= times * alone.seconds * 0.999


def test_a_rank_that_copies_its_messages_hides_none():
    layout, model = Layout(dp=4, batch=4, sp=False), replace(MODEL, width=128)
    hidden, copied = (simulate_step(replace(ALONE, link=1e8, cores=number), model, layout,
                                    bucket_mb=1.0).seconds for number in (0, 4))
    assert copied > hidden


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 6, 16])
def test_the_layouts_that_are_compared_can_run(num_ranks):
    for layout in layouts(num_ranks):
        assert not layout_fault(layout, replace(MODEL, num_heads=4), num_ranks)


@worlds(2)
def test_predictions_stand_beside_real_steps(world):
    def body(comm):
        output = Output("calibrate")
        compare(comm, replace(ALONE, per_node=comm.size), 1, output, [MODEL])
        (table,) = output.tables
        assert [row[1] for row in table.rows] == [
            str(layout) for layout in layouts(comm.size) if comm.rank == 0]
        assert all(row[2].value > 0 and row[3].value > 0 for row in table.rows)
    world.run(body)


@pytest.mark.parametrize("name", ["absent/here.toml", "here.txt"])
def test_a_path_that_cannot_be_is_refused_before_anything_is_measured(tmp_path, name):
    with pytest.raises(UsageError, match="expected a file NAME.toml in a folder that exists"):
        write_cluster(tmp_path / name, 1, Output("calibrate"), is_real=False)
