"""The JSON for Perfetto: its rectangles and arrows are the trace's events, no more and no fewer."""

import json
from collections import Counter, defaultdict

import pytest

from minipar.comm import Trace
from minipar.testing import worlds
from minipar.viz import write_perfetto
from tests.support.traced import check, trace_of


def read(path) -> tuple[dict, list, list]:
    """(names of threads by (pid, tid) and of processes by pid, rectangles, arrows' ends)."""
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["displayTimeUnit"] == "ns"
    phases = defaultdict(list)
    for event in content["traceEvents"]:
        phases[event["ph"]].append(event)
    assert set(phases) <= {"M", "X", "s", "f"}
    names = {(e["pid"], e["tid"]) if e["name"] == "thread_name" else e["pid"]: e["args"]["name"]
             for e in phases["M"] if e["name"] in ("thread_name", "process_name")}
    return names, phases["X"], phases["s"] + phases["f"]


def assert_equal_to_trace(path, trace) -> None:
    names, rectangles, ends = read(path)
    first = min(e[-2] for e in trace.messages + trace.spans)

    def micro(time):
        return (time - first) * 1e6
    drawn = Counter()
    for e in rectangles:
        rank = names[e["pid"]].removeprefix("rank ")
        row = names[e["pid"], e["tid"]].split()[0]
        drawn[int(rank), row, e["name"], e["ts"], e["dur"], *e["args"].values()] += 1
    right = Counter((s.rank, "compute", s.name, micro(s.start), (s.end - s.start) * 1e6)
                    for s in trace.named_spans())
    for m in trace.select() + trace.select(label="control"):
        for rank, row, peer in ((m.source, "sends", m.dest), (m.dest, "receives", m.source)):
            right[rank, row, m.label or "message", micro(m.start), (m.end - m.start) * 1e6,
                  m.num_bytes, m.label, peer, micro(m.posted)] += 1
    assert drawn == right
    assert min(e["ts"] for e in rectangles) == 0

    arrows = defaultdict(dict)
    for e in ends:
        assert e["ph"] not in arrows[e["id"]]
        arrows[e["id"]][e["ph"]] = e
    assert Counter((a["s"]["pid"] - 1, a["f"]["pid"] - 1, a["s"]["ts"]) for a in arrows.values()
                   ) == Counter((m[0], m[1], micro(m[5])) for m in trace.messages)
    threads = defaultdict(list)
    for e in rectangles:
        threads[e["pid"], e["tid"]].append(e)
    for e in ends:                      # each end lies in a rectangle, which is what it is tied to
        assert e.get("bp") == ("e" if e["ph"] == "f" else None)
        assert any(r["ts"] <= e["ts"] <= r["ts"] + r["dur"] for r in threads[e["pid"], e["tid"]])
    for events in threads.values():     # the viewers cannot show rectangles that overlap
        events.sort(key=lambda e: (e["ts"], e["dur"]))
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-5 for a, b in zip(events, events[1:]))


@worlds(1, 2, 5, mpi=(2, 4))
def test_rectangles_and_arrows_are_the_trace(world, tmp_path):
    def body(comm):
        trace = trace_of(comm)
        if comm.rank == 0:
            if comm.size > 1:
                check(trace, comm.size)
            path = write_perfetto(tmp_path / "deep" / "trace.json", trace)
            assert list(path.parent.iterdir()) == [path]
            assert_equal_to_trace(path, trace)
    world.run(body)


def test_what_overlaps_gets_threads_of_its_own(tmp_path):
    trace = Trace([(0, 1, 8, "a", 0.0, i * 1.0, i + 2.5) for i in range(5)], [(2, "é", 9.0, 9.5)])
    names, *_ = read(write_perfetto(tmp_path / "t.json", trace))
    of_first = [name for key, name in names.items() if isinstance(key, tuple) and key[0] == 1]
    assert of_first == ["sends", "sends 2", "sends 3"]
    assert [names[pid] for pid in (1, 2, 3)] == ["rank 0", "rank 1", "rank 2"]
    tids = [key[1] for key in names if isinstance(key, tuple)]
    assert len(set(tids)) == len(tids) and not set(tids) & {0, 1, 2, 3}
    assert_equal_to_trace(tmp_path / "t.json", trace)


def test_time_starts_at_the_first_event(tmp_path):
    trace = Trace([(0, 1, 8, "", 99.0, 100.0, 101.0), (1, 0, 8, "control", 99.0, 100.5, 101.0)],
                  [(1, "x", 100.25, 103.0)])
    assert_equal_to_trace(write_perfetto(tmp_path / "t.json", trace), trace)


def test_an_empty_trace_is_refused_and_the_old_file_kept(tmp_path):
    path = tmp_path / "t.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="empty"):
        write_perfetto(path, Trace())
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
