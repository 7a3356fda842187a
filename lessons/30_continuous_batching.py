"""Lesson 30. Continuous batching: when may the next request begin?

A step of decoding reads all weights, for one sequence or for fifty, so sequences should be decoded
together.  But they do not come together, and they do not end together.  A static batch waits for
its longest answer, with ever fewer sequences:

    static    A A · · · · · · · D D D D · ·     continuous    A A D D D D F F ·
              B B B B B B B B B E E E E E E                   B B B B B B B B B
              C C C · · · · · · F F · · · ·                   C C C E E E E E E

With a new schedule before every step, a request begins as soon as one ends (Orca).  A long prompt
must not hold up the others: a *token budget* cuts it into chunks, beside one token of each other
request.  And when blocks run out, the latest request is preempted and continued later.

    python lessons/30_continuous_batching.py   mpirun -n 4 python lessons/30_continuous_batching.py
"""

import math

import numpy as np
from support.cached_runs import VOCABULARY, answers, differing, small_gpt, speculate
from support.kit import ABOUT, Lesson, Row
from support.virtual_engine import COMPUTE, READ, Served, serve, step_seconds

from minipar.comm import Communicator
from minipar.inference.simulated_load import Arrival, poisson_arrivals
from minipar.launcher import launch
from minipar.viz import draw_request_timeline

LENGTHS = {"A": (5, 2), "B": (3, 9), "C": (6, 3), "D": (2, 4), "E": (4, 6), "F": (7, 2)}
AT_ONCE = 3                             # requests that run together
LONG, OTHERS, COMES = 600, 4, 0.105     # a long prompt, requests beside it, seconds when it comes


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__)
    runs = batches(lesson)
    under_load(lesson)
    budgets(lesson)
    preemption(lesson)
    speculation(lesson)
    lesson.picture(lambda path: draw_request_timeline(
        path, {name: run.steps for name, run in runs.items()},
        dict.fromkeys(LENGTHS, 0.0), f"Six requests, {AT_ONCE} at a time"))
    lesson.takeaway("Decide anew before every step: a request begins when another ends, long "
                    "prompts run in chunks beside the others, and no answer changes.")
    lesson.exercises(questions=[
        "Static batches of three take 9 + 6 steps for the six requests. In which order of the six "
        "would they take the fewest?",
        "A step reads the weights in 10 ms and computes a token in 0.1 ms. From how many "
        "sequences on does a larger batch no longer gain tokens per second?",
        "A smaller token budget makes the gaps shorter. Why does the prompt wait longer, and what "
        "does a budget below 100 tokens cost here?",
        "With acceptance 0.8 and 4 drafts a call yields 3.36 tokens. A call of the draft model "
        "takes a tenth of one of the target. How much faster is it, and with 8 drafts?"])


def batches(lesson: Lesson) -> dict[str, Served]:
    """Serve the six requests in static batches and continuously."""
    arrivals = [Arrival(0.0, *lengths) for lengths in LENGTHS.values()]
    runs = {name: serve(arrivals, list(LENGTHS), max_requests=AT_ONCE, policy=policy)
            for name, policy in (("static batches", "static"),
                                 ("continuous batching", "token_budget"))}
    answered = [answer for _, answer in LENGTHS.values()]
    predicted = [sum(max(answered[i:i + AT_ONCE]) for i in range(0, len(answered), AT_ONCE)),
                 max(max(answered), math.ceil(sum(answered) / AT_ONCE))]
    lesson.say(f"A step takes max({1e3 * READ:g} ms, {1e3 * COMPUTE:g} ms · tokens) of virtual "
               f"time. Six requests want {', '.join(map(str, answered))} tokens, {AT_ONCE} at a "
               "time:")
    lesson.table([row for (name, run), steps, why in zip(runs.items(), predicted, (
        "Σ of the longest answers", "⌈Σ tokens / 3⌉")) for row in (
            Row(f"{name}: steps, {why}", steps, len(run.steps)),
            Row(f"{name}: ms", 1e3 * steps * READ, 1e3 * run.steps[-1][1], "ms"))], "six requests")
    return runs


