"""A layer with experts on all ranks, and one process to compare with (lesson 17)."""

from typing import NamedTuple

import numpy as np

from minipar.autograd import Tensor
from minipar.comm import Communicator
from minipar.comm.collectives import all_gather, chunk_bounds
from minipar.comm.mesh import DeviceMesh
from minipar.nn import GPT, GPTConfig, MoE, MoEConfig
from minipar.nn.gpt import make_mlp
from minipar.optim import AdamW
from minipar.parallel.expert.distribute_experts import distribute_experts, moe_layers
from minipar.parallel.expert.router_bias import balance_routers
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.random import training_step

SIZE, WIDTH, STEPS = 8, 16, 40      # bytes of a float64, width, steps of training
SHAPE = tuple[int, int]             # sequences, tokens of each


def config(p: int, **experts) -> GPTConfig:
    """Two experts for each of p ranks, two of them for each token."""
    return GPTConfig(20, 12, 2, 2, WIDTH, experts=MoEConfig(**{
        "num_experts": 2 * p, "width": 24, "balance_loss": 0.0, **experts}))


class Found(NamedTuple):
    """One rank's results: `gradients` are (name, (start, stop) of its experts, gradient)."""

    output: np.ndarray
    gradients: list[tuple[str, tuple[int, int], np.ndarray]]
    ids: np.ndarray
    counts: np.ndarray                  # rows for each expert, after drops
    table: list[list[int]]              # rows from rank i to rank j
    bounds: list[tuple[int, int]]
    num_dropped: int
    router_gradient: float              # its norm, of this rank's tokens
    balance_of_rank: float
    balance_of_all: float


def tokens_of(rank: int, shape: SHAPE) -> np.ndarray:
    """The tokens of a rank, which resemble each other as a text's do."""
    draw = np.random.default_rng(rank)
    return draw.standard_normal((*shape, WIDTH)) + draw.standard_normal(WIDTH)


def made(sizes: GPTConfig, comm: Communicator | None = None) -> MoE:
    """The layer, its router drawn wide enough to tell tokens apart."""
    layer = make_mlp(sizes, 0)
    if comm is not None:
        distribute_experts(layer, comm)
    layer.initialize(0, np.float64)
    layer.router.weight.data[...] = np.random.default_rng(7).standard_normal(
        layer.router.weight.shape) / 2
    return layer


def forward_backward(comm: Communicator, sizes: GPTConfig, shape: SHAPE,
                     even: bool = False, gates_of_1: bool = False) -> Found:
    """One layer on this rank's tokens.

    `even`: the router deals its experts out in turn.  `gates_of_1`: each gate is divided by itself.
    """
    layer, x = made(sizes, comm), tokens_of(comm.rank, shape)
    n, num_experts = shape[0] * shape[1], sizes.experts.num_experts
    if even:
        deal = np.arange(n * sizes.experts.top_k).reshape(n, -1) % num_experts
        layer.router.choose = lambda scores: deal
    if gates_of_1:
        route = layer.router.forward
        layer.router.forward = lambda tokens: (
            routed := route(tokens))._replace(gates=routed.gates / routed.gates)
    plan = layer.plan
    seen: dict = {}

    def noting(routed, num_samples, step):
        made_plan = plan(routed, num_samples, step)
        seen.update(ids=routed.ids, counts=made_plan.counts, scores=routed.scores.data)
        return made_plan
    layer.plan = noting
    with training_step(0, 0, range(shape[0]), shares=np.full(shape[0], 1 / shape[0])):
        y = layer(Tensor(x, requires_grad=True))
    y.backward(np.ones(y.shape))
    bounds = chunk_bounds(num_experts, comm.size)
    return Found(y.data, [(name, p.box[0], p.grad)
                          for name, p in layer.experts.named_parameters()],
                 seen["ids"], np.array(seen["counts"]), table_of(comm, seen["counts"], bounds),
                 bounds, layer.num_dropped, float(np.linalg.norm(layer.router.weight.grad)),
                 *balances(comm, seen["ids"], seen["scores"], num_experts))


