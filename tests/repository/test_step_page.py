"""docs/pages/step.md: its tables list functions in the order in which a step calls them."""

import ast
import re
import sys
from typing import Any

import numpy as np
import pytest
from greenlet import getcurrent

from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.nn import GPT, MLP, GPTConfig
from minipar.optim import SGD
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.strategy import Microbatch
from minipar.parallel.zero.fsdp import FullyShardedDataParallel
from minipar.parallel.zero.zero1 import ZeRO1
from minipar.parallel.zero.zero2 import ZeRO2
from tests.repository.test_layering import ROOT

PAGE = (ROOT / "docs" / "pages" / "step.md").read_text("utf-8")
PACKAGE = f"{ROOT / 'minipar'}/"


def mlp():
    """A model, and its microbatches."""
    return MLP([6, 8, 8, 3]), [Microbatch(np.ones((4, 6), np.float32), np.array([0, 1, 2, 0]),
                                          np.arange(4))]


def two_of_mlp():
    """A model, and its microbatches."""
    model, microbatches = mlp()
    return model, microbatches * 2


def gpt():
    """A model, and its microbatches."""
    ids = np.arange(8).reshape(2, 4)
    return (GPT(GPTConfig(vocab_size=8, context=4, num_layers=2, num_heads=2, width=8)),
            [Microbatch(ids, ids, np.arange(2))] * 2)


def train(strategy, microbatches) -> None:
    """A step."""
    strategy.forward_backward(microbatches)
    strategy.step(optimizer := SGD(strategy.slabs))
    optimizer.zero_grad()


def listed_under(head: str) -> tuple[str, list[tuple[str, str]]]:
    """A section of the page, and the files and functions that it lists."""
    section = PAGE.partition(f"\n## {head}\n")[2].partition("\n## ")[0]
    return section, re.findall(r"^\| `(\S+)` \| `(\S+)` \|", section, re.MULTILINE)


def lines_of(file: str, name: str) -> int:
    """The lines of a function or method, its docstring too."""
    node: Any = ast.parse((ROOT / "minipar" / file).read_text("utf-8"))
    for part in name.split("."):
        node = next(each for each in node.body if getattr(each, "name", None) == part)
    return node.end_lineno - node.lineno + 1


@pytest.mark.parametrize("head", ["Data parallelism", "ZeRO-1", "ZeRO-2", "Tensor parallelism",
                                  "FSDP", "A pipeline", "A pipeline beside context parallelism"])
def test_it_says_how_much_there_is_to_read(head):
    section, listed = listed_under(head)
    files, lines = len({file for file, _ in listed}), sum(lines_of(*each) for each in {*listed})
    found = rf"To read: {len({*listed})} functions in {files} files, about (\d+) lines"
    said = re.search(found, section)
    assert said and abs(int(said[1]) - lines) <= 0.1 * lines, lines
    assert files <= 8 and lines <= 700


@pytest.mark.parametrize("head, kind, make, axes", [
    ("Data parallelism", DistributedDataParallel, two_of_mlp, {"dp": 2}),
    ("ZeRO-1", ZeRO1, mlp, {"dp": 2}),
    ("ZeRO-2", ZeRO2, mlp, {"dp": 2}),
    ("Tensor parallelism", DistributedDataParallel, mlp, {"tp": 2}),
    ("FSDP", FullyShardedDataParallel, mlp, {"dp": 2}),
    ("A pipeline", DistributedDataParallel, gpt, {"pp": 2}),
    ("A pipeline beside context parallelism", DistributedDataParallel, gpt, {"pp": 2, "cp": 2})])
def test_a_step_calls_these_functions_in_this_order(head, kind, make, axes):
    shown = 1 if head == "A pipeline" else 0
    listed = [": ".join(row) for row in listed_under(head)[1]]

    def body(comm):
        model, microbatches = make()
        strategy = kind(model.initialize(0), DeviceMesh(comm, **axes))
        calls, rank = [], getcurrent()

        def note(frame, event, _):          # the ranks take turns in one thread
            file = frame.f_code.co_filename
            if event == "call" and file.startswith(PACKAGE) and getcurrent() is rank:
                calls.append(f"{file.removeprefix(PACKAGE)}: {frame.f_code.co_qualname}")
        train(strategy, microbatches)
        if comm.rank == shown:
            sys.setprofile(note)
        train(strategy, microbatches)
        if comm.rank == shown:
            sys.setprofile(None)
        return calls
    rest = iter(Cluster(2 * len(axes), chooser=None).run(body)[0][shown])
    assert len(listed) > 10 and not [name for name in listed if name not in rest]