def under_load(lesson: Lesson) -> None:
    """Serve requests that come at random, by three policies."""
    lesson.say("80 requests come at random, 10 in a second, and 16 run at a time. Prompts have 200 "
               "tokens on average, answers 40. Milliseconds of virtual time:")
    arrivals, rows = poisson_arrivals(80, 10.0, 1000, mean_prompt=200, mean_answer=40), []
    for name, settings in (("static", {"policy": "static"}),
                           ("prompts first", {"policy": "prompts_first"}),
                           ("continuous", {}),
                           ("… 100 tokens a step", {"token_budget": 100})):
        found = serve(arrivals, max_requests=16, **settings).summary
        rows.append((name, *(f"{1e3 * seconds:,.0f}" for seconds in (
            found.first_token_median, found.first_token_p95, found.gap_median, found.gap_p95)),
            f"{found.tokens_per_second:,.0f}"))
    lesson.grid(["", "first token, median", "95 %", "gap between tokens, median", "95 %",
                 "tokens a second"], rows)


def budgets(lesson: Lesson) -> None:
    """Let a long prompt come while others decode, with several token budgets."""
    lesson.say(f"A prompt of {LONG} tokens comes while {OTHERS} requests decode. With a budget of "
               f"b tokens a step, {OTHERS} go to them, and b − {OTHERS} to the prompt:")
    rows = []
    for budget in (None, 256, 104, 32):
        arrivals = [Arrival(0.0, 1, 300)] * OTHERS + [Arrival(COMES, LONG, 5)]
        run = serve(arrivals, token_budget=budget)
        room = LONG if budget is None else budget - OTHERS
        chunks = [min(room, LONG - start) for start in range(0, LONG, room)]
        *others, long = run.generations
        gaps = np.concatenate([np.diff(each.token_times) for each in others])
        computed = [step["scheduled"][OTHERS:] for _, _, step in run.steps]
        prompts = sum(bool(chunk) and chunk[0][1] < LONG for chunk in computed)
        left = READ - COMES % READ                  # of the step that runs when the prompt comes
        rows += [Row(f"b = {budget or '∞'}: chunks of the prompt", len(chunks), prompts),
                 Row("   longest gap of the others: a step of b tokens",
                     1e3 * step_seconds(budget or LONG + OTHERS), 1e3 * float(gaps.max()), "ms"),
                 Row("   its first token: the rest of a step, then all chunks",
                     1e3 * (left + sum(step_seconds(OTHERS + chunk) for chunk in chunks)),
                     1e3 * (long.token_times[0] - long.submitted), "ms")]
    lesson.table(rows, "a long prompt", "virtual")


def preemption(lesson: Lesson) -> None:
    """Run a small GPT in a pool with too few blocks, by recomputation and by swapping."""
    draw, model = np.random.default_rng(0), small_gpt()
    prompts = [draw.integers(0, VOCABULARY, length).tolist() for length in (7, 9, 5, 8)]
    expected, _ = answers(model, prompts, 10)
    once, rows = sum(len(prompt) + 10 - 1 for prompt in prompts), []
    for way in ("recompute", "swap"):
        found, summary = answers(model, prompts, 10, num_blocks=9, preempt_by=way)
        assert summary.num_preemptions, "there were enough blocks"
        rows += [Row(f"{way}: tokens computed, and those of them computed again",
                     once + summary.tokens_computed_again, summary.tokens_computed),
                 Row("   tokens of the answers that differ", 0, differing(found, expected))]
    blocks = sum(-(-(len(prompt) + 10 - 1) // 4) for prompt in prompts)
    lesson.say(f"Four answers of a small GPT need {blocks} blocks of 4 tokens; the pool has 9. The "
               "latest request gives its blocks back, and is computed again later; or they wait on "
               "the host. Both give the same tokens:")
    lesson.table(rows, "preempted")


def speculation(lesson: Lesson) -> None:
    """Count the tokens that a call of the target yields with drafts of a smaller model."""
    p, q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.6, 0.1, 0.15, 0.15])
    counted = {drafts: speculate(p, q, drafts, 3000) for drafts in (1, 2, 4, 8)}
    assert all(abs(measured / predicted - 1) < 0.05 for predicted, measured in counted.values())
    lesson.say("A single request leaves most of a step unused, too. So a small model drafts γ "
               "tokens, and one step of the large one checks them all. A draft is accepted with "
               f"α = Σ min(p, q) = {np.minimum(p, q).sum():.1f}; the answer is still drawn from p.")
    lesson.table([Row(f"γ = {drafts}: tokens a call, (1 − α^(γ+1))/(1 − α)", *both, "", ABOUT)
                  for drafts, both in counted.items()], "speculative decoding")


if __name__ == "__main__":
    launch(main)
