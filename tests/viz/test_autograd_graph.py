"""The picture of the tape: its boxes are the graph, its bytes are the ledger's."""

import numpy as np

from minipar import autograd as ag
from minipar.autograd import Tensor
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, MLP, GPTConfig
from minipar.viz import draw_autograd_graph
from minipar.viz.grids.autograd_graph import _place, graph_nodes


def small_expression():
    q = Tensor(np.ones((3, 3)), requires_grad=True)
    return q, ((q * q + q) * ag.exp(q)).sum()


def test_boxes_are_the_graph():
    q, z = small_expression()
    boxes = graph_nodes(z, {"q": q, "z": z})
    assert [box.name for box in boxes if box.is_leaf] == ["q (3, 3)"]
    assert sorted(box.name for box in boxes if not box.is_leaf) == [
        "Add", "Exp", "Multiply", "Multiply", "Sum"]
    assert boxes[-1].name == "Sum"
    assert boxes[-1].out == "z"
    assert all(source < i for i, box in enumerate(boxes) for source in box.inputs)
    square = next(box for box in boxes if box.keeps == ["q", "q"])
    assert square.num_bytes == 72           # both are one array


def test_bytes_are_the_ledger_s():
    for model, data in (
            (MLP([8, 16, 4]).initialize(), (np.ones((5, 8), np.float32), np.zeros(5, np.int64))),
            (GPT(GPTConfig(11, 6, 2, 2, 8)).initialize(), (np.ones((2, 6), np.int64),) * 2)):
        with Ledger(model.parameters()).recording() as ledger:
            loss = model.loss(*data)
        boxes = graph_nodes(loss, dict(model.named_parameters()))
        assert sum(box.num_bytes for box in boxes) == ledger.live > 0


def test_every_box_has_a_place_of_its_own_left_of_its_users():
    model = GPT(GPTConfig(11, 6, 2, 2, 8)).initialize()
    loss = model.loss(np.ones((2, 6), np.int64), np.ones((2, 6), np.int64))
    boxes = graph_nodes(loss, dict(model.named_parameters()))
    places = _place(boxes)
    assert len(set(places)) == len(boxes)
    assert min(column for column, _ in places) == 0
    assert all(places[source][0] < places[i][0]
               for i, box in enumerate(boxes) for source in box.inputs)


def test_writes_a_picture_and_leaves_the_tape_as_it_was(tmp_path):
    q, z = small_expression()
    path = draw_autograd_graph(tmp_path / "tape.svg", z, {"q": q, "z": z}, "A tape")
    text = path.read_text()
    assert text.startswith("<?xml")
    z.backward()
    assert np.allclose(q.grad, (1 + 1 + 2 + 1) * np.e)      # (2q + 1) eᵠ + (q² + q) eᵠ at 1
