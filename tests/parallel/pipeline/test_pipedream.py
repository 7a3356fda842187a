"""PipeDream and 2BW equal one process that keeps all versions; which versions are kept."""

import numpy as np
import pytest

from minipar.checkpoint_file import NEWEST, PREVIOUS, load
from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.launcher import UsageError
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, MLP, GPTConfig
from minipar.optim import SGD, AdamW
from minipar.parallel.pipeline.executor import RankBatch
from minipar.parallel.pipeline.late_weights.pipedream_by_versions import (
    PipeDreamByVersions,
    stashed,
    two_versions,
    vertical,
)
from minipar.parallel.pipeline.late_weights.versions import Versions
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch, Strategy
from minipar.testing import worlds
from minipar.train.config import TrainConfig
from minipar.train.program import train as train_run
from tests.support.cases import assert_all_close
from tests.support.late_quadratic import weights

OPTIMIZERS = {"sgd": lambda slabs: SGD(slabs, lr=0.3, momentum=0.9),
              "adamw": lambda slabs: AdamW(slabs, lr=0.01)}
KINDS = {"stashed": ("pipedream", {}, stashed), "vertical": ("pipedream", {"vertical_sync": True},
                                                             vertical),
         "two_bw": ("two_bw", {"microbatches_per_step": 4}, two_versions)}


def model(kind="gpt"):
    made = MLP([4, 7, 5, 6, 11]) if kind == "mlp" else GPT(GPTConfig(
        11, 6, num_layers=4, num_heads=2, width=8, dropout=0.2, tied=False))
    return made.initialize(0, np.float64)


def microbatches(number, kind="gpt", seed=0):
    draw = np.random.default_rng(seed)
    found = []
    for i in range(number):
        targets = draw.integers(0, 11, (2, 6))
        targets[draw.random(targets.shape) < 0.3] = -100
        inputs = draw.integers(0, 11, (2, 6))
        if kind == "mlp":
            inputs, targets = draw.standard_normal((2, 4)), draw.integers(0, 11, 2)
        found.append(Microbatch(inputs, targets, np.array([2 * i, 2 * i + 1])))
    return found


def train(strategy, optimizer, number=12, kind="gpt", calls=1):
    strategy.optimizer = optimizer(strategy.slabs)
    losses = []
    for call in range(calls):
        strategy.optimizer.zero_grad()
        losses.append(strategy.forward_backward(microbatches(number, kind, call), 5, call))
        strategy.step(strategy.optimizer)
    return {"losses": np.array(losses)} | strategy.state_dict() | strategy.optimizer.state_dict()


@worlds(2, 3, 4, mpi=(2,), slow=(1,), slow_mpi=(3,))
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("of", ["gpt", "mlp"])
@pytest.mark.one_in(2)
def test_it_equals_one_process_with_all_versions(world, kind, optimizer, of):
    name, options, rule = KINDS[kind]
    per_step = options.get("microbatches_per_step", 1)
    right = Cluster(1).run(lambda comm: train(PipeDreamByVersions(
        model(of), comm, world.size, rule(world.size), per_step), OPTIMIZERS[optimizer],
        kind=of))[0][0]
    world.run(lambda comm: assert_all_close(train(make_strategy(
        name, model(of), DeviceMesh(comm, pp=comm.size), **options), OPTIMIZERS[optimizer],
        kind=of), right, rtol=1e-10, atol=1e-13))


