"""Lesson 17: the library's layer with experts; known mistakes, balance, the picture."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from micro import Tensor as MicroTensor
from micro import backward, mlp

from minipar.autograd import Tensor
from minipar.comm import Communicator, Trace
from minipar.comm.collectives import all_gather, all_reduce, chunk_bounds, sum_over_ranks
from minipar.comm.mesh import DeviceMesh
from minipar.nn import GPT, GPTConfig, MoE, MoEConfig
from minipar.nn.gpt import make_mlp
from minipar.nn.moe import Experts
from minipar.nn.step_context import training_step
from minipar.optim import AdamW
from minipar.parallel.cost.experts import all_to_all_bytes, exchanged_bytes, layer_parameters
from minipar.parallel.expert.distribute_experts import distribute_experts, moe_layers
from minipar.parallel.expert.router_bias import balance_routers
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.viz import draw_token_flow

from .kit import Lesson, Row, number
from .measuring import counted, total

B, T = 2, 12                        # sequences of a rank, tokens of a sequence
SIZE, WIDTH, STEPS = 8, 16, 40      # bytes of a float64, width, steps of training


class Found(NamedTuple):
    """One rank's results: `gradients` are (name, (start, stop) of its experts, gradient)."""

    output: np.ndarray
    gradients: list[tuple[str, tuple[int, int], np.ndarray]]
    ids: np.ndarray
    counts: np.ndarray                  # rows for each expert, after drops
    num_dropped: int
    router_gradient: float              # its norm, of this rank's tokens
    table: list[list[int]]              # rows from rank i to rank j
    balance_of_rank: float
    balance_of_all: float


Alone = tuple[list[np.ndarray], dict[str, np.ndarray]]   # outputs by rank, gradients by name


def compare_with_library(lesson: Lesson, moe: Callable) -> None:
    """Compare `moe` with the library's layer, and measure a layer with two experts on each rank."""
    comm, p = lesson.comm, lesson.comm.size
    own, library = own_layer(comm, moe, T), library_layer(comm, T)
    lesson.say("The library sends only the rows that exist, to any number of experts on each rank. "
               "With the same router, experts (which it has made) and capacity:")
    lesson.table([Row(f"{name}: difference from the lesson's", 1e-12, np.abs(a - b).max(), "", "≤")
                  for name, a, b in zip(("output", "gradient of x", "gradient of my expert"),
                                        own, library, strict=True)])
    sizes = config(p)
    trace, found = counted(comm, lambda: forward_backward(comm, sizes))
    even_trace, _ = counted(comm, lambda: forward_backward(comm, sizes, even=True))
    alone = library_alone(sizes, p)
    with_capacity = forward_backward(comm, config(p, capacity_factor=1.0))
    lesson.say("Now two experts on each rank, without a capacity; then dropped choices with one:")
    lesson.table(compare_values(comm, found, alone) + count_bytes(
        comm, sizes, found, trace, even_trace),
        f"p = {p}: E = {sizes.experts.num_experts} experts, k = {sizes.experts.top_k}, "
        f"n = {B} · {T} tokens a rank, d = {sizes.width}")
    lesson.counts([*count_parameters(comm, sizes, found),
                   Row("choices dropped at capacity ⌈k t / E⌉, by hand",
                       total(comm, dropped_by_hand(found.ids, sizes)),
                       total(comm, with_capacity.num_dropped))], "parameters and dropped choices")
    lesson.say("An expert's gradient is already a sum over the tokens of all ranks, since they "
               "came to it. A program that averages gradients over the ranks that have a weight "
               "divides this one by 1 instead of p. That is the best-known mistake. No loss shows "
               "it, nor the two others:")
    lesson.grid(["mistake", "what is off", "by"], mistakes(comm, found, alone))
    show_balance(lesson, sizes)
    draw(lesson, sizes, with_capacity)


