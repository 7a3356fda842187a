"""Lesson 17: the library's layer with experts; known mistakes, balance, the picture."""

from collections.abc import Callable, Sequence

import numpy as np
from micro import Tensor as MicroTensor
from micro import backward, mlp

from minipar.autograd import Tensor
from minipar.comm import Communicator, Trace
from minipar.comm.collectives import all_reduce, sum_over_ranks
from minipar.formulas.experts import all_to_all_bytes, exchanged_bytes, layer_parameters
from minipar.nn import GPTConfig
from minipar.nn.moe import Experts
from minipar.random import training_step
from minipar.viz import draw_token_flow

from .expert_layer import (
    SIZE,
    STEPS,
    Alone,
    Found,
    balanced_runs,
    config,
    dropped_by_hand,
    forward_backward,
    library_alone,
    made,
    tokens_of,
)
from .kit import Lesson, Row, number
from .measuring import counted, total

B, T = 2, 12                        # sequences of a rank, tokens of a sequence


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
    trace, found = counted(comm, lambda: forward_backward(comm, sizes, (B, T)))
    even_trace, _ = counted(comm, lambda: forward_backward(comm, sizes, (B, T), even=True))
    alone = library_alone(sizes, (B, T), p)
    with_capacity = forward_backward(comm, config(p, capacity_factor=1.0), (B, T))
    lesson.say("Now two experts on each rank, without a capacity; then dropped choices with one:")
    lesson.table(compare_values(comm, found, alone) + count_bytes(
        comm, sizes, found, trace, even_trace),
        f"p = {p}: E = {sizes.experts.num_experts} experts, k = {sizes.experts.top_k}, "
        f"n = {B} · {T} tokens a rank, d = {sizes.width}")
    lesson.counts([*count_parameters(comm, sizes, found),
                   Row("choices dropped at capacity ⌈k t / E⌉, by hand",
                       total(comm, dropped_by_hand(found.ids, sizes, (B, T))),
                       total(comm, with_capacity.num_dropped))], "parameters and dropped choices")
    lesson.say("Each gradient of an expert is already a sum over the tokens of all ranks, since "
               "they came to it. Where ranks average instead of adding up, a weight on all p ranks "
               "is divided by p, but an expert only by the number of ranks that have it: p times "
               "too large. It is the best-known mistake. No loss shows it, nor the others:")
    lesson.grid(["mistake", "what is off", "by"], mistakes(comm, found, alone))
    show_balance(lesson, sizes)
    draw(lesson, sizes, found, with_capacity)


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


def compare_values(comm: Communicator, found: Found, alone: Alone) -> list[Row]:
    """Rows of the largest differences between the ranks and one process."""
    off = np.array([np.max(np.abs(found.output - alone.output[comm.rank])),
                    max(np.max(np.abs(g - alone.gradients[name][start:stop]))
                        for name, (start, stop), g in found.gradients)], np.float64)
    off = all_reduce(comm, off, "max")
    return [Row("output − one process", 1e-10, float(off[0]), rule="≤"),
            Row("gradients of experts − one process, never × p", 1e-10, float(off[1]), rule="≤")]


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
    right = np.sqrt(sum(np.sum((g / (comm.size * n))**2) for g in alone.gradients.values()))
    local, batch = found.balance_of_rank, found.balance_of_all
    mean = sum_over_ranks(comm, local) / comm.size
    top1, divided = (forward_backward(comm, config(comm.size, top_k=1), (B, T), gates_of_1=ones)
                     for ones in (False, True))
    assert divided.router_gradient < 1e-12 < top1.router_gradient
    return [("means over the ranks that have a weight", "gradients of experts",
             f"× {np.sqrt(squares) / right:.6g}"),
            ("balance loss of each rank, then the mean", "the loss of the batch",
             f"{number(mean)}, not {number(batch)}"),
            ("top-1 gates divided by their sum, 1", "the router's gradient",
             f"{number(divided.router_gradient)}, not {number(top1.router_gradient)}")]


def show_balance(lesson: Lesson, sizes: GPTConfig) -> None:
    """Train with each way to balance, and compare the busiest experts."""
    lesson.say(f"And balance? A GPT with {sizes.experts.num_experts} experts in each of 2 blocks, "
               f"trained for {STEPS} steps on all ranks; the capacity is 1.25 times an even use:")
    lesson.grid(["balanced by", "busiest expert / mean", "choices dropped", "loss"],
                [(name, number(run.busiest), f"{run.dropped:.1%}", number(run.loss))
                 for name, run in balanced_runs(lesson.comm, lesson.comm.size).items()])
    lesson.say("The loss is taken, and places are counted, for each sequence. The bias evens out "
               "whole batches, in which one sequence may still crowd an expert.")


def draw(lesson: Lesson, sizes: GPTConfig, found: Found, with_capacity: Found) -> None:
    """Draw which rank sends how many tokens to which expert, and which are dropped."""
    comm, p, num_experts, k = (lesson.comm, lesson.comm.size, sizes.experts.num_experts,
                               sizes.experts.top_k)
    sent, drops = np.zeros((p, num_experts), np.int64), np.zeros(p, np.int64)
    sent[comm.rank], drops[comm.rank] = with_capacity.counts, with_capacity.num_dropped
    sent, drops = all_reduce(comm, sent), all_reduce(comm, drops)
    assert sent.sum() + drops.sum() == p * B * T * k
    lesson.picture(lambda path: draw_token_flow(
        path, sent, drops, found.bounds,
        f"{p * B * T} tokens to {k} of {num_experts} experts each, on {p} ranks"))
