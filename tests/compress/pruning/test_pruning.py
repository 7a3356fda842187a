"""Pruned weights: by magnitude, at random, by gradient, 2 of 4; the same on every mesh."""

import numpy as np
import pytest

from minipar.comm.collectives import all_reduce
from minipar.comm.mesh import DeviceMesh
from minipar.compress.pruning.distributed_topk import kth_smallest, sortable_keys
from minipar.compress.pruning.masks import Masks, prunable_weights
from minipar.compress.pruning.prune import prune
from minipar.compress.pruning.saliency import calibrate, magnitude, random, taylor
from minipar.compress.pruning.two_of_four import n_of_m
from minipar.nn import GPT, MLP, GPTConfig
from minipar.parallel.flats import gather_parameter
from minipar.parallel.tensor.parallelize import parallelize
from minipar.testing import worlds

CONFIG = GPTConfig(11, context=6, num_layers=2, num_heads=4, width=8, tied=False)


def smallest_by_sorting(scores, k):
    """The definition: a stable sort of all scores, the first k go."""
    flat = np.concatenate([s.ravel() for s in scores.values()])
    mask = np.ones(flat.size, bool)
    mask[np.argsort(flat, kind="stable")[:k]] = False
    ends = np.cumsum([s.size for s in scores.values()])
    return {name: part.reshape(s.shape) for (name, s), part
            in zip(scores.items(), np.split(mask, ends[:-1]))}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        assert np.array_equal(found[name], expected[name]), name


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("decimals", [1, 9], ids=["many ties", "no ties"])
@pytest.mark.parametrize("amount", [0, 0.001, 0.333, 0.5, 0.9, 0.999])
def test_the_smallest_go(amount, decimals, dtype):
    model = GPT(CONFIG).initialize(0, dtype)
    scores = {name: np.round(10 * s, decimals)
              for name, s in magnitude(prunable_weights(model)).items()}
    size = sum(s.size for s in scores.values())
    found = prune(model, scores, amount)
    assert_same(found, smallest_by_sorting(scores, round(amount * size)))
    found = prune(model, scores, amount, "layer")
    for name, s in scores.items():
        assert_same({name: found[name]}, smallest_by_sorting({name: s}, round(amount * s.size)))


def test_of_equal_weights_the_first_go():
    model = MLP([2, 4]).initialize(0)
    scores = {"0.weight": np.abs([[1, -1, 1, 2], [2, 1, -1, 3]]).astype(np.float32)}
    assert prune(model, scores, 3 / 8)["0.weight"].tolist() == [[0, 0, 0, 1], [1, 1, 1, 1]]


def test_what_is_gone_stays_gone_and_counts():
    model = MLP([6, 8, 4]).initialize(0)
    masks = Masks(model, prune(model, random(prunable_weights(model)), 0.5))
    before = masks.local_masks()
    for amount in (0.75, 0.2):
        masks.update(prune(model, magnitude(masks.parameters), amount, masks=masks))
        assert all(not (mask & ~before[name]).any() for name, mask in masks.local_masks().items())
        assert masks.sparsity() == 0.75         # 60 of 80, also when asked for less


@pytest.mark.parametrize("bad", [-1.0, np.nan])
def test_scores_that_are_no_scores_are_refused(bad):
    model = MLP([2, 2]).initialize(0)
    with pytest.raises(ValueError, match="negative or NaN"):
        prune(model, {"0.weight": np.array([[1, 2], [bad, 3]])}, 0.5)


@pytest.mark.parametrize("amount", [-0.1, 1, 1.5, np.nan])
def test_impossible_amounts_are_refused(amount):
    model = MLP([2, 2]).initialize(0)
    with pytest.raises(ValueError, match=r"share of weights to prune, in \[0, 1\)"):
        prune(model, magnitude(prunable_weights(model)), amount)
    with pytest.raises(ValueError, match="unknown scope"):
        prune(model, magnitude(prunable_weights(model)), 0.5, "block")


def test_taylor_is_the_change_of_the_loss_to_first_order():
    model = MLP([3, 4, 2], "tanh").initialize(0, np.float64)
    draw = np.random.default_rng(0)
    batches = [(draw.standard_normal((5, 3)), draw.integers(0, 2, 5)) for _ in range(2)]
    calibrate(model, batches)
    scores, epsilon = taylor(prunable_weights(model)), 1e-6

    def loss():
        return sum(float(model.loss(*batch).data) for batch in batches)
    for name, p in prunable_weights(model).items():
        for place in np.ndindex(p.shape):
            before, w = loss(), p.data[place]
            p.data[place] = w * (1 - epsilon)
            assert abs(before - loss()) / epsilon == pytest.approx(scores[name][place], rel=1e-3,
                                                                   abs=1e-7)
            p.data[place] = w
    model.zero_grad()
    with pytest.raises(ValueError, match="has no gradient"):
        taylor(prunable_weights(model))