def one_process(xs: np.ndarray, weights: np.ndarray, gated: Sequence[np.ndarray]
                ) -> tuple[np.ndarray, list[list[np.ndarray]]]:
    """Every expert on all tokens xs (p, n, d), times its gates: the results, and all gradients."""
    p, n, d = xs.shape
    gates = np.concatenate([each.reshape(p, -1, n).sum(axis=1) for each in gated], axis=1)
    result, grads = np.zeros((p * n, d)), []
    for gate, of_expert in zip(gates[..., None], weights):
        ws = [MicroTensor(w) for w in of_expert]
        y = mlp(MicroTensor(xs.reshape(-1, d)), ws)
        backward(y, gate * np.ones((p * n, d)))
        result += gate * y.data
        grads.append([w.grad for w in ws])
    return result.reshape(xs.shape), grads


def config(p: int, **experts) -> GPTConfig:
    """Two experts for each of p ranks, two of them for each token."""
    return GPTConfig(20, 12, 2, 2, WIDTH, experts=MoEConfig(**{
        "num_experts": 2 * p, "width": 24, "balance_loss": 0.0, **experts}))


def one_each(p: int) -> GPTConfig:
    """One expert for each of p ranks, as the lesson has it, with places for an even use."""
    return config(p, num_experts=p, top_k=min(2, p), capacity_factor=1.0)


