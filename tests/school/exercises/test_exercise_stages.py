"""Exercises of stages: cut_evenly, col2im, pipeline_post_recv and pipeline_shared, simulated."""

from functools import partial
from itertools import combinations, pairwise

import numpy as np
import pytest

from minipar.autograd import Tensor, gradcheck
from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.nn import GPT, MLP, GPTConfig
from minipar.nn.convolution import Conv2d, col2im, im2col
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.pipeline.cut_points import cut_evenly
from minipar.parallel.pipeline.p2p import P2P
from minipar.parallel.pipeline.schedule.actions import Action
from minipar.parallel.strategy import Microbatch, Strategy

WEIGHTS = [[5, 1, 1, 1, 5], [1, 2, 3, 4, 5, 6, 7], [9, 0, 0, 1], [2, 2, 2, 2, 2, 2], [1, 1, 8, 1]]


def heaviest(weights, cuts):
    return max(sum(weights[a:b]) for a, b in pairwise([0, *cuts, len(weights)]))


@pytest.mark.parametrize("weights", WEIGHTS)
def test_no_other_cuts_are_lighter(weights):
    for num_stages in range(1, len(weights) + 1):
        cuts = cut_evenly(weights, num_stages)
        best = min(heaviest(weights, other) for other in
                   combinations(range(1, len(weights)), num_stages - 1))
        assert heaviest(weights, cuts) == best, (f"{weights} cut at {cuts}: the heaviest of "
                                                 f"{num_stages} stages could be {best}")


@pytest.mark.parametrize("weights", WEIGHTS)
def test_each_stage_has_a_part(weights):
    for num_stages in range(1, len(weights) + 1):
        bounds = [0, *cut_evenly(weights, num_stages), len(weights)]
        assert len(bounds) == num_stages + 1
        assert all(a < b for a, b in pairwise(bounds)), f"{bounds}: a stage without a part"


