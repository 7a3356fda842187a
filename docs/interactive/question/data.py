"""Question blocks: a number that the reader types, and what the page says to it.

The answers are computed by the functions that minipar's tests trust.  `wrong` maps usual mistakes
to a hint; every number is compared up to `tolerance`, relative.
"""

from typing import Any, NamedTuple

from minipar.comm.cost import predict
from minipar.inference.sampling.speculative import expected_tokens
from minipar.nn import GPT, GPTConfig
from minipar.parallel.context.token_order import positions_of_ranks
from minipar.parallel.cost import pipelines
from minipar.parallel.cost.context_parallel import imbalance, pairs_by_hop
from minipar.parallel.pipeline.schedule.simulate import Times

MEGA = 10**6


class Question(NamedTuple):
    """A question of a lesson; `reason` is shown when the number is right, hints when it is not."""

    lesson: str
    text: str
    answer: float
    unit: str
    reason: str
    wrong: dict[float, str]
    tolerance: float = 0.005


def questions() -> list[Question]:
    """All questions, in the order of the lessons."""
    small = GPT(GPTConfig(50257, 1024, 12, num_heads=12, width=768)).num_parameters()
    gather = predict("all_gather", "ring", 8, 8 * MEGA, itemsize=1)
    ring = predict("all_reduce", "ring", 4, MEGA, itemsize=1)
    doubling = predict("all_reduce", "recursive_doubling", 64, MEGA, itemsize=1)
    bubble = pipelines.bubble("1f1b", 8, 32, Times()).of_total
    pairs = pairs_by_hop(positions_of_ranks("contiguous", 1600, 8))
    return [
        Question("00", "GPT-2 small is trained in float32 with AdamW. How many GB do weights, "
                       "gradients "
                 "and optimizer states take?", 16 * small / 1e9, "GB",
                 f"16 bytes for each of {small:,} parameters.",
                 {4 * small / 1e9: "These are the weights alone.",
                  8 * small / 1e9: "AdamW keeps two moments of each parameter, too.",
                  128 * small / 1e9: "That is in gigabits: a byte has 8."}),
        Question("03", "8 ranks have 1 MB each. How many MB does a rank receive in a ring's "
                       "all-gather?",
                 gather.num_bytes / MEGA, "MB", "7 ranks have what this one lacks, 1 MB each.",
                 {8: "Its own megabyte is there already.", 1: "That is one round of seven."}),
        Question("04", "A ring's all-reduce of 1 MB on 4 ranks: how many rounds?", ring.rounds,
                 "rounds",
                 "p − 1 for the reduce-scatter, p − 1 for the all-gather.",
                 {3: "That is the reduce-scatter alone.", 4: "The last round brings what is "
                     "missing: "
                  "p − 1 rounds a half, not p."}, 0),
        Question("04", "Recursive doubling on 64 ranks: how many MB are on the critical path, for "
                       "1 MB?",
                 doubling.num_bytes / MEGA, "MB", "Each of log₂ 64 = 6 rounds sends all of it.",
                 {2: "A ring sends twice the array; doubling sends it in each round.",
                  64: "The number of rounds is log₂ p, not p."}),
        Question("09", "A billion parameters on 8 ranks with ZeRO-1, float32 and AdamW. How many "
                       "GB does "
                 "a rank keep of weights, gradients and states?", 8 + 8 / 8, "GB",
                 "8 Ψ whole, and an eighth of the 8 Ψ of states.",
                 {16: "That is DDP: nothing is sharded.", 2: "That is ZeRO-3: ZeRO-1 shards the "
                      "states "
                  "alone."}),
        Question("10", "How many times the bytes of DDP does FSDP send in a step?", 1.5, "times",
                 "Two all-gathers and a reduce-scatter, 3 Ψ, where DDP's all-reduce sends 2 Ψ.",
                 {3: "DDP sends 2 Ψ, too, not one.", 1: "That is ZeRO-1."}),
        Question("12", "1F1B on 8 ranks with 32 microbatches: which percentage of the total time "
                       "does a "
                 "rank idle?", 100 * bubble, "%", "(p − 1)/(m + p − 1) = 7/39.",
                 {100 * 7 / 32: "That is of the ideal time. The total includes the bubble.",
                  100 * 8 / 40: "p − 1 stages must be filled, not p."}),
        Question("12", "And how many microbatches does stage 2 of these 8 keep at most?",
                 min(32, 8 - 2), "microbatches", "min(m, p − s).",
                 {32: "That is GPipe.", 8: "That is stage 0."}, 0),
        Question("14", "How many all-reduces of b·t·d numbers do 24 layers cost, forward and "
                       "backward?",
                 4 * 24, "all-reduces", "Two pairs a layer; g forward and f backward in each.",
                 {48: "That is forward alone.", 24: "Attention and MLP are a pair each."}, 0),
        Question("16", "Causal attention in contiguous pieces on 8 ranks: how many times the mean "
                       "has the "
                 "busiest rank to do?", imbalance(pairs), "times", "(2p − 1)/p: the last rank "
                 "sees all.",
                 {8: "The mean is not the least: each rank has its own block at least.",
                  2: "That is the limit for many ranks."}, 0.01),
        Question("20", "64 equal layers in √64 segments: how many arrays are alive at the peak?",
                 2 * 8 - 1, "arrays", "8 inputs of segments, and a segment of 8 whose first is "
                            "one of them.",
                 {16: "The segment's own input is counted twice.", 65: "That is without "
                      "segments."}, 0),
        Question("24", "An int4 weight in groups of 64 that share a scale of 2 bytes: how many "
                       "bits is it?",
                 4 + 16 / 64, "bits", "A scale's 16 bits are spread over 64 weights.",
                 {4: "The scale must be stored, too.", 4.03125: "2 bytes are 16 bits."}),
        Question("26", "40 layers, 40 heads of width 128, 2 bytes a number: how many bytes does a "
                       "token "
                 "take in the cache?", 2 * 40 * 40 * 128 * 2, "bytes", "A key and a value in each "
                 "layer.",
                 {40 * 40 * 128 * 2: "Keys and values: twice that.",
                  2 * 40 * 128 * 2: "Each of the 40 heads has its own."}),
        Question("30", "A draft is accepted with 0.7, and 5 are drafted. How many tokens does a "
                       "checked "
                 "step yield on average?", expected_tokens(0.7, 5), "tokens",
                 "1 + α + … + α⁵ = (1 − α⁶)/(1 − α).",
                 {3.5: "A rejection drops the drafts behind it.", 1.94117: "One token of the "
                       "target "
                  "always follows."}, 0.01),
    ]


def data() -> dict[str, Any]:
    """{"questions": {lesson: [question]}}."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in questions():
        found.setdefault(each.lesson, []).append({
            "text": each.text, "answer": each.answer, "unit": each.unit, "reason": each.reason,
            "wrong": list(each.wrong.items()), "tolerance": each.tolerance})
    return {"questions": found}
