"""The wait of a rank, what could end it, and what the rank has done for the waits of others."""

from typing import Any

from ...simulated.deadlock import message_wait
from ...simulated.rank import Split
from ..process import Process


class Waits:
    """The waits of one rank, as its observer sees them."""

    def __init__(self, process: Process):
        self.process, self.record = process, process.record

    def look(self) -> dict[str, Any] | None:
        """The present wait; None while the rank computes.

        `text`, `label` and `peer`, a world number, are for the report.  Each of the `alternatives`
        is a list of needs (ranks, question), for `answer`.  The wait ends when all needs of one
        alternative are met.
        """
        waiting = self.process.waiting
        if waiting is None:
            return None
        description = waiting[0]
        kind, peer, tag, num_bytes, label = description
        if kind == "receive from" and not hasattr(description, "alternatives"):
            description = self.record.exchange
        posts = list(getattr(description, "alternatives", ()))
        engine, log = self.process.engine, self.record.current
        if engine is not None:          # a Work that goes on may end the wait, too
            posts += [each for request in list(engine.standing_at.values())
                      for each in request.description.alternatives]
        alternatives: list = [[[[comm.members[peer]], [kind, comm.key, comm.rank, tag, number]]
                               for comm, kind, peer, tag, number in each] for each in posts]
        if peer is not None:
            peer = posts[0][0][0].members[peer]
            text = message_wait(kind, peer, tag, num_bytes, label)
        else:                           # all ranks must make this call; if it is unknown, any may
            text = str(Split()) if kind == "split" else f"to {kind}"
            alternatives.append([[log.peers, ["call", log.key, 0, 0, log.num_calls]]]
                                if log else [])
        return {"id": f"{text} {num_bytes} {alternatives}", "text": text, "peer": peer,
                "label": label, "alternatives": alternatives}

    def answer(self, rank: int, alternatives: list) -> list[list[bool | None]]:
        """True for each need of another rank's wait that this one, `rank`, has met, else False.

        The answer is None where the need is not for this rank.
        """
        return [[self._has_done(*question) if rank in ranks else None
                 for ranks, question in needs] for needs in alternatives]

    def _has_done(self, kind: str, key: str, rank: int, tag: int, number: int) -> bool:
        """True if this rank made the `number`-th call, or its half of that message with `rank`."""
        if kind == "call":
            log = self.record.logs.get(key)
            return log is not None and log.num_calls >= number
        mine = "send to" if kind == "receive from" else "receive from"
        return self.record.posts.get(key, {}).get((mine, rank, tag), 0) >= number
