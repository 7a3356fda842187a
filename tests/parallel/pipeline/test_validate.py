"""The validator names the first fault: of hand-made bad schedules, and of 1,000 mutations."""

import random
from math import inf

import pytest

from minipar.parallel.pipeline.schedule.actions import Action
from minipar.parallel.pipeline.schedule.csv import from_csv
from minipar.parallel.pipeline.schedule.dependencies import rank_of
from minipar.parallel.pipeline.schedule.registry import SCHEDULES, make_schedule
from minipar.parallel.pipeline.schedule.validate import find_fault

GOOD = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
BAD = [     # the table, (kind, rank, position, action), sentence, other places
    ("0F0,0F1,0B0,0B1\n1F0,1B0,1B1\n", ("missing", 1, 2, "1F1"),
     "1F1 is missing on rank 1: 1B1 (rank 1, position 2) needs it", ()),
    ("0F0,0B0,0B1\n1F0,1B0,1F1,1B1\n", ("missing", 0, 2, "0F1"),
     "0F1 is missing on rank 0: 0B1 (rank 0, position 2) needs it", ()),
    ("0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n", ("missing", 0, 3, "1B1"),
     "1B1 is missing on rank 1: 0B1 (rank 0, position 3) needs it", ()),
    ("0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n", ("missing", 0, 3, "0B1"),
     "0B1 is missing on rank 0: its row ends without it", ()),
    ("0F0,0F1,0F0,0B0,0B1\n1F0,1B0,1F1,1B1\n", ("double", 0, 2, "0F0"),
     "0F0 (rank 0, position 2) is done already, at position 0", ((0, 0),)),
    ("0F0,0F1,0B0,0I1,0W1\n1F0,1B0,1W0,1F1,1B1\n", ("double", 1, 2, "1W0"),
     "1W0 (rank 1, position 2) comes after 1B0 (position 1): a microbatch goes back by B, or by "
     "I and W", ((1, 1),)),
    ("0F0,0B0,0F1,0B1\n1B0,1F0,1F1,1B1\n", ("out of order", 1, 0, "1B0"),
     "1B0 (rank 1, position 0) comes before 1F0 (position 1), which it needs", ((1, 1),)),
    ("0F0,0F1,0B0,0B1,1F1\n1F0,1B0,1B1\n", ("wrong rank", 0, 4, "1F1"),
     "1F1 (rank 0, position 4) is on the wrong rank: stage 1 is on rank 1",
     ((1, 2),)),
    ("0F0,1F1,0F1,0B0,0B1\n1F0,1B0,1B1\n", ("wrong rank", 0, 1, "1F1"),
     "1F1 (rank 0, position 1) is on the wrong rank: stage 1 is on rank 1", ()),
    ("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", ("deadlock", 0, 1, "0B0"),
     "deadlock, a circle of ranks that wait: rank 0 at 0B0 (position 1) for 1B0, rank 1 at 1F1 "
     "(position 1) for 0F1", ((1, 1),)),
    ("0F0,9F0,0B0\n1F0,1B0\n", ("unknown", 0, 1, "9F0"),
     "9F0 (rank 0, position 1) is for no stage: there are 2, 0 to 1", ()),
    ("0F0,0F9,0B0\n1F0,1B0\n", ("unknown", 0, 1, "0F9"),
     "0F9 (rank 0, position 1) is for no microbatch: there are 2, 0 to 1", ()),
]


def place(fault):
    return fault and (fault.kind, fault.rank, fault.position, str(fault.action))


def test_a_good_schedule_has_none():
    assert find_fault(from_csv(GOOD)) is None
    mixed = "0F0,0F1,0B0,0I1,0W1\n1F0,1I0,1W0,1F1,1B1\n"       # B here, I and W there
    assert find_fault(from_csv(mixed)) is None


@pytest.mark.parametrize("table, expected, sentence, others", BAD, ids=lambda x: str(x)[:12])
def test_the_fault_of_a_bad_one(table, expected, sentence, others):
    fault = find_fault(from_csv(table), [0, 1], 2)
    assert place(fault) == expected
    assert fault.sentence == sentence
    assert fault.others == others


def test_a_kind_that_is_none_is_refused():
    assert find_fault([[Action("X", 0, 0)]], [0], 1).sentence == (
        "0X0 (rank 0, position 0) is of no kind: there are F, B, I, W")


def test_a_circle_of_three_names_all():
    table = "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n2F0,2F1,2B0,2B1\n"
    fault = find_fault(from_csv(table))
    assert fault.kind == "deadlock" and (fault.rank, fault.position) == (0, 1)
    assert fault.sentence.count(" for ") == 1 + len(fault.others)


# ---- the truth, found in another way: rounds by repeated relaxation over all pairs of cells ----

OPS = {"F": "F", "B": "IW", "I": "I", "W": "W"}


def parts(cell):
    return {(kind, cell.stage, cell.microbatch) for kind in OPS[cell.kind]}


def wanted(cell, last):
    """Parts that must be done before, by the same stage first."""
    kind, s, i = cell
    if kind == "F":
        return [("F", s - 1, i)][:s]
    if kind == "W":
        return [("I", s, i)]
    return [("F", s, i)] + [("I", s + 1, i)] * (s < last)


