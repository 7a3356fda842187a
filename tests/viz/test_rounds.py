"""Films of collectives: what they show is what the collectives do, and costs what they cost."""

import numpy as np
import pytest

from minipar.comm.algorithms import ALGORITHMS
from minipar.comm.arguments import OPERATORS
from minipar.viz import draw_permutations, draw_rounds, record_rounds
from minipar.viz.grids.rounds import OPERATIONS, Contributions
from minipar.viz.grids.rounds_picture import name_of, pieces, title_of

EVERY = [(operation, algorithm) for operation in OPERATIONS
         for algorithm in ALGORITHMS[operation]]


def expected(operation, rank, p, n, root):
    """The result of a rank, from what the operation means."""
    everyone, ends_here = range(p), rank == root
    own = np.array_split(range(n), p)
    owner = {int(chunk): r for r in range(p) for chunk in own[r]}
    return {
        "barrier": {},
        "broadcast": {c: {root} for c in range(n)},
        "scatter": {int(c): {root} for c in own[rank]},
        "gather": {c: {owner[c]} for c in range(n)} if ends_here else {},
        "all_gather": {c: {owner[c]} for c in range(n)},
        "reduce": {c: set(everyone) for c in range(n)} if ends_here else {},
        "reduce_scatter": {int(c): set(everyone) for c in own[rank]},
        "all_reduce": {c: set(everyone) for c in range(n)},
        "all_to_all": {s * n + int(c): {s} for s in range(p) for c in own[rank]},
        "scan": {c: set(range(rank + 1)) for c in range(n)},
    }[operation]


@pytest.mark.parametrize("operation, algorithm", EVERY)
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_a_run_ends_with_the_result_and_costs_what_is_predicted(operation, algorithm, p):
    for n, root in {(p, 0), (2 * p + 1, p - 1)}:
        run = record_rounds(operation, algorithm, p, n, chunk_bytes=24, root=root)
        assert run.results == [expected(operation, rank, p, n, root) for rank in range(p)]
        cost = run.predicted
        assert len(run.moves) == cost.rounds
        assert run.path[0] == 0 and run.path[-1] == cost.num_bytes
        assert sum(map(len, run.moves)) == cost.messages
        assert run.path == sorted(run.path)
        for k, moves in enumerate(run.moves):
            for move in moves:
                assert move.num_bytes == 24 * len(move.chunks)
                sender = run.held[k][move.source]          # no rank sends what it does not have
                assert all(ranks <= sender[chunk] for chunk, ranks in move.chunks.items())
                receiver = run.held[k + 1][move.dest]
                assert all(ranks <= receiver[chunk] for chunk, ranks in move.chunks.items())


def test_a_ring_round_by_round():
    run = record_rounds("all_gather", "ring", 3)
    assert [[set(held) for held in state] for state in run.held] == [
        [{0}, {1}, {2}], [{0, 2}, {0, 1}, {1, 2}], [{0, 1, 2}] * 3]
    assert {move[:3] for move in run.moves[1]} == {(0, 1, 1000), (1, 2, 1000), (2, 0, 1000)}
    assert run.path == [0, 1000, 2000]


def test_a_pipelined_chain_has_the_segments_asked_for():
    run = record_rounds("broadcast", "pipelined_chain", 4, 6, num_segments=3)
    assert len(run.moves) == 4 + 3 - 2
    assert {len(move.chunks) for moves in run.moves for move in moves} == {2}


@pytest.mark.parametrize("algorithm", ["hierarchical", "torus"])
def test_over_nodes(algorithm):
    run = record_rounds("all_reduce", algorithm, 6, ranks_per_node=3)
    assert len(run.moves) == run.predicted.rounds
    assert any(move.source // 3 != move.dest // 3 for moves in run.moves for move in moves)


def test_a_wrong_algorithm_is_refused(monkeypatch):
    """One that overwrites what it has, instead of adding; one that adds twice; one that mixes."""
    algorithms = ALGORITHMS["reduce"]
    right = algorithms["binomial"]

    def with_combine(combine):
        monkeypatch.setitem(algorithms, "binomial", right._replace(
            run=lambda comm, flat, _: right.run(comm, flat, combine)))

    with_combine(lambda a, b, out: np.copyto(out, b))
    with pytest.raises(ValueError, match=r"rank 0 returned chunk 0 made of \[1\]; its messages"):
        record_rounds("reduce", "binomial", 2)
    with_combine(lambda a, b, out: OPERATORS["sum"](b, b, out=out))
    with pytest.raises(ValueError, match="the part of rank 1 was added twice"):
        record_rounds("reduce", "binomial", 2)
    with pytest.raises(ValueError, match="different chunks were added"):
        Contributions({(0, 1)}) + Contributions({(1, 2)})


def test_an_unknown_operation_is_refused():
    with pytest.raises(ValueError, match="the rounds of 'sort' cannot be recorded: choose from"):
        record_rounds("sort", "ring", 4)
    with pytest.raises(ValueError, match="all_gather by 'star': choose from ring"):
        record_rounds("all_gather", "star", 4)


def test_names():
    run = record_rounds("all_to_all", "bruck", 3)
    assert title_of(run) == "all-to-all, Bruck's"
    assert [name_of(run, chunk) for chunk in (0, 5)] == ["0a", "1c"]
    run = record_rounds("all_gather", "recursive_doubling", 30)
    assert title_of(run) == "all-gather, recursive doubling"
    assert name_of(run, 29) == "29"


def test_each_round_of_a_pairwise_exchange_is_a_permutation():
    run = record_rounds("all_to_all", "pairwise", 5)
    tables = [pieces(moves, 5) for moves in run.moves]
    for table in tables:
        assert np.all((table == 1).sum(axis=0) == 1) and np.all((table == 1).sum(axis=1) == 1)
    assert np.array_equal(sum(table == 1 for table in tables), 1 - np.eye(5))
    bruck = record_rounds("all_to_all", "bruck", 8)
    assert [set(pieces(moves, 8).ravel()) for moves in bruck.moves] == [{-1, 4}] * 3


@pytest.mark.parametrize("draw", [draw_rounds, draw_permutations])
@pytest.mark.one_in(2)
def test_pictures(draw, tmp_path):
    runs = [record_rounds(*what) for what in (
        ("broadcast", "binomial", 1), ("all_gather", "bruck", 3), ("reduce_scatter", "ring", 3),
        ("all_to_all", "pairwise", 3), ("barrier", "tree", 3), ("scan", "linear", 3, 1))]
    path = draw(tmp_path / "runs.png", *runs)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes().startswith(b"\x89PNG")
