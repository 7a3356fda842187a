"""The plan of `/minipar` says what minipar's own code does in a simulated step."""

from dataclasses import replace

import pytest

from minipar.plan.cluster import read_cluster
from minipar.plan.layout import Layout
from minipar.plan.memory import memory
from minipar.plan.minipar_formulas.parts import cut
from minipar.plan.models import read_model
from minipar.plan.time.step_time import step_time
from minipar.step_simulation import fullest, simulate_step
from tests.support.plan_and_simulation import QUICK, SLOW, compare, read


@pytest.mark.parametrize("case", [*QUICK, *[pytest.param(case, marks=pytest.mark.slow)
                                            for case in SLOW]])
def test_seconds_and_bytes_are_within_3_percent(case):
    found = compare(case)
    assert abs(found.time_error) < 0.03 and abs(found.bytes_error) < 0.03


def test_stages_are_those_of_minipar():
    """Their layers, by the intervals' seconds of equal layers, and their parameters."""
    cluster, model = read_cluster("1x8:h100/minipar"), read_model("llama3-8b")
    step = simulate_step(cluster, model, Layout(pp=8, batch=1, sp=False))
    stages = cut(model, 8)
    assert sum(stage.layers for stage in stages) == 32 and stages[-1].head and stages[0].embed
    layer, table = 218112000, 128256 * 4096
    for rank, stage in enumerate(stages):
        expected = stage.layers * layer + table * (stage.embed + stage.head) + 4096 * stage.head
        assert step.ranks[rank].memory["parameters"] == 2 * expected


@pytest.mark.parametrize("options", [
    {"capacity_factor": 0.5}, {"capacity_factor": 1.25}, {"num_shared": 1},
    {"scores": "sigmoid", "balance_loss": 0.0}])
def test_experts_with_other_options(options):
    """Half of the choices find no place, or all do; experts that all tokens use; other scores."""
    cluster, model, layout = read("1x8:h100 mixtral-8x7b 4 dp=4,tp=2,ep=2")
    model = replace(model, num_layers=4, experts=replace(model.experts, **options))
    step = simulate_step(cluster, model, layout)
    assert step_time(cluster, model, layout).seconds == pytest.approx(step.seconds, rel=0.03)
    assert sum(memory(cluster, model, layout).values()) == pytest.approx(
        sum(fullest(step)[1].values()), rel=0.01)


def test_what_it_does_not_cover_is_one_line():
    model = read_model("mixtral-8x7b")
    model = replace(model, experts=replace(model.experts, every=2))
    for predict in (memory, step_time):
        with pytest.raises(ValueError, match="no formulas for experts in some layers: choose"):
            predict(read_cluster("1x8:h100/minipar"), model, Layout(dp=8, batch=8))


def test_minipar_of_a_file_is_predicted_by_other_formulas():
    """A software of its file: minipar in float32."""
    cluster = read_cluster("1x8:cpu_core/minipar")
    assert cluster.software.split == "even" and step_time(
        cluster, read_model("gpt3-6.7b"), Layout(dp=8, batch=8)).seconds > 0
