"""Tests of the exercise on classes of ranks: which ranks of a mesh do the same at all times."""

import numpy as np

from minipar.step_simulation.rank_classes import find_classes


def alike(sources, dests):
    """All links are of one kind."""
    return np.zeros(np.broadcast(sources, dests).shape, int)


def in_nodes(per_node):
    """Links within a node of so many ranks, and between two."""
    return lambda sources, dests: (sources // per_node != dests // per_node).astype(int)


def sizes_of(first):
    """How many ranks each class has, by its first rank; each is in the class of its first."""
    assert all(first[rank] == rank <= other for other, rank in enumerate(first))
    return {rank: first.count(rank) for rank in sorted({*first})}


def test_a_class_for_each_stage():
    shape = {"pp": 3, "dp": 4}
    program = ["first"] * 4 + ["middle"] * 4 + ["last"] * 4
    assert find_classes(shape, program, alike, [("pp",), ("dp",)]) == [0] * 4 + [4] * 4 + [8] * 4


def test_a_slow_rank_is_seen_all_around_the_ring():
    """In every place of the ring it is another number of ranks away, at once and later on."""
    for slow in (0, 3):
        program = [1.3 if rank == slow else 1.0 for rank in range(7)]
        assert sizes_of(find_classes({"dp": 7}, program, alike, [("dp",)])) == dict.fromkeys(
            range(7), 1)
    program = [1.3 if rank == 9 else 1.0 for rank in range(16)]     # its row, its column, then all
    found = find_classes({"dp": 4, "tp": 4}, program, alike, [("dp",), ("tp",)])
    assert sizes_of(found) == dict.fromkeys(range(16), 1)


def test_which_way_the_ring_goes():
    """Ranks 1 and 5 of 6 have rank 0 as a neighbour, one to the left, one to the right."""
    found = find_classes({"dp": 6}, ["slow", *["usual"] * 5], alike, [("dp",)])
    assert len({*found}) == 6
    found = find_classes({"dp": 6}, ["slow", "usual", "usual"] * 2, alike, [("dp",)])
    assert found == [0, 1, 2, 0, 1, 2]


def test_links_tell_ranks_apart():
    """Of a ring over nodes of 4 each place in a node is a class; of nodes of one rank none is."""
    shape, program = {"dp": 12}, ["same"] * 12
    assert find_classes(shape, program, in_nodes(4), [("dp",)]) == [0, 1, 2, 3] * 3
    for per_node in (1, 12):
        assert find_classes(shape, program, in_nodes(per_node), [("dp",)]) == [0] * 12
    assert find_classes({"dp": 3, "tp": 4}, program, in_nodes(4), [("dp",), ("tp",)]) == [0] * 12


def test_axes_together_and_by_themselves():
    """A ring over dp and cp together meets a slow rank that neither does by itself."""
    shape, program = {"pp": 1, "dp": 2, "cp": 2, "tp": 2}, [2.0, *[1.0] * 7]
    apart = find_classes(shape, program, alike, [("tp",)])
    assert sizes_of(apart) == {0: 1, 1: 1, 2: 6}
    together = find_classes(shape, program, alike, [("dp", "cp")])
    assert sizes_of(together) == {0: 1, 1: 4, 2: 1, 4: 1, 6: 1}
