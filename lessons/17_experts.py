"""Lesson 17. Experts: how does a model grow without more work for each token?

The MLP of a block becomes E experts, and a router sends each token to its k best ones.  The
parameters grow with E, the work of a token with k.  Experts live on different ranks, so tokens
travel to them and their results travel back: an all-to-all each way, and two more in backward.

    tokens of rank 0 ──┐ all-to-all ┌─▶ experts of rank 0 ─┐ all-to-all ┌─▶ Σ gate · result
    tokens of rank 1 ──┘   (rows)   └─▶ experts of rank 1 ─┘ (results)  └─▶ on the token's rank

A popular expert is a bottleneck: a capacity drops its surplus rows, or a loss or a bias makes the
router use all experts alike.

    python lessons/17_experts.py --ranks 4
    mpirun -n 4 python lessons/17_experts.py
"""

import numpy as np
from support.expert_layer import (
    SIZE,
    STEPS,
    Alone,
    Found,
    balanced_runs,
    config,
    dropped_by_hand,
    forward_backward,
    one_process,
)
from support.kit import Lesson, Row, number
from support.measuring import counted, total

from minipar.comm import Communicator, Trace
from minipar.comm.collectives import all_reduce, sum_over_ranks
from minipar.formulas.experts import all_to_all_bytes, exchanged_bytes, layer_parameters
from minipar.launcher import launch
from minipar.nn import GPTConfig
from minipar.viz import draw_token_flow

B, T = 2, 12                        # sequences of a rank, tokens of a sequence


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    p, sizes = comm.size, config(comm.size)
    trace, found = counted(comm, lambda: forward_backward(comm, sizes, (B, T)))
    even_trace, _ = counted(comm, lambda: forward_backward(comm, sizes, (B, T), even=True))
    alone = one_process(sizes, (B, T), p)
    with_capacity = forward_backward(comm, config(p, capacity_factor=1.0), (B, T))
    lesson.table([*compare_values(comm, found, alone),
                  *count_bytes(comm, sizes, found, trace, even_trace),
                  *count_parameters(comm, sizes, found),
                  Row("choices dropped at capacity ⌈k t / E⌉, by hand",
                      total(comm, dropped_by_hand(found.ids, sizes, (B, T))),
                      total(comm, with_capacity.num_dropped))],
                 f"p = {p}: E = {sizes.experts.num_experts} experts, k = {sizes.experts.top_k}, "
                 f"n = {B} · {T} tokens a rank, d = {sizes.width}")
    lesson.say("Each gradient of an expert is already a sum over the tokens of all ranks, since "
               "they came to it. Where ranks average instead of adding up, a weight on all p ranks "
               "is divided by p, but an expert only by the number of ranks that have it: p times "
               "too large. It is the best-known mistake. No loss shows it, nor the others:")
    lesson.grid(["mistake", "what is off", "by"], mistakes(comm, found, alone))
    show_balance(lesson, sizes)
    draw(lesson, sizes, found, with_capacity)
    lesson.takeaway("Experts add parameters without work for each token. The price is two "
                    "all-to-alls each way, of as many rows as the router says, so balance is what "
                    "makes them fast.")
    lesson.exercises(questions=[
        "Why is the number of experts free for a token, and what is it not free for?",
        "A capacity per rank instead of per sequence: what would another number of ranks change?",
        "Top-1 with gates that add up to 1: what does the router learn?",
        "Experts across nodes: which messages cross, and how does DeepSeek-V3 limit them?"])


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


if __name__ == "__main__":
    launch(main)