@pytest.mark.parametrize("num_stages", [0, 4])
def test_too_many_stages(num_stages):
    with pytest.raises(ValueError, match="1 to 3 stages"):
        cut_evenly([1, 1, 1], num_stages)


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (2, 3)])
def test_col2im_is_the_transpose_of_im2col(kernel, stride):
    """⟨im2col x, y⟩ = ⟨x, col2im y⟩."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((2, 6, 7, 3))
    rows = im2col(Tensor(x), kernel, stride).data
    y = draw.standard_normal(rows.shape)
    image = col2im(y, x.shape, kernel, stride)
    assert image.shape == x.shape
    assert np.sum(rows * y) == pytest.approx(np.sum(x * image))


def test_overlapping_windows_add_up():
    """All gradients 1: each pixel gets the number of windows that it is in."""
    image = col2im(np.ones((1, 2, 2, 4)), (1, 3, 3, 1), 2, 1)
    assert image[0, :, :, 0].tolist() == [[1, 2, 1], [2, 4, 2], [1, 2, 1]]


def test_a_convolution_s_gradients():
    x = Tensor(np.random.default_rng(0).standard_normal((1, 5, 4, 2)), requires_grad=True)
    conv = Conv2d(2, 3, 2, 2).initialize(0, np.float64)
    gradcheck(lambda x, *_: conv(x), x, conv.weight, conv.bias)


def batches_of(m, width=4, rows=2):
    draw = np.random.default_rng(0)
    return [Microbatch(draw.standard_normal((rows, width)), draw.integers(0, 3, rows),
                       np.arange(rows)) for _ in range(m)]


class Bench:
    """A P2P whose receives are noted instead of begun: of stages 0 1 2 on ranks 0 1 1."""

    def __init__(self, known=True):
        def body(comm):
            specs = {(s, ((2, 4), False)): f"y of stage {s}" for s in (0, 1)} if known else {}
            messages = P2P(comm, [0, 1, 1], specs, {}, [(2, 4)] * 2, np.empty(0))
            specs.update({(s, ((2, 4), False)): f"y of stage {s}" for s in (0, 1)})
            return messages
        self.run = Cluster(2).run(body)[0]
        for rank, run in enumerate(self.run):
            run.begun = []
            run.irecv = partial(self.irecv, rank)

    def irecv(self, rank, part, spec):
        self.run[rank].posted[part] = None
        self.run[rank].begun.append((part, spec))


def test_receives_are_posted_once():
    run = Bench().run[1]
    for _ in range(3):
        run.post_recv(Action("F", 1, 0))
    run.post_recv(Action("F", 1, 1))
    assert run.begun == [(("F", 0, 0), "y of stage 0"), (("F", 0, 1), "y of stage 0")]


def test_what_is_here_is_no_message():
    first, second = Bench().run
    for action in (Action("F", 2, 0), Action("B", 2, 0), Action("B", 1, 0)):
        second.post_recv(action)
    first.post_recv(Action("F", 0, 0))
    assert first.begun == second.begun == [], "from its own rank, or from nobody"


@pytest.mark.parametrize("kind", ["B", "I"])
def test_gradients_have_the_form_of_activations(kind):
    run = Bench().run[0]
    run.post_recv(Action(kind, 0, 1))
    assert run.begun == [(("I", 1, 1), "y of stage 0")]


def test_a_header_is_no_array():
    first, second = Bench(known=False).run
    second.post_recv(Action("F", 1, 0))
    assert second.begun == [], "its spec comes first: this would receive that as the array"
    first.post_recv(Action("B", 0, 0))
    assert first.begun == [(("I", 1, 0), "y of stage 0")], "gradients have no header"


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb_v"])
def test_pipelines_train(name):
    def gradients(comm, strategy):
        for _ in range(2):
            for slab in strategy.slabs:
                slab.zero_grad()
            strategy.forward_backward(batches_of(3))
        return strategy.slabs.gradients()

    def model():
        return MLP([4, 5, 6, 7, 3]).initialize(0, np.float64)
    expected = Cluster(1).run(lambda comm: gradients(comm, Strategy(model(), comm)))[0][0]
    found = Cluster(2).run(lambda comm: gradients(comm, Strategy(
        model(), DeviceMesh(comm, pp=2), schedule=name)))[0][0]
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-10, err_msg=key)


def gpt():
    return GPT(GPTConfig(7, context=4, num_layers=2, num_heads=1, width=4)).initialize(0, float)


def ids_of(m):
    draw = np.random.default_rng(1)
    return [Microbatch(*draw.integers(0, 7, (2, 2, 4)), np.arange(2)) for _ in range(m)]


def tied_gradients(comm, strategy):
    strategy.forward_backward(ids_of(3))
    return strategy.model.wte.weight.grad


def test_tied_gradients_are_those_of_one_process():
    expected = Cluster(1).run(lambda comm: tied_gradients(comm, Strategy(gpt(), comm)))[0][0]
    first, _, last = Cluster(3).run(lambda comm: tied_gradients(comm, Strategy(
        gpt(), DeviceMesh(comm, pp=3))))[0]
    np.testing.assert_allclose(first, expected, rtol=1e-10, atol=1e-14)
    assert np.array_equal(first, last), "the two copies must get the same bits"


def finished(fill):
    """Three stages after `fill(rank, strategy)` and sync_gradients()."""
    def body(comm):
        strategy = Strategy(gpt(), DeviceMesh(comm, pp=3))
        fill(comm.rank, strategy)
        strategy.sync_gradients()
        return strategy
    return Cluster(3).run(body)[0]


def test_who_has_no_gradient_takes_part():
    def fill(rank, strategy):
        if rank == 0:
            strategy.model.wte.weight.grad = np.full((7, 4), 3.0)
    first, _, last = finished(fill)
    assert np.all(first.model.wte.weight.grad == 3) and np.all(last.model.wte.weight.grad == 3)


def test_what_is_not_shared_stays():
    def fill(rank, strategy):
        for slab in strategy.slabs:
            slab.complete_grad()[...] = rank + 1
    for rank, strategy in enumerate(finished(fill)):
        for slab in strategy.slabs:
            for segment in slab.segments:
                right = 4 if segment.name == "wte.weight" else rank + 1
                assert np.all(slab.grad[segment.start:segment.stop] == right), segment.name


def test_what_dp_sums_comes_first():
    """A tied embedding on 2 stages, and on 2 ranks of dp with the same rows: one sum on all."""
    expected = Cluster(1).run(lambda comm: tied_gradients(comm, Strategy(gpt(), comm)))[0][0]
    for found in Cluster(4).run(lambda comm: tied_gradients(comm, DistributedDataParallel(
            gpt(), DeviceMesh(comm, pp=2, dp=2))))[0]:
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)


def test_nothing_is_summed_inside_no_sync():
    def body(comm):
        strategy = Strategy(gpt(), DeviceMesh(comm, pp=2))
        strategy.model.wte.weight.grad = np.ones((7, 4))
        with strategy.no_sync():
            strategy.sync_gradients()
        return strategy.model.wte.weight.grad
    for gradient in Cluster(2).run(body)[0]:
        assert np.all(gradient == 1)


def test_it_is_noted():
    def body(comm):
        strategy = Strategy(gpt(), DeviceMesh(comm, pp=2))
        for _ in range(2):
            strategy.forward_backward(ids_of(2))
    with pytest.raises(ValueError, match="reduced already"):
        Cluster(2).run(body)
