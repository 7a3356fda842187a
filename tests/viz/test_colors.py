"""One palette: a phase of a step has one colour in every picture."""

from minipar.viz import pipeline, pipeline_terminal, remat_steps, timeline
from minipar.viz.bars import Bar
from minipar.viz.colors import COPY, PHASE


def test_forward_and_backward_have_one_colour_everywhere():
    for colors in (timeline.COLORS, remat_steps.COLORS):
        for phase in ("forward", "again", "backward"):
            assert colors[phase] == PHASE[phase]
    assert all(timeline.COLORS[lane] == COPY[lane] for lane in COPY)
    assert (pipeline.COLORS["F"], pipeline.COLORS["B"]) == (PHASE["forward"], PHASE["backward"])
    assert pipeline_terminal.MARKS["B"][1] == PHASE["backward"]


def test_no_message_is_drawn_as_a_phase():
    phases = set(PHASE.values()) - {PHASE["again"]}         # drawn as forward in a timeline
    others = {kind: color for kind, color in timeline.COLORS.items() if kind not in PHASE}
    assert not phases & set(others.values()) and len(set(others.values())) == len(others)
    bars = [Bar(0, "messages", f"collective {i}", i, i + 1.0) for i in range(5)]
    unknown = timeline._colors(bars)
    assert len(set(unknown.values())) == 5 and not phases & set(unknown.values())