def test_2_of_4_keeps_the_larger_half_of_every_four_inputs():
    scores = np.random.default_rng(0).random((8, 3))
    mask = n_of_m(scores)
    for group in range(2):
        for column in range(3):
            part = slice(4 * group, 4 * group + 4)
            assert mask[part, column].sum() == 2
            assert scores[part, column][mask[part, column]].min() \
                > scores[part, column][~mask[part, column]].max()
    assert n_of_m(np.ones((4, 1))).ravel().tolist() == [False, False, True, True]
    assert n_of_m(scores, 1, 8).sum() == 3
    with pytest.raises(ValueError, match="a multiple of 4 inputs, not 6"):
        n_of_m(np.ones((6, 2)))
    with pytest.raises(ValueError, match="4 of 4 is no pattern"):
        n_of_m(scores, 4, 4)


@worlds(1, 2, 3, 4, mpi=(2, 4))
def test_the_kth_smallest_of_all_ranks(world):
    numbers = np.round(np.random.default_rng(0).random(101), 2).astype(np.float32)

    def body(comm):
        mine = sortable_keys(numbers[comm.rank::comm.size] if comm.rank else numbers[:0])
        here = np.concatenate([numbers[r::comm.size] for r in range(1, comm.size)]) \
            if comm.size > 1 else numbers
        mine = mine if comm.size > 1 else sortable_keys(numbers)
        for k in (1, 17, here.size):
            found = kth_smallest(mine, k, 4, comm)
            expected = np.sort(here)[k - 1]
            key = int(sortable_keys(np.array([expected]))[0])
            assert found == (key, int(np.sum(here < expected)),
                             int(np.sum(here == expected)))
    world.run(body)


MESHES = {1: [{}], 2: [{"dp": 2}, {"tp": 2}],
          4: [{"dp": 2, "tp": 2}, {"tp": 4}, {"replicate": 2, "dp": 2}]}


@worlds(1, 2, 4, mpi=(2, 4))
@pytest.mark.parametrize("kind", ["gpt", "mlp"])
@pytest.mark.parametrize("ties", [False, True], ids=["", "ties"])
def test_every_mesh_finds_the_masks_of_one_process(world, kind, ties):
    def new():
        model = GPT(CONFIG) if kind == "gpt" else MLP([7, 8, 9, 5])
        model.initialize(3)
        for p in model.parameters() if ties else ():
            p.data[...] = np.round(8 * p.data) / 8
        return model

    def decide(model, mesh=None):
        masks = Masks(model, {name: np.ones(p.global_shape, bool)
                              for name, p in prunable_weights(model).items()})
        for amount in (0.3, 0.6):
            masks.update(prune(model, magnitude(masks.parameters), amount, masks=masks, mesh=mesh))
        masks.update({name: mask | masks.local(masks.parameters[name]) for name, mask in prune(
            model, random(masks.parameters), 0.6, "layer", mesh=mesh).items()})
        return masks
    expected = decide(new()).local_masks()

    def body(comm):
        for sizes in MESHES[comm.size]:
            mesh = DeviceMesh(comm, **sizes or {"dp": 1})
            model = new()
            if "tp" in sizes:
                parallelize(model, mesh["tp"])
            found = decide(model, mesh).local_masks()
            for slab in model.slabs:
                for s in slab.segments:
                    if s.name in found:
                        mask = gather_parameter(mesh["tp"], s, found[s.name]) if "tp" in sizes \
                            else found[s.name]
                        assert np.array_equal(mask, expected[s.name]), s.name
    world.run(body)


@worlds(2, 3, 4)
def test_a_threshold_is_agreed_on_in_so_many_bytes(world):
    """One all-reduce of 256 counts for each byte of a float32, and of a place if there are ties."""
    def body(comm):
        model = MLP([7, 8, 9, 5]).initialize(0)
        mesh = DeviceMesh(comm, dp=-1)
        for decimals, rounds in ((9, 4), (0, 5)):       # 245 places: one byte
            scores = {n: np.round(s, decimals)
                      for n, s in magnitude(prunable_weights(model)).items()}
            found = traced(comm, lambda s=scores: prune(model, s, 0.5, mesh=mesh))
            once = traced(comm, lambda: all_reduce(comm, np.zeros(256, np.int64)))
            assert found.bytes_sent(label="masks") == found.bytes_sent()
            assert found.bytes_sent() == rounds * once.bytes_sent() > 0
            assert found.num_sent() == rounds * once.num_sent()
    world.run(body)


def traced(comm, call):
    """The bytes that this rank sends in call()."""
    comm.start_trace()
    call()
    return comm.stop_trace()
