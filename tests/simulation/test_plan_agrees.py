"""The plan of `/minipar` says what minipar's own code does in a simulated step."""

import pytest

from minipar.plan.cluster import read_cluster
from minipar.plan.layout import Layout
from minipar.plan.memory import memory
from minipar.plan.minipar_itself.parts import cut
from minipar.plan.models import read_model
from minipar.plan.time.step_time import step_time
from minipar.simulation import simulate_step
from tests.support.plan_and_simulation import QUICK, SLOW, compare


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


@pytest.mark.parametrize("name, model, message", [
    ("h100", "mixtral-8x7b", "has no formulas for experts"),
    ("cpu_core", "gpt3-6.7b", None)])
def test_what_it_does_not_cover_is_one_line(name, model, message):
    cluster, layout = read_cluster(f"1x8:{name}/minipar"), Layout(dp=8, batch=8)
    if message is None:             # a software of its file: minipar in float32, by other formulas
        assert cluster.software.split == "even" and step_time(
            cluster, read_model(model), layout).seconds > 0
        return
    for predict in (memory, step_time):
        with pytest.raises(ValueError, match=message):
            predict(cluster, read_model(model), layout)