def truth(schedule, placement, m):
    """(kind, rank, position) of the first fault, or None, from what the words mean."""
    last = len(placement) - 1
    cells = {(r, k): a for r, row in enumerate(schedule) for k, a in enumerate(row)}
    own = {where: a for where, a in cells.items() if 0 <= a.stage <= last and 0 <= a.microbatch < m}
    good = {where for where, a in own.items()
            if rank_of(placement, a.stage, a.microbatch) == where[0]}

    def places(part, rank):
        return [k for (r, k), a in sorted(cells.items()) if r == rank and part in parts(a)]

    # Round in which a cell is done: one after its predecessor's, and after its remote needs'.
    done = dict.fromkeys(cells, inf)
    changed = True
    while changed:
        changed = False
        for (r, k), a in cells.items():
            after = done[r, k - 1] if k else -1
            if (r, k) in good:
                for part in wanted(a, last):
                    owner = rank_of(placement, *part[1:])
                    if owner != r:
                        after = max(after, min((done[owner, at] for at in places(part, owner)),
                                               default=inf))
            if after + 1 < done[r, k]:
                done[r, k], changed = after + 1, True
    seen = {(r, k): done[r, k - 1] + 1 if k else 0 for r, k in cells}

    faults = []
    for (r, k), a in cells.items():
        if (r, k) not in own:
            kind = "unknown"
        elif (r, k) not in good:
            kind = "wrong rank"
        elif any(parts(a) & parts(schedule[r][at]) for at in range(k)):
            kind = "double"
        else:
            lacking = [part for part in wanted(a, last)
                       if rank_of(placement, *part[1:]) == r
                       and not any(at < k for at in places(part, r))]
            if not lacking:
                continue
            elsewhere = [(q, at) for q in range(len(schedule)) for at in places(lacking[0], q)]
            kind = "out of order" if places(lacking[0], r) else "missing"
            if kind == "missing" and elsewhere:
                faults.append((seen[r, k], r, ("wrong rank", *elsewhere[0])))
                continue
        faults.append((seen[r, k], r, (kind, r, k)))
    if faults and min(faults)[0] < inf:
        return min(faults)[2]

    heads = {r: next(k for k in range(len(row)) if done[r, k] == inf)
             for r, row in enumerate(schedule) if any(done[r, k] == inf for k in range(len(row)))}
    waits = {}
    for r, k in heads.items():
        part = next(p for p in wanted(schedule[r][k], last) if rank_of(placement, *p[1:]) != r)
        waits[r] = rank_of(placement, *part[1:])
        if not places(part, waits[r]):
            elsewhere = [(q, at) for q in range(len(schedule)) for at in places(part, q)]
            return ("wrong rank", *elsewhere[0]) if elsewhere else ("missing", r, k)
    if heads:
        rank = min(heads)
        for _ in heads:                 # after that number of steps one stands in the circle
            rank = waits[rank]
        circle = {rank}
        while waits[rank] not in circle:
            rank = waits[rank]
            circle.add(rank)
        return "deadlock", min(circle), heads[min(circle)]
    present = set().union(*map(parts, cells.values()))
    for r, row in enumerate(schedule):
        if any((kind, s, i) not in present for kind in "FIW" for s in range(last + 1)
               for i in range(m) if rank_of(placement, s, i) == r):
            return "missing", r, len(row)
    return None


def mutate(schedule, rng, m):
    """A copy with one change, what kind of change, and its place."""
    rows = [list(row) for row in schedule]
    r = rng.randrange(len(rows))
    k, at = rng.randrange(len(rows[r])), rng.randrange(len(rows[r]))
    action = rows[r][k]
    how = rng.choice(["delete", "again", "swap", "shift", "stage", "microbatch", "kind",
                      *["move", "exchange"] * (len(rows) > 1)])
    if how == "delete":
        del rows[r][k]
    elif how == "again":
        rows[r].insert(at, action)
    elif how == "swap":
        rows[r][k], rows[r][at] = rows[r][at], action
    elif how == "shift":
        rows[r].insert(at, rows[r].pop(k))
    elif how == "move":
        del rows[r][k]
        other = rng.choice([row for row in rows if row is not rows[r]])
        other.insert(rng.randrange(len(other) + 1), action)
    elif how == "exchange":
        other = rows[rng.randrange(len(rows))]
        j = rng.randrange(len(other))
        rows[r][k], other[j] = other[j], rows[r][k]
    elif how == "stage":
        rows[r][k] = action._replace(stage=rng.randrange(2 * len(rows) + 2))
    elif how == "microbatch":
        rows[r][k] = action._replace(microbatch=rng.randrange(m + 2))
    else:
        rows[r][k] = action._replace(kind=rng.choice("FBIW"))
    return rows, how, action


@pytest.mark.parametrize("number", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_each_mutation_is_named_by_its_true_first_fault(number):
    rng = random.Random(0)
    kinds, found, harmless = set(), 0, 0
    while found < number:
        name, p, m = rng.choice([*SCHEDULES]), rng.randint(1, 4), rng.randint(1, 5)
        schedule, placement = make_schedule(name, p, m)
        schedule = [[Action(*action) for action in row] for row in schedule]    # without pairs
        bad, how, action = mutate(schedule, rng, m)
        if bad == schedule:
            continue
        fault, expected = find_fault(bad, placement, m), truth(bad, placement, m)
        assert place(fault) is None if expected is None else place(fault)[:3] == expected, (
            f"{how} {action} in {name} p={p} m={m}: {fault} but {expected}")
        harmless += fault is None
        if fault is None:
            assert how in ("swap", "shift", "exchange"), (how, action)
            continue
        found += 1
        kinds.add(fault.kind)
        if how == "delete":         # here the truth is plain
            assert fault.kind == "missing" and fault.action == action, (fault, action)
        if how == "move":
            assert fault.kind == "wrong rank" and fault.action == action, (fault, action)
    assert kinds == {"unknown", "wrong rank", "double", "out of order", "missing", "deadlock"}
    assert harmless
