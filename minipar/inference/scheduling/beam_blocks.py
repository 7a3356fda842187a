"""The blocks of a beam search: beams die and multiply, and share the blocks of common tokens.

    parents [0, 0, 2, 3]      beam 0 has two children, beam 1 has none

    before   0: [0, 2]   1: [0, 3]   2: [0, 4]   3: [0, 1]        block 3 becomes free
    after    0: [0, 5]   1: [0, 2]   2: [0, 4]   3: [0, 1]        2 is copied into 5, then written

First the children share their parents' blocks.  Then the old beams give their blocks back.  Then
each child writes its token, into a copy if the block is still shared.  Nothing else is copied.
`sampling/beam_search.py` runs a model over these beams.
Kwon et al. 2023, section 4.4.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from .block_pool import BlockPool, blocks_for
from .block_table import CachedSequence
from .scripted_requests import MOST


class BeamBlocks(NamedTuple):
    """The blocks that a step moved, in this order: freed, copied, allocated."""

    freed: list[int]
    copied: list[tuple[int, int]]           # from block, to block
    allocated: list[tuple[int, int]]        # beam, block


class Beams:
    """`width` continuations of one prompt, which share its blocks."""

    def __init__(self, pool: BlockPool, prompt: Sequence[int], width: int):
        if width < 1 or not prompt:
            raise ValueError(f"a beam search needs a width of at least 1 and a prompt of at least "
                             f"one token, not {width} and {len(prompt)} tokens")
        self.pool = pool
        first = CachedSequence("0", list(prompt))
        first.allocate(pool, len(prompt))
        first.num_computed = len(prompt)
        self.sequences = [first, *(first.fork(pool, str(i), i) for i in range(1, width))]

    def select(self, parents: Sequence[int], tokens: Sequence[int]) -> BeamBlocks:
        """Continue beam parents[i] by tokens[i], for each i, and take the block of that token.

        Raises ValueError for a parent that does not exist, before anything has changed.
        """
        old = self.sequences
        if not all(0 <= parent < len(old) for parent in parents):
            raise ValueError(f"parents are beams 0 … {len(old) - 1}, not {list(parents)}")
        self.sequences = [old[parent].fork(self.pool, str(i), i)
                          for i, parent in enumerate(parents)]
        blocks = BeamBlocks(self._release(old), [], [])
        for i, (sequence, token) in enumerate(zip(self.sequences, tokens, strict=True)):
            sequence.tokens.append(token)
            copy = sequence.copy_on_write(self.pool)
            if copy:
                blocks.copied.append(copy)
            blocks.allocated.extend((i, block) for block in sequence.allocate(self.pool, 1))
            sequence.num_computed += 1
        return blocks

    def release(self) -> list[int]:
        """Give all blocks back; return those that became free."""
        freed, self.sequences = self._release(self.sequences), []
        return freed

    def _release(self, sequences: list[CachedSequence]) -> list[int]:
        return [block for sequence in sequences for block in sequence.release(self.pool)]


BEAM_KEYS = ("num_blocks", "block_size", "prompt_length", "beam_width")


def is_beam_document(document: Any) -> bool:
    """True if a JSON document scripts a beam search."""
    return isinstance(document, dict) and "beam_width" in document


def play_beams(document: dict[str, Any]) -> dict[str, Any]:
    """Play {BEAM_KEYS…, "steps": [{}, {"parents": […]}, …]}: {"steps": […], "summary": {…}}.

    The first step computes the prompt.  Raises ValueError, which says what is wrong where, and
    OutOfBlocks.
    """
    num_blocks, block_size, prompt_length, width = _sizes(document)
    steps_parents = _parents(document, width)       # before anything is made
    pool = BlockPool(num_blocks, block_size)
    beams = Beams(pool, [0] * prompt_length, width)
    steps = [{"step": 0, "allocated": list(beams.sequences[0].table), **_state(beams)}]
    num_allocated = 0
    for index, parents in enumerate(steps_parents, start=1):
        blocks = beams.select(parents, [0] * width)
        num_allocated += len(blocks.allocated)
        moves = {key: [list(each) if isinstance(each, tuple) else each for each in value]
                 for key, value in blocks._asdict().items() if value}
        steps.append({"step": index, "parents": list(parents), **moves, **_state(beams)})
    num_tokens = beams.sequences[0].num_computed
    unshared = width * blocks_for(num_tokens, block_size)
    return {"steps": steps, "summary": {
        "blocks_copied": pool.num_copied, "blocks_allocated_for_new_tokens": num_allocated,
        "blocks_used_at_end": pool.num_used, "blocks_if_nothing_were_shared": unshared,
        "saving_at_end": 1 - pool.num_used / unshared, "tokens_in_cache_each": num_tokens,
        "free_queue_at_end": list(pool.free)}}


def _sizes(document: dict[str, Any]) -> list[int]:
    sizes = [document.get(key) for key in BEAM_KEYS]
    if not all(type(size) is int and size >= 1 for size in sizes):
        raise ValueError(f"a beam search has {', '.join(BEAM_KEYS)}, integers of at least 1, not "
                         f"{', '.join(map(repr, sizes))}")
    num_blocks, block_size, prompt_length, width = found = [each for each in sizes if each]
    if max(num_blocks, block_size, prompt_length * width) > MOST:
        raise ValueError(f"num_blocks, block_size and the tokens of all beams (prompt_length · "
                         f"beam_width) are at most {MOST} each, not {num_blocks}, {block_size} and "
                         f"{prompt_length * width}")
    return found


def _parents(document: dict[str, Any], width: int) -> list[list[int]]:
    """The parents of each step behind the first."""
    steps = document.get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise ValueError('"steps" of a beam search is a list [{}, {"parents": […]}, …], the first '
                         "of which computes the prompt")
    for index, step in enumerate(steps[1:], start=1):
        parents = step.get("parents")
        is_valid = (isinstance(parents, list) and len(parents) == width
                    and all(type(each) is int and 0 <= each < width for each in parents))
        if not is_valid:
            raise ValueError(f'step {index}: "parents" has {width} numbers of beams, '
                             f"0 … {width - 1}, not {parents!r}")
    return [step["parents"] for step in steps[1:]]


def _state(beams: Beams) -> dict[str, Any]:
    tables = [list(sequence.table) for sequence in beams.sequences]
    used = sorted({block for table in tables for block in table})
    return {"tables": tables, "refs": {str(block): beams.pool.ref_counts[block] for block in used}}
