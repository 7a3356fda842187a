"""The observer: a thread of each rank that tells the others what its rank does, by messages.

    rank 0   │ waits to receive from rank 1, its 3rd message   ──▶ row ──▶   rank 1, 2, …
    rank 1   │ waits to send to rank 2; has sent 2 to rank 0   ──▶ row ──▶   rank 0, 2, …

mpi4py releases Python's lock inside MPI, so the thread runs while its rank waits, and while it
computes.  Four times a second it sends a row, which says what its rank does now, to each other
rank.  It does so on a communicator of its own, and reads the others' rows.  `deadlock.py` says what
follows from the rows.  If some ranks can never go on, the lowest rank reports that, and ends the
run.  Only messages are used, so ranks may be on any hosts.  A rank on the same host notices
if a rank is stopped.

A rank that leaves the program waits until all have left, and all their calls are compared.
"""

import atexit
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ....environment import wait_limit
from ...communicator import Chooser
from ..communicator import MPICommunicator, connect
from ..guardian import abort
from .communicator import CheckedCommunicator
from .deadlock import Row, describe, describe_long_wait, describe_stuck, find_stuck
from .mismatch import mismatch_report
from .places import find_place, place_name
from .waits import Waits

INTERVAL = 0.25             # seconds between two rows
STOPPED = 0.75              # seconds for which a rank is seen stopped before it counts as such
SILENT = 30.0               # … or is silent, if no other rank can see it
PATIENCE = 4.0              # seconds for another rank to report and end the run


def connect_checked(mpi_comm: Any, MPI: Any, chooser: Chooser, own_algorithms: Any,
                    watch: Any) -> MPICommunicator:
    """Collective.  `connect`, with observers."""
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise RuntimeError("MINIPAR_CHECK=1 needs an MPI library with threads "
                           "(MPI_THREAD_MULTIPLE), and this one has none: unset MINIPAR_CHECK")
    comm: Any = connect(mpi_comm, MPI, chooser, own_algorithms, watch, CheckedCommunicator)
    comm.record.observer = CallObserver(comm)
    return comm