def table_of(comm: Communicator, counts: tuple[int, ...],
             bounds: list[tuple[int, int]]) -> list[list[int]]:
    """table[i][j]: the rows from rank i to rank j."""
    with comm.labelled("lesson"):
        by_rank = all_gather(comm, np.array([counts], np.int64))
    return [[int(row[start:stop].sum()) for start, stop in bounds] for row in by_rank]


def balances(comm: Communicator, ids: np.ndarray, scores: np.ndarray,
             num_experts: int) -> tuple[float, float]:
    """E Σ f P of this rank's tokens, and of the tokens of all ranks together."""
    f = np.bincount(ids.ravel(), minlength=num_experts) / ids.size
    p = scores.mean(axis=0)
    with comm.labelled("lesson"):
        both = all_gather(comm, np.array([[f, p]])).mean(axis=0)
    return float(num_experts * f @ p), float(num_experts * both[0] @ both[1])


class Alone(NamedTuple):
    """One process: the output for each rank's tokens, the gradients of all tokens by name."""

    output: list[np.ndarray]
    gradients: dict[str, np.ndarray]


def library_alone(sizes: GPTConfig, shape: SHAPE, p: int) -> Alone:
    """The same layer with all experts, on the tokens of all ranks."""
    layer, outputs = made(sizes), []
    for rank in range(p):
        y = layer(Tensor(tokens_of(rank, shape), requires_grad=True))
        y.backward(np.ones(y.shape))
        outputs.append(y.data)
    return Alone(outputs, {name: x.grad for name, x in layer.experts.named_parameters()})


def dropped_by_hand(ids: np.ndarray, sizes: GPTConfig, shape: SHAPE) -> int:
    """The choices beyond ⌈k t / E⌉ of each expert, counted in each sequence."""
    num_experts, k = sizes.experts.num_experts, sizes.experts.top_k
    places = -(-k * shape[1] // num_experts)
    return sum(max(0, int(load) - places) for of_sequence in ids.reshape(shape[0], -1)
               for load in np.bincount(of_sequence, minlength=num_experts))


class BalancedRun(NamedTuple):
    """The last ten steps of a training run, all together."""

    busiest: float                      # choices of the busiest expert / of an expert on average
    dropped: float                      # of all choices
    loss: float


def balanced_runs(comm: Communicator, p: int) -> dict[str, BalancedRun]:
    """GPTs trained on all ranks, without balancing, with the loss, with the bias."""
    ways = {"nothing": {}, "the loss": {"balance_loss": 0.05}, "the bias": {"bias_rate": 0.01}}
    return {name: train(comm, config(p, capacity_factor=1.25, **changes))
            for name, changes in ways.items()}


def train(comm: Communicator, sizes: GPTConfig) -> BalancedRun:
    """Train on a language in which each word has two followers, one of them often."""
    draw, words = np.random.default_rng(0), sizes.vocab_size
    followers = np.stack([draw.permutation(words), draw.permutation(words)], axis=1)
    model = GPT(sizes).initialize(0)
    for layer in moe_layers(model).values():        # routers with a preference to begin with
        layer.router.weight.data *= 10
    strategy = make_strategy("ddp", model, DeviceMesh(comm, ep=comm.size))
    optimizer, loads, losses = AdamW(strategy.slabs, lr=3e-3), [], []
    for step in range(STEPS):
        ids = np.zeros((4 * comm.size, sizes.context + 1), np.int64)
        ids[:, 0] = draw.integers(0, words, len(ids))
        for t in range(sizes.context):
            ids[:, t + 1] = followers[ids[:, t], (draw.random(len(ids)) < 0.2).astype(int)]
        mine = np.array(strategy.rows(len(ids)))
        optimizer.zero_grad()
        losses.append(strategy.forward_backward(
            [Microbatch(ids[mine, :-1], ids[mine, 1:], mine)], 0, step))
        loads.append([[*of_layer.load, of_layer.num_dropped]
                      for of_layer in balance_routers(strategy).values()])
        strategy.step(optimizer)
    last = np.sum(loads[-10:], axis=0)              # (layers, E + 1)
    chosen, dropped = last[:, :-1], last[:, -1]
    return BalancedRun(float((chosen.max(axis=1) / chosen.mean(axis=1)).max()),
                       float(dropped.sum() / chosen.sum()), float(np.mean(losses[-10:])))
