"""What a simulated rank did: seconds of computation and of waiting, FLOPs; and a program to repeat.

    with log.recording() as program: …      the first microbatch, by the model's own code
    play(program)                           the others: equal spans and messages, without arrays

Messages of a Work (a non-blocking collective) are not noted: the rank computes meanwhile.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

IDLE = "idle in the pipeline"


@cache
def axis_of(label: str) -> str:
    """The axis of the mesh along which messages of `label` go; "control" for control messages."""
    if label == "control":
        return label
    return label.partition(" over ")[2].replace(", ", "·") or "pp"


class RankLog:
    """`computing` has seconds by phase, `waiting` seconds by axis; `flops` are those that ran.

    `repeated` are the seconds of a whole microbatch that was repeated.
    """

    program: list[tuple] | None = None      # while recording

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.computing: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        self.flops = 0
        self.repeated = 0.0

    def computed(self, name: str, seconds: float, flops: int) -> None:
        """Note a computation; the last word of its name is the phase."""
        self.computing[name.rpartition(" ")[2]] += seconds
        self.flops += flops

    def waited(self, label: str, since: float, started: float, until: float) -> None:
        """Note a wait for a message that left at `started`; the time before it is idle, in pp."""
        axis = axis_of(label)
        if axis == "pp" and started > since:
            self.waiting[IDLE] += started - since
            since = started
        self.waiting[axis] += until - since

    @contextmanager
    def recording(self) -> Iterator[list[tuple]]:
        """Context whose computations and messages are recorded, as calls to repeat."""
        self.program = program = []
        try:
            yield program
        finally:
            self.program = None

    def repeat(self, before: "RankLog", seconds: float, times: int) -> None:
        """Note `times` more times what was done since `before`, in `seconds`."""
        for noted, then in (self.computing, before.computing), (self.waiting, before.waiting):
            for name in noted:
                noted[name] += times * (noted[name] - then[name])
        self.flops += times * (self.flops - before.flops)
        self.repeated = seconds

    def record(self, comm: Any, method: Callable, *arguments: Any) -> None:
        """Add a call to the program, if one is recorded."""
        if self.program is not None:
            self.program.append((comm, method, comm.label, arguments))


def play(program: list[tuple]) -> None:
    """Repeat a recorded program."""
    for comm, method, label, arguments in program:
        comm.label = label
        method(*arguments)
        comm.label = ""
