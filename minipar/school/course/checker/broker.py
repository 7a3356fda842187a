"""The broker carries every message between ranks.  It counts them, and knows who waits for whom.

    rank 0 ── send to 1 ──▶ ┌────────┐ ── the array ──▶ rank 1
           ◀── done ──────  │ broker │ ◀── recv from 0 ──
                            └────────┘    bytes, messages and rounds: counted here

A send meets its receive by group, source, destination and tag, in the order of posting.  Until they
have met, neither is done.  When every rank that has not ended waits, none can go on: a deadlock.

A message must have the size and the dtype that its receive was posted with, or the run fails.  So a
message's size tells its receiver nothing.  But its tag, its order and its existence do, even
without content.  So if a task does not limit the number of messages, each message counts
HEADER bytes more.

Rounds: a rank's clock is the number of messages that it had to wait for, one after another.  A
message takes one round from the later clock of its two ranks.  A message stays here until its
receiver waits for it, so none arrives uncounted.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .ranks.frames import Frame, clean, pack

HEADER = 16                 # bytes that a message adds if its task does not limit messages
MAX_OPEN = 64 << 20         # bytes of messages under way
MAX_LINE = 200              # characters of a line's place
MAX_POSTS = 100_000         # of a run
MAX_SPLITS = 16             # of a rank: a new group's size tells ranks something, without bytes
Key = tuple[int, int, int, int]         # group, source and destination in the world, tag


class Broken(Exception):
    """A rank broke a rule: the message says which."""


class Mismatch(Broken):
    """A message does not fit the array of `rank` that receives it, by the receive at `line`."""

    def __init__(self, sentence: str, rank: int, line: str):
        super().__init__(sentence)
        self.rank, self.line = rank, line


class Delivery(NamedTuple):
    """A message that has been delivered; `round` counts from 1."""

    source: int
    dest: int
    num_bytes: int
    round: int


class Post(NamedTuple):
    """A send or a receive that was posted: the clock of its rank, size and dtype of its array."""

    rank: int
    number: int
    clock: int
    line: str
    size: int
    dtype: str
    array: np.ndarray | None = None


class PostWait(NamedTuple):
    """The post that a rank waits for, in words, and the line of the wait."""

    number: int
    what: str
    line: str


class Done(NamedTuple):
    """The completion of a post: its round, and what its rank gets when it waits for it."""

    round: int
    array: np.ndarray | None
    fields: dict[str, int]


@dataclass
class Broker:
    """The network of `size` ranks: `take` handles a frame and returns the frames that answer."""

    size: int
    messages: list[Delivery] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.groups = [list(range(self.size))]
        self.sends: dict[Key, deque[Post]] = defaultdict(deque)
        self.recvs: dict[Key, deque[Post]] = defaultdict(deque)
        self.splits: dict[tuple[int, int], list[tuple]] = defaultdict(list)
        self.num_splits: dict[tuple[int, int], int] = defaultdict(int)      # by group and rank
        self.all_splits = [0] * self.size                                   # by rank
        self.clocks = [0] * self.size
        self.done: dict[tuple[int, int], Done] = {}         # (rank, number): not asked for yet
        self.posted: dict[tuple[int, int], str] = {}        # (rank, number): in words
        self.waiting: dict[int, PostWait] = {}
        self.open_bytes = 0

    def take(self, rank: int, frame: Frame) -> list[tuple[int, bytes]]:
        """Handle a frame of a rank; return (rank, frame) for each answer.  Raises Broken."""
        fields, kind = frame.fields, frame.fields.get("kind")
        try:
            number, line = int(fields["id"]), clean(fields["line"], MAX_LINE)
            if kind == "wait":
                self.waiting[rank] = PostWait(number, self.posted[rank, number], line)
                return self.hand_over(rank, number)
            if len(self.posted) >= MAX_POSTS:
                raise Broken(f"more than {MAX_POSTS:,} messages")
            if kind == "split":
                return self.split(rank, number, line, int(fields["group"]), fields["color"],
                                  int(fields["key"]))
            group = self.groups[int(fields["group"])]
            peer, tag = group[int(fields["peer"])], int(fields["tag"])
            if rank not in group or min(int(fields["group"]), int(fields["peer"])) < 0:
                raise Broken("a message in a group of other ranks")
            if kind == "send":
                array = frame.arrays["array"]
                self.posted[rank, number] = f"to send {array.nbytes} bytes to rank {peer}"
                self.open_bytes += array.nbytes
                if self.open_bytes > MAX_OPEN:
                    raise Broken(f"messages of more than {MAX_OPEN:,} bytes that no rank waits for")
                key = int(fields["group"]), rank, peer, tag
                self.sends[key].append(Post(rank, number, self.clocks[rank], line, array.size,
                                            array.dtype.name, array))
            elif kind == "recv":
                size, dtype = int(fields["size"]), np.dtype(str(fields["dtype"]))
                self.posted[rank, number] = (f"to receive {size * dtype.itemsize} bytes from rank "
                                             f"{peer}")
                key = int(fields["group"]), peer, rank, tag
                self.recvs[key].append(Post(rank, number, self.clocks[rank], line, size,
                                            dtype.name))
            else:
                raise Broken("a frame of an unknown kind")
            return self.match(key)
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise Broken(f"a frame that is not of the communicator's ({error!r})") from None

    def match(self, key: Key) -> list[tuple[int, bytes]]:
        """Deliver a message if both its send and its receive are posted.  Raises Mismatch."""
        if not (self.sends[key] and self.recvs[key]):
            return []
        send, recv = self.sends[key].popleft(), self.recvs[key].popleft()
        assert send.array is not None
        if (send.size, send.dtype) != (recv.size, recv.dtype):
            raise Mismatch(f"the message has {send.size} × {send.dtype}, but the array to receive "
                           f"into has {recv.size} × {recv.dtype}", recv.rank, recv.line)
        round = max(send.clock, recv.clock) + 1
        self.messages.append(Delivery(send.rank, recv.rank, send.array.nbytes, round))
        array = send.array.reshape(-1)          # a shape would tell something, without bytes
        return [*self.complete(send.rank, send.number, Done(round, None, {})),
                *self.complete(recv.rank, recv.number, Done(round, array, {}))]

    def complete(self, rank: int, number: int, done: Done) -> list[tuple[int, bytes]]:
        """Note that a post is complete; hand it over if its rank waits for it."""
        self.done[rank, number] = done
        waits = rank in self.waiting and self.waiting[rank].number == number
        return self.hand_over(rank, number) if waits else []

    def hand_over(self, rank: int, number: int) -> list[tuple[int, bytes]]:
        """[(rank, frame)] for a post that its rank waits for, if the post is complete; else [].

        The rank goes on, and its clock is now at least the round of the post.
        """
        done = self.done.pop((rank, number), None)
        if done is None:
            return []
        self.waiting.pop(rank, None)
        self.clocks[rank] = max(self.clocks[rank], done.round)
        arrays = {} if done.array is None else {"array": done.array}
        self.open_bytes -= 0 if done.array is None else done.array.nbytes
        return [(rank, pack({"id": number, **done.fields}, arrays))]

    def split(self, rank: int, number: int, line: str, group: int, color: int | None,
              key: int) -> list[tuple[int, bytes]]:
        """Collect a split; when the last rank of its group has come, form the new groups."""
        if rank not in self.groups[group]:
            raise Broken("a split of a group of other ranks")
        self.all_splits[rank] += 1
        if self.all_splits[rank] > MAX_SPLITS:
            raise Broken(f"more than {MAX_SPLITS} splits: exchange data with messages, which count")
        self.posted[rank, number] = "in split for the other ranks"
        self.num_splits[group, rank] += 1
        arrived = self.splits[group, self.num_splits[group, rank]]
        arrived.append((key, self.groups[group].index(rank), color, rank, number))
        if len(arrived) < len(self.groups[group]):
            return []
        answers, made = [], {}
        for _, _, color, rank, _ in sorted(arrived, key=lambda entry: entry[:2]):
            if color is not None:
                made.setdefault(color, []).append(rank)
        first = len(self.groups)
        self.groups += made.values()
        for _, _, color, rank, number in arrived:
            found = {} if color is None else {
                "group": first + list(made).index(color), "rank": made[color].index(rank),
                "size": len(made[color])}
            answers += self.complete(rank, number, Done(self.clocks[rank], None, found))
        return answers

    def is_stuck(self, running: set[int]) -> bool:
        """True if some ranks have not ended, and all of those wait."""
        return bool(running) and running <= self.waiting.keys()

    def deadlock(self, running: set[int]) -> str:
        """The report of a deadlock: a line for each rank."""
        lines = [f"  rank {rank} waits {self.waiting[rank].what} at {self.waiting[rank].line}"
                 for rank in sorted(running)]
        ended = sorted(set(range(self.size)) - running)
        if ended:
            lines.append(f"  rank{'s' * (len(ended) > 1)} {', '.join(map(str, ended))} ended "
                         "before")
        return "\n".join(["deadlock: no rank can go on", *lines, "Every send needs its receive, in "
                          "an order that lets both be reached: try sendrecv, or let one rank "
                          "receive first."])

    def left_over(self) -> str:
        """The first send or receive that never met its other half, in words; "" if all have."""
        for kind, posts in (("sends", self.sends), ("receives", self.recvs)):
            for (_, source, dest, _), waiting in posts.items():
                if waiting:
                    one = source if kind == "sends" else dest
                    return (f"rank {one} {kind} {'to' if kind == 'sends' else 'from'} rank "
                            f"{dest if kind == 'sends' else source} at {waiting[0].line}, and that "
                            "rank never does the other half")
        return ""
