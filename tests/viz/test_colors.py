"""One palette: a phase of a step has one colour in every picture."""

from minipar.viz.colors import COPY, KIND, PHASE
from minipar.viz.timelines import pipeline, remat, terminal, timeline
from minipar.viz.timelines.bars import Bar


def test_forward_and_backward_have_one_colour_everywhere():
    for phase in ("forward", "again", "backward"):
        assert KIND[phase] == remat.LOOKS[phase]["facecolor"] == PHASE[phase]
    assert all(KIND[lane] == COPY[lane] for lane in COPY)
    assert (pipeline.COLORS["F"], pipeline.COLORS["B"]) == (PHASE["forward"], PHASE["backward"])
    assert terminal.ACTIONS["B"][1] == PHASE["backward"]


def test_no_message_is_drawn_as_a_phase():
    phases = set(PHASE.values()) - {PHASE["again"]}         # drawn as forward in a timeline
    others = {kind: color for kind, color in KIND.items() if kind not in PHASE}
    assert not phases & set(others.values()) and len(set(others.values())) == len(others)
    bars = [Bar(0, "messages", f"collective {i}", i, i + 1.0) for i in range(5)]
    unknown = {look["facecolor"] for look in timeline._looks(bars).values()}
    assert len(unknown) == 5 and not phases & unknown