def test_one_stage_is_sgd():
    """Each microbatch is a batch."""
    def plain(comm):
        strategy = Strategy(model(), comm)
        optimizer = OPTIMIZERS["sgd"](strategy.slabs)
        for microbatch in microbatches(5):
            optimizer.zero_grad()
            strategy.forward_backward([microbatch], 5, 0)
            strategy.step(optimizer)
        return strategy.state_dict()
    right = Cluster(1).run(plain)[0][0]
    found = Cluster(1).run(lambda comm: train(make_strategy(
        "pipedream", model(), DeviceMesh(comm, pp=1)), OPTIMIZERS["sgd"], 5))[0][0]
    assert_all_close({name: found[name] for name in right}, right, 1e-12, 1e-14)


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_2bw_is_sgd_one_step_late_also_from_one_stream_to_the_next(calls):
    def late(comm):
        strategy = Strategy(model(), comm)
        optimizer = OPTIMIZERS["sgd"](strategy.slabs)
        before = strategy.slabs[0].data.copy()
        for call in range(calls):
            for t in range(3):
                now, batch = strategy.slabs[0].data.copy(), microbatches(12, seed=call)
                strategy.slabs[0].data[...] = before
                optimizer.zero_grad()
                strategy.forward_backward(batch[4 * t:][:4], 5, call)
                strategy.slabs[0].data[...] = now
                strategy.step(optimizer)
                before = now
        return strategy.state_dict()
    right = Cluster(1).run(late)[0][0]
    for found in Cluster(3).run(lambda comm: train(make_strategy(
            "two_bw", model(), DeviceMesh(comm, pp=3), microbatches_per_step=4),
            OPTIMIZERS["sgd"], calls=calls))[0]:
        assert_all_close({name: found[name] for name in right}, right, 1e-10, 1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_versions_of_forward_and_backward_and_how_many_are_kept(kind, monkeypatch):
    p, m = 4, 8
    name, options, rule = KINDS[kind]

    def recording(plain):
        def method(batch, action, array):
            versions = batch.strategy.versions
            batch.strategy.seen += [(action.kind, action.microbatch, v) for v in versions
                                    if versions[v][0] is batch.strategy.slabs[0].data]
            batch.strategy.most = max(batch.strategy.most, len(versions))
            return plain(batch, action, array)
        return method
    for method in ("forward", "backward"):
        monkeypatch.setattr(RankBatch, method, recording(getattr(RankBatch, method)))

    def body(comm):
        strategy = make_strategy(name, MLP([4] * 5).initialize(), DeviceMesh(comm, pp=p), **options)
        strategy.optimizer, strategy.seen, strategy.most = SGD(strategy.slabs, lr=0.1), [], 0
        strategy.forward_backward([Microbatch(np.ones((1, 4), np.float32), np.array([1]),
                                              np.array([0]))] * m)
        return strategy.seen, strategy.most
    for stage, (seen, most) in enumerate(Cluster(p).run(body)[0]):
        per_step = options.get("microbatches_per_step", 1)
        assert sorted(seen) == sorted((kind_, k, rule(p)(k // per_step, stage))
                                      for kind_ in "FB" for k in range(m))
        assert most == {"stashed": p - stage, "vertical": p, "two_bw": 2}[kind]


def test_the_ledger_counts_versions():
    """The weights of stage s of p are there p - s times."""
    def body(comm):
        net = MLP([40] * 5).initialize()
        with Ledger().recording() as ledger:
            strategy = make_strategy("pipedream", net, DeviceMesh(comm, pp=4))
            strategy.optimizer = SGD(strategy.slabs, lr=0.1)
            strategy.forward_backward([Microbatch(
                np.ones((1, 40), np.float32), np.array([1]), np.array([0]))] * 8)
        return ledger.peak_of["parameters"]
    stage = 4 * (40 * 40 + 40)
    assert Cluster(4).run(body)[0] == [4 * stage, 3 * stage, 2 * stage, stage]


def test_without_stashing_it_is_the_gradient_of_nothing(monkeypatch):
    """PipeDream 52: weights changed in place between F and B; here backward refuses that."""
    from minipar.parallel.pipeline.late_weights.pipedream import PipeDream

    def in_place(self, k):
        self.optimizer.step()
        self.versions[self.versions.newest + 1] = [slab.data for slab in self.slabs]
        self.optimizer.zero_grad()
    monkeypatch.setattr(PipeDream, "step_stage", in_place)
    monkeypatch.setattr(Versions, "use", lambda self, version: None)
    with pytest.raises(RuntimeError, match="changed"):
        Cluster(3).run(lambda comm: train(make_strategy(
            "pipedream", model(), DeviceMesh(comm, pp=3)), OPTIMIZERS["sgd"]))


@pytest.mark.parametrize("delay", [0, 1, 2, 3])
@pytest.mark.parametrize("factor, grows", [(0.95, False), (1.05, True)])
def test_a_quadratic_is_stable_below_2_sin_of_pi_over_4d_plus_2(delay, factor, grows):
    """Stage 0 of D + 1 is D steps late, and steps by its own old weights."""
    limit = 2 * np.sin(np.pi / (4 * delay + 2))
    w = weights(delay, factor * limit, 300)
    expected = [1.0] * (delay + 1)
    for _ in range(300):
        expected.append(expected[-1] - factor * limit * expected[-1 - delay])
    np.testing.assert_allclose(w, expected[delay + 1:], rtol=1e-6, atol=1e-12)
    assert (np.abs(w[-20:]).max() > np.abs(w[40:60]).max()) == grows


BASE = {"data": "digits", "hidden": "8,8", "steps": 6, "batch": 16, "seed": 3, "mesh": "pp=2",
        "microbatches": 4, "clip": 0.0}


@pytest.mark.parametrize("strategy", ["pipedream", "two_bw"])
def test_a_run_that_goes_on_is_the_uninterrupted_run(no_pictures, tmp_path, strategy):
    config = TrainConfig().updated(**BASE, strategy=strategy, out=tmp_path, save_every=3)
    whole = train_run(config)
    again = train_run(config.updated(out=tmp_path / "again", resume=tmp_path / PREVIOUS))
    assert whole.losses == again.losses and whole.losses[-1] < whole.losses[0]
    one, other = (load(folder / NEWEST) for folder in (tmp_path, tmp_path / "again"))
    assert len(one.others) == (2 if strategy == "two_bw" else 0)
    for name, array in (one.model | one.optimizer | one.others).items():
        np.testing.assert_array_equal(array, (other.model | other.optimizer | other.others)[name])


@pytest.mark.parametrize("changes, says", [
    ({"clip": 1.0}, "add --clip 0"),
    ({"mesh": None}, "goes with a pipeline"),
    ({"mesh": "pp=2,dp=2"}, "give the mesh pp alone"),
    ({"schedule": "zb_v", "hidden": "8,8,8"}, "and no other schedule"),
    ({"schedule": "chimera"}, "and no other schedule"),
    ({"strategy": "two_bw", "microbatches": 3}, "two_bw steps after every 2 microbatches: give")])
def test_what_cannot_be_is_refused(changes, says, capsys):
    with pytest.raises((UsageError, SystemExit)) as refused:
        train_run(TrainConfig().updated(**BASE | {"strategy": "pipedream"} | changes))
    assert says in f"{refused.value} {capsys.readouterr().err}"


def test_tied_weights_and_small_steps_are_refused():
    def tied(comm):
        make_strategy("pipedream", GPT(GPTConfig(11, 6, 4, 2, 8)).initialize(),
                      DeviceMesh(comm, pp=2))
    with pytest.raises(ValueError, match="choose a model with untied"):
        Cluster(2).run(tied)
    with pytest.raises(ValueError, match="microbatches_per_step=1: two versions are enough"):
        Cluster(2).run(lambda comm: make_strategy(
            "two_bw", model(), DeviceMesh(comm, pp=2), microbatches_per_step=1))
    with pytest.raises(ValueError, match="there is no norm of all of them"):
        Cluster(2).run(lambda comm: make_strategy(
            "pipedream", model(), DeviceMesh(comm, pp=2)).clip_grad_norm(1.0))