def own_layer(comm: Communicator, moe: Callable, n: int) -> list[np.ndarray]:
    """Output, gradient of x, and of an expert, by the lesson's function on the library's expert."""
    sizes = one_each(comm.size)
    layer, k = made(sizes, comm), sizes.experts.top_k

    def expert(x: MicroTensor) -> MicroTensor:
        inner = Tensor(x.data, requires_grad=True)
        y = Experts.forward(layer.experts, inner, (len(x.data),))

        def pull(grad):
            y.backward(grad)
            return (inner.grad,)
        return MicroTensor(y.data, (x,), pull)
    x = MicroTensor(tokens_of(comm.rank, (1, n))[0])
    y = moe(comm, x, layer.router.weight.data, expert, k, -(-k * n // comm.size))
    backward(y, np.ones(y.data.shape))
    return [y.data, x.grad, layer.experts.c_fc.weight.grad]


def library_layer(comm: Communicator, n: int) -> list[np.ndarray]:
    """The same by the library's layer."""
    layer = made(one_each(comm.size), comm)
    route = layer.router.forward                    # as in the lesson, gates are constants
    layer.router.forward = lambda tokens: (
        routed := route(tokens))._replace(gates=Tensor(routed.gates.data))
    x = Tensor(tokens_of(comm.rank, (1, n)), requires_grad=True)
    with training_step(0, 0, range(1), shares=np.ones(1)):
        y = layer(x)
    y.backward(np.ones(y.shape))
    return [y.data[0], x.grad[0], layer.experts.c_fc.weight.grad]


def tokens_of(rank: int, shape: tuple[int, int] = (B, T)) -> np.ndarray:
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


def forward_backward(comm: Communicator, sizes: GPTConfig, even: bool = False,
                     gates_of_1: bool = False) -> Found:
    """One layer on this rank's tokens.

    `even`: the router deals its experts out in turn.  `gates_of_1`: each gate is divided by itself.
    """
    layer, num_experts = made(sizes, comm), sizes.experts.num_experts
    if even:
        deal = np.arange(B * T * sizes.experts.top_k).reshape(B * T, -1) % num_experts
        layer.router.choose = lambda scores: deal
    if gates_of_1:
        route = layer.router.forward
        layer.router.forward = lambda tokens: (
            routed := route(tokens))._replace(gates=routed.gates / routed.gates)
    plan, seen = layer.plan, {}

    def noting(routed, num_samples, step):
        made_plan = plan(routed, num_samples, step)
        seen.update(ids=routed.ids, counts=made_plan.counts, scores=routed.scores.data)
        return made_plan
    layer.plan = noting
    with training_step(0, 0, range(B), shares=np.full(B, 1 / B)):
        y = layer(Tensor(tokens_of(comm.rank), requires_grad=True))
    y.backward(np.ones(y.shape))
    return Found(y.data, [(name, p.box[0], p.grad)
                          for name, p in layer.experts.named_parameters()],
                 seen["ids"], np.array(seen["counts"]), layer.num_dropped,
                 float(np.linalg.norm(layer.router.weight.grad)),
                 *of_all_ranks(comm, seen, chunk_bounds(num_experts, comm.size)))


def of_all_ranks(comm: Communicator, seen: dict, bounds: list[tuple[int, int]]
                 ) -> tuple[list[list[int]], float, float]:
    """Rows from rank i to rank j, [i][j]; E Σ f P of this rank's tokens, and of all ranks'."""
    ids, num_experts = seen["ids"].ravel(), len(seen["counts"])
    mine = np.array([np.bincount(ids, minlength=num_experts) / ids.size,
                     seen["scores"].mean(axis=0)])
    with comm.labelled("lesson"):
        counts = all_gather(comm, np.array([seen["counts"]], np.int64))
        mean = all_gather(comm, mine[None]).mean(axis=0)
    table = [[int(row[start:stop].sum()) for start, stop in bounds] for row in counts]
    return table, *(float(num_experts * f @ scores) for f, scores in (mine, mean))


def library_alone(sizes: GPTConfig, p: int) -> Alone:
    """Outputs and gradients of the same layer with all experts, on the tokens of all ranks."""
    layer, outputs = made(sizes), []
    for rank in range(p):
        y = layer(Tensor(tokens_of(rank), requires_grad=True))
        y.backward(np.ones(y.shape))
        outputs.append(y.data)
    return outputs, {name: x.grad for name, x in layer.experts.named_parameters()}


def dropped_by_hand(ids: np.ndarray, sizes: GPTConfig) -> int:
    """The choices beyond ⌈k t / E⌉ of each expert, counted in each sequence."""
    num_experts, k = sizes.experts.num_experts, sizes.experts.top_k
    places = -(-k * T // num_experts)
    return sum(max(0, int(load) - places) for of_sequence in ids.reshape(B, -1)
               for load in np.bincount(of_sequence, minlength=num_experts))


def compare_values(comm: Communicator, found: Found, alone: Alone) -> list[Row]:
    """Rows of the largest differences between this rank and one process."""
    outputs, gradients = alone
    off = max(np.max(np.abs(g - gradients[name][start:stop]))
              for name, (start, stop), g in found.gradients)
    return [Row("output − one process", 1e-10,
                float(np.max(np.abs(found.output - outputs[comm.rank]))), rule="≤"),
            Row("gradients of experts − one process, never × p", 1e-10, float(off), rule="≤")]


def count_bytes(comm: Communicator, sizes: GPTConfig, found: Found, trace: Trace,
                even_trace: Trace) -> list[Row]:
    """Rows of messages and bytes; in `even_trace` all experts get equally many tokens."""
    p, num_experts = comm.size, sizes.experts.num_experts
    both = [exchanged_bytes(found.table, rank, sizes.width, SIZE) for rank in range(p)]
    messages = total(comm, trace.num_sent(label="all_to_all"))
    return [
        Row("all-to-alls of a layer, forward and backward", 4, messages // (p * (p - 1))),
        Row("their bytes, experts used alike: 4 k n d (p−1)",
            int(4 * p * all_to_all_bytes(sizes, B * T, p, SIZE)),
            total(comm, even_trace.bytes_sent(label="all_to_all")), "B"),
        Row("their bytes, as the router says", 2 * sum(map(sum, both)),
            total(comm, trace.bytes_sent(label="all_to_all")), "B"),
        Row("numbers of rows, sent ahead: p (p−1) E integers", p * (p - 1) * num_experts * 8,
            total(comm, trace.bytes_sent(label="control")), "B")]


def count_parameters(comm: Communicator, sizes: GPTConfig, found: Found) -> list[Row]:
    """Rows of the layer's parameters: all, and those that one token uses."""
    num_experts, k = sizes.experts.num_experts, sizes.experts.top_k
    held, router = sum(g.size for *_, g in found.gradients), sizes.width * num_experts
    return [Row("parameters of all ranks' experts, and one router", layer_parameters(sizes),
                total(comm, held) + router),
            Row("… of which one token uses", k * (layer_parameters(sizes) - router) // num_experts
                + router, layer_parameters(sizes, active=True))]


def mistakes(comm: Communicator, found: Found, alone: Alone) -> list[tuple[str, str, str]]:
    """Rows on three known mistakes, each measured here."""
    n = B * T           # each rank divides its loss by its own tokens; one process by all
    squares = sum_over_ranks(comm, sum(float(np.sum((g / n)**2)) for *_, g in found.gradients))
    right = np.sqrt(sum(np.sum((g / (comm.size * n))**2) for g in alone[1].values()))
    mean = sum_over_ranks(comm, found.balance_of_rank) / comm.size
    top1, divided = (forward_backward(comm, config(comm.size, top_k=1), gates_of_1=ones)
                     for ones in (False, True))
    assert divided.router_gradient < 1e-12 < top1.router_gradient
    return [("means over the ranks that have a weight", "gradients of experts",
             f"× {np.sqrt(squares) / right:.6g}"),
            ("balance loss of each rank, then the mean", "the loss of the batch",
             f"{number(mean)}, not {number(found.balance_of_all)}"),
            ("top-1 gates divided by their sum, 1", "the router's gradient",
             f"{number(divided.router_gradient)}, not {number(top1.router_gradient)}")]


def show_balance(lesson: Lesson, sizes: GPTConfig) -> None:
    """Train without balancing, with the loss, with the bias, and compare the busiest experts."""
    comm, ways = lesson.comm, {"nothing": {}, "the loss": {"balance_loss": 0.05},
                               "the bias": {"bias_rate": 0.01}}
    runs = {name: train(comm, config(comm.size, capacity_factor=1.25, **changes))
            for name, changes in ways.items()}
    lesson.say(f"And balance? A GPT with {sizes.experts.num_experts} experts in each of 2 blocks, "
               f"trained for {STEPS} steps on all ranks. The capacity is 1.25 times an even use; "
               "numbers are of the last ten steps:")
    lesson.grid(["balanced by", "busiest expert / mean", "choices dropped", "loss"],
                [(name, number(busiest), f"{dropped:.1%}", number(loss))
                 for name, (busiest, dropped, loss) in runs.items()])
    lesson.say("Loss and capacity look at one sequence at a time. The bias evens out whole "
               "batches, in which one sequence may still crowd an expert.")


def train(comm: Communicator, sizes: GPTConfig) -> tuple[float, float, float]:
    """Train on a language in which each word has two followers, one of them often.

    Returns, of the last ten steps: the choices of the busiest expert / of an expert on average; the
    share of choices dropped; the loss.
    """
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
    return (float((chosen.max(axis=1) / chosen.mean(axis=1)).max()),
            float(dropped.sum() / chosen.sum()), float(np.mean(losses[-10:])))


def draw(lesson: Lesson, sizes: GPTConfig, found: Found) -> None:
    """Draw which rank sends how many tokens to which expert, and which are dropped."""
    comm, p, num_experts = lesson.comm, lesson.comm.size, len(found.counts)
    sent, drops = np.zeros((p, num_experts), np.int64), np.zeros(p, np.int64)
    sent[comm.rank], drops[comm.rank] = found.counts, found.num_dropped
    sent, drops = all_reduce(comm, sent), all_reduce(comm, drops)
    assert sent.sum() + drops.sum() == p * B * T * sizes.experts.top_k
    lesson.picture(lambda path: draw_token_flow(
        path, sent, drops, chunk_bounds(num_experts, p),
        f"{p * B * T} tokens to {sizes.experts.top_k} of {num_experts} experts each, on {p} ranks"))
