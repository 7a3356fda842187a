"""Lesson 26: the library's block pool, its waste beside stretches, and a GPT over a paged cache."""

import numpy as np

from minipar.autograd import no_grad
from minipar.inference.cache import ContiguousKVCache, KVSizes, PagedKVCache
from minipar.inference.scheduling.fragmentation import CachedRequest, compare_layouts
from minipar.inference.scheduling.scripted_requests import play, read_scenario
from minipar.nn import GPT
from minipar.viz import draw_block_pool

from .cached_runs import CONTEXT, VOCABULARY, answers, decode, differing, small_gpt
from .kit import ABOUT, AT_MOST, Lesson, Row

B, NUM_BLOCKS, ANSWERS = 4, 12, 2
NEW, FLOAT = 12, 8                              # tokens of an answer; bytes of a float64
PAPER = {"max": 20.4, "pow2": 26.8, "oracle": 38.2, "blocks": 96.3}     # % of the slots: tokens


def compare_with_library(lesson: Lesson) -> None:
    """Run requests over the library's pool; compare its waste, and a GPT's tokens."""
    lesson.say("In the library the pool knows numbers of blocks only, and the arrays stand apart: "
               "so a schedule can be made without a model (tests compare the tables with the "
               "lesson's).")
    steps = fill(lesson)
    waste(lesson)
    model = small_gpt()
    equal(lesson, model)
    share(lesson, model)
    lesson.picture(lambda path: draw_block_pool(path, steps, NUM_BLOCKS, B,
                                                "Blocks while three requests run"))