class CallObserver:
    """The observer of one rank in one world."""

    made: ClassVar[list["CallObserver"]] = []

    def __init__(self, comm: CheckedCommunicator):
        self.MPI, self.process, self.record = comm.MPI, comm.rank_state, comm.record
        self.comm, self.rank, self.limit = comm.mpi_comm.Dup(), comm.rank, wait_limit()
        self.pids = self.comm.allgather(os.getpid())
        self.peers = [rank for rank in range(comm.size) if rank != self.rank]
        blank: Row = {"state": "runs", "wait": None, "answers": {}, "line": "an unknown line",
                 "dispute": None, "call": None, "stopped": {}, "has_failed": False}
        self.rows: dict[int, Row] = dict.fromkeys(self.peers, blank)
        self.heard = dict.fromkeys(self.peers, time.monotonic())
        self.stopped: dict[int, float] = {}         # since when, as seen from here
        # calls of other ranks on communicators that this rank has yet to make
        self.early: dict[str, dict[int, list[int]]] = {}
        self.known: dict = {}                       # descriptions of calls
        self.dispute: tuple[str, int] | None = None     # the collective that ranks differ in
        self.disputed_since: float | None = None
        self.told, self.told_at = "", 0.0           # the last row sent
        self.waits = Waits(comm.rank_state)
        self.wait_id, self.since = "", 0.0          # of this rank's wait, and when it began
        self.trouble_since: float | None = None
        self.sending: list[Any] = []
        self.unfinished = ""            # at the end: where the request began that it waits for now
        self.has_failed = False
        self.state, self.leaving = "runs", threading.Event()
        self.main_thread = threading.get_ident()
        self.thread = threading.Thread(target=self._observe, daemon=True, name="observer")
        self.thread.start()
        if not self.made:
            atexit.register(leave)
        self.made.append(self)

    def _observe(self) -> None:
        try:
            while self.state != "over":
                self._hear()
                row = self.look()
                self._compare_calls()
                self._tell(row)
                self._judge({**self.rows, self.rank: row})
                time.sleep(0.01 if self.leaving.is_set() else INTERVAL)
        except BaseException:           # else the others would wait for this rank's rows
            traceback.print_exc()
            abort(self.MPI, 1)

    # what this rank does

    def look(self) -> Row:
        """The row of this rank.

        state   runs; left: it has left the program; bye: and so have all others; its last row
        wait    None, or: id; text, peer (for the report); alternatives; seconds, steps
        answers for each rank that waits: the id of its wait, and what this rank has posted of it
        """
        wait = self.waits.look() if self.state == "runs" else None
        for log in list(self.record.logs.values()):
            log.take(self.known)
        asking = {rank: row["wait"] for rank, row in self.rows.items()}
        answers = {str(rank): (asked["id"], self.waits.answer(self.rank, asked["alternatives"]))
                   for rank, asked in {**asking, self.rank: wait}.items() if asked}
        if wait != self.waits.look():   # it has gone on meanwhile, or the calls were not yet taken
            wait = None
        if (wait["id"] if wait else "") != self.wait_id:
            self.wait_id, self.since = wait["id"] if wait else "", time.monotonic()
        if wait:
            wait["seconds"] = time.monotonic() - self.since
            wait["steps"] = int(wait["seconds"] / INTERVAL)
        frame = self.process.program or sys._current_frames().get(self.main_thread)
        return {"state": self.state, "has_failed": self.has_failed, "wait": wait,
                "answers": answers, "line": self.unfinished or place_name(find_place(frame)),
                "dispute": self.dispute, "call": self._call_in_dispute(),
                "stopped": {str(rank): self._silence(rank) for rank, since in self.stopped.items()
                            if time.monotonic() - since > STOPPED}}

    # rows of all ranks

    def _hear(self) -> None:
        status, now = self.MPI.Status(), time.monotonic()
        # a probe may find nothing and yet let the library take a message in, so ask again
        while any(self.comm.Iprobe(status=status) for _ in range(3)):
            rank, text = status.Get_source(), np.empty(status.Get_count(self.MPI.BYTE), np.uint8)
            self.comm.Recv([text, self.MPI.BYTE], rank)
            row = json.loads(text.tobytes())
            for key, calls in row.pop("calls").items():
                self.early.setdefault(key, {}).setdefault(rank, []).extend(calls)
            self.rows[rank], self.heard[rank] = row, now
        for rank in self.peers:
            if is_stopped(self.pids[rank]) if self._is_near(rank) else self._is_alone(rank, now):
                self.stopped.setdefault(rank, now)
            else:
                self.stopped.pop(rank, None)

    def _silence(self, rank: int) -> str:
        if self._is_near(rank):
            return f"is stopped (kill -CONT {self.pids[rank]} lets it go on)"
        return f"has not answered for {SILENT:g} s (stopped, or its host is cut off?)"

    def _is_near(self, rank: int) -> bool:
        return self.process.nodes[rank] == self.process.nodes[self.rank]

    def _is_alone(self, rank: int, now: float) -> bool:
        """True if no other rank can see a rank that has been silent for long."""
        nodes = self.process.nodes
        return now - self.heard[rank] > SILENT and nodes.count(nodes[rank]) == 1

    def _tell(self, row: Row) -> None:
        news = {key: (log.peers, log.news()) for key, log in list(self.record.logs.items())
                if log.num_told < log.num_calls}
        text, now = json.dumps(row), time.monotonic()
        if not news and text == self.told and now - self.told_at < INTERVAL:
            return
        if self.state == "runs" and self.process.guardian is not None:
            self.process.guardian.note(describe(row))
        self.told, self.told_at = text, now
        for rank in self.peers:
            calls = {key: calls for key, (peers, calls) in news.items() if rank in peers}
            message = np.frombuffer(json.dumps({**row, "calls": calls}).encode(), np.uint8)
            request = self.comm.Isend([message, self.MPI.BYTE], rank)
            self.sending.append((request, message))
        self.sending = [each for each in self.sending if not each[0].Test()]

    # collectives

    def _compare_calls(self) -> None:
        disputes = [tuple(row["dispute"]) for row in self.rows.values() if row["dispute"]]
        have_left = self.state != "runs" and all(
            row["state"] != "runs" for row in self.rows.values())
        for key, log in list(self.record.logs.items()):
            for rank, calls in self.early.pop(key, {}).items():
                log.theirs[rank] += calls
            first = log.compare()
            if first is None and have_left and log.num_told == log.num_calls:
                first = log.first_missing()
            if first is not None:
                disputes.append((key, first))
            elif log.comm() is None and log.is_settled() and log.num_told == log.num_calls:
                del self.record.logs[key]
        self.dispute = min(disputes, default=None)

    def _call_in_dispute(self) -> list | None:
        if self.dispute is None or self.dispute[0] not in self.record.logs:
            return None
        call = self.record.logs[self.dispute[0]].calls.get(self.dispute[1])
        return [*self.dispute, call[1], call[2]] if call else None

    # the report

    def _judge(self, rows: dict[int, Row]) -> None:
        """Report what is wrong, if anything is, and end the run; end if all ranks have left."""
        stopped = {int(rank): text for row in rows.values()
                   for rank, text in row["stopped"].items()}
        reporters, trouble = self._trouble(rows, stopped)
        now = time.monotonic()
        if trouble:
            self.trouble_since = self.trouble_since or now
            is_first = self.rank == min(set(reporters) - set(stopped))
            if now - self.trouble_since > (2 * INTERVAL if is_first else PATIENCE):
                print(f"minipar: {trouble}", file=sys.stderr, flush=True)
                abort(self.MPI, 1)
            return
        self.trouble_since = None
        states = {row["state"] for row in rows.values()}
        if self.dispute is not None:
            return
        if self.state == "runs" and self.leaving.is_set():
            self.state = "left"
        elif self.state == "left" and "runs" not in states:
            self.state = "bye"
        elif states == {"bye"}:
            for request, _ in self.sending:
                request.Wait()
            self.state = "over"

    def _trouble(self, rows: dict[int, Row],
                 stopped: dict[int, str]) -> tuple[Sequence[int], str | None]:
        """(the ranks that can report what is wrong, the report or None)."""
        if self.dispute is not None:
            return self._mismatch(rows)
        stuck = find_stuck(rows, set(stopped))
        if stuck or stopped and all(row["state"] != "runs" for rank, row in rows.items()
                                    if rank not in stopped):
            return [*rows], describe_stuck(rows, stuck, stopped)
        return [*rows], describe_long_wait(rows, self.limit)

    def _mismatch(self, rows: dict[int, Row]) -> tuple[Sequence[int], str | None]:
        """The report on the collective that ranks differ in; None until all have told theirs."""
        key, number = self.dispute or ("", 0)
        self.disputed_since = self.disputed_since or time.monotonic()
        calls = {rank: row["call"][2:] for rank, row in rows.items()
                 if row["call"] and row["call"][:2] == [key, number]}
        log = self.record.logs.get(key)
        if log is None:                         # its members report it
            return (), None
        ended = [rank for rank in log.members if rank not in calls
                 and list(rows[rank]["dispute"] or ()) == [key, number]
                 and rows[rank]["state"] != "runs"]
        if len(calls) + len(ended) < len(log.members) \
                and time.monotonic() - self.disputed_since < 2:
            return (), None
        return log.members, mismatch_report(calls, ended) or None

    def wait_for_report(self) -> None:
        """Called by the program, whose collective has failed: a report may be due."""
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline or self.dispute:
            time.sleep(0.1)

    def finish(self) -> None:
        """Called at the end of the program: complete the requests that it has forgotten."""
        for request in list(self.record.pending.values()):
            self.unfinished = request.started
            with suppress(ValueError):
                request.wait()
        self.leaving.set()

    def wait_for_turn(self) -> None:
        """Called by a program that has failed: if another rank fails as well, one reports it."""
        now = time.monotonic()
        self.has_failed = not any(row["has_failed"] for row in self.rows.values())
        before = [rank for rank in self.peers if rank < self.rank]
        while time.monotonic() < now + 2 and any(self.heard[rank] < now + INTERVAL
                                                 for rank in before):
            time.sleep(0.05)
        if not self.has_failed or any(self.rows[rank]["has_failed"] for rank in before):
            time.sleep(PATIENCE)        # meanwhile the run ends


def is_stopped(pid: int) -> bool:
    """True if a process of this machine is stopped by a signal."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:                             # there is no /proc on macOS
        return False


def leave() -> None:
    """At the end of the program: wait until all ranks have left, and are found to agree."""
    for observer in CallObserver.made:
        observer.finish()
    for observer in CallObserver.made:
        observer.thread.join()