def fill(lesson: Lesson) -> list[dict]:
    """Run three scripted requests, print the tables step by step; return the steps."""
    lengths = {"A": (7, [8]), "B": (3, [4]), "C": (6, [5] * ANSWERS)}   # prompt, answers
    played = play(read_scenario({
        "engine": {"num_blocks": NUM_BLOCKS, "block_size": B},
        "requests": [{"name": name, "arrival_step": i, "prompt": list(range(prompt)),
                      "outputs": [[0] * length for length in answers]}
                     for i, (name, (prompt, answers)) in enumerate(lengths.items())]}))
    names = ["A", "B", *(f"C.{i}" for i in range(ANSWERS))]
    lesson.say(f"A pool of {NUM_BLOCKS} blocks of {B} tokens. Three requests come one after the "
               f"other, and the last one asks for {ANSWERS} answers to its prompt. Their tables:")
    lesson.grid(["step", *names, "copied", "free"], [
        (step["step"], *(" ".join(map(str, step["tables"].get(name, ()))) for name in names),
         ", ".join(f"{old} → {new}" for old, new in step.get("copied", ())), step["free_after"])
        for step in played["steps"]])
    empty = [(step["slots"] - step["filled"], len(step["tables"])) for step in played["steps"]]
    prompt, (length, *_) = lengths["C"]
    total, whole = -(-(prompt + length - 1) // B), prompt // B
    blocks_of_c = {block for step in played["steps"] for name, table in step["tables"].items()
                   if name.startswith("C") for block in table}
    lesson.table([
        Row("slots without a token, most in a step, at most B − 1 a sequence",
            max(sequences * (B - 1) for _, sequences in empty), max(slots for slots, _ in empty),
            rule=AT_MOST),
        Row("blocks of C: whole ones of its prompt once, the others for each answer",
            whole + ANSWERS * (total - whole), len(blocks_of_c)),
        Row("copies: answers − 1, because the prompt ends inside a block", ANSWERS - 1,
            played["summary"]["blocks_copied"])], "while the pool fills")
    return played["steps"]


def waste(lesson: Lesson) -> None:
    """Lay out one moment of six requests in one pool, contiguously and in blocks."""
    requests = [CachedRequest(*each) for each in (
        ("A", 60, 300, 40), ("B", 30, 20, 15), ("C", 100, 100, 90), ("D", 10, 5, 5),
        ("E", 200, 150, 1), ("F", 40, 250, 125))]
    layouts = compare_layouts(requests, num_slots=2048, longest=512)
    lesson.say("Six requests want 2,048 slots. Each gets a stretch as long as the longest sequence "
               "there may be (*max*), as its answer rounded up to a power of two (*pow2*), or as "
               "its answer will be (*oracle*, which no server knows); or *blocks* of 16:")
    lesson.grid(["% of 2,048 slots", "token", "used later", "never used", "between", "free",
                 "requests that wait"],
                [(name, *(f"{part:.1f}" for part in layout.percent().values()),
                  len(layout.waiting)) for name, layout in layouts.items()])
    lesson.say("The paper measured the same for a server under load:")
    lesson.table([Row(f"{name}: tokens, of the slots that are taken", PAPER[name],
                      100 * (1 - layout.waste), "%", ABOUT) for name, layout in layouts.items()],
                 "Kwon et al. 2023, figure 2", "these six")


def equal(lesson: Lesson, model: GPT) -> None:
    """Generate with a contiguous cache, a paged one and none; compare tokens and bytes."""
    draw, sizes, like = np.random.default_rng(0), KVSizes.of(model), model.slabs[0].data
    prompts = [draw.integers(0, VOCABULARY, length).tolist() for length in (5, 1, 9)]
    blocks = draw.permutation(3 * CONTEXT // B).reshape(3, -1)
    paged = PagedKVCache(sizes, blocks.size, B, like)
    found, logits = decode(model, paged, blocks.tolist(), prompts, NEW)
    expected, others = decode(model, ContiguousKVCache(sizes, 3, CONTEXT, like), [[0], [1], [2]],
                              prompts, NEW)
    with no_grad():
        whole = [model(np.array([tokens])).data[0] for tokens in expected]
    again = [row[len(prompt) - 1:-1].argmax(axis=1) for row, prompt in zip(whole, prompts)]
    in_use = sum(len(tokens) - 1 for tokens in found)
    lesson.say("A small GPT generates from three prompts. The blocks of the paged cache are "
               "scattered at random, and slots without a token hold NaN: reading one would show.")
    lesson.table([
        Row("tokens unlike those of the contiguous cache", 0, differing(found, expected)),
        Row("tokens unlike those of whole forwards", 0, differing(
            [tokens[len(prompt):] for tokens, prompt in zip(found, prompts)], again)),
        Row("largest difference of a logit", 1e-12, float(abs(logits - others).max()),
            rule=AT_MOST),
        Row("bytes of a token: 2 · layers · kv heads · n · 8",
            2 * 2 * 2 * (32 // 4) * FLOAT, paged.num_bytes // (blocks.size * B), "B"),
        Row("slots that hold no NaN: all computed tokens", in_use,
            int(np.isfinite(paged.data[0, 0, :, :, 0, 0]).sum()))], "the same tokens")


def share(lesson: Lesson, model: GPT) -> None:
    """Answer prompts that begin alike, with and without the prefix cache."""
    common, questions = list(range(4 * B)), [[5, 9], [7], [1, 2, 3], [8, 8]]
    prompts = [common + question for question in questions]
    (plain, without), (shared, cached) = (
        answers(model, prompts, NEW, one_by_one=True, prefix_caching=is_on)
        for is_on in (False, True))
    once = sum(len(prompt) + NEW - 1 for prompt in prompts)
    saved = (len(questions) - 1) * len(common)
    lesson.say(f"Four prompts begin with the same {len(common)} tokens. With a prefix cache a "
               "block is found by a hash of its tokens and of all before them, so it is computed "
               "once.")
    lesson.table([Row("tokens computed, without", once, without.tokens_computed),
                  Row("tokens computed, with: 3 · 16 fewer", once - saved, cached.tokens_computed),
                  Row("tokens of the answers that differ", 0, differing(shared, plain))],
                 "prompts that begin alike")
