"""The blocks of a beam search: as recorded, and refusals."""

import json
from pathlib import Path

import pytest

from minipar.inference.scheduling import BlockPool, OutOfBlocks
from minipar.inference.scheduling.beam_blocks import Beams, is_beam_document, play_beams

RECORDED = json.loads((Path(__file__).parent / "arrays/beam_search.json").read_text())


def test_every_step_is_as_recorded():
    assert is_beam_document(RECORDED) and not is_beam_document({"engine": {}})
    found = json.loads(json.dumps(play_beams(RECORDED)))
    assert found["steps"] == RECORDED["steps"]
    assert found["summary"] == RECORDED["summary"]


def test_all_blocks_are_free_after_the_last_beam():
    pool = BlockPool(20, 4)
    beams = Beams(pool, [1, 2, 3], 3)
    for parents in ([0, 0, 1], [2, 1], [1, 0, 0, 1], [3]):
        beams.select(parents, range(len(parents)))
    assert [len(sequence.tokens) for sequence in beams.sequences] == [7]
    beams.release()
    assert pool.num_used == 0 and not any(pool.ref_counts)


def test_a_parent_that_does_not_exist_changes_nothing():
    pool = BlockPool(9, 4)
    beams = Beams(pool, [1], 2)
    with pytest.raises(ValueError, match=r"beams 0 … 1, not \[0, 2\]"):
        beams.select([0, 2], [5, 5])
    assert len(beams.sequences) == 2 and pool.ref_counts[0] == 2


@pytest.mark.parametrize(("change", "message"), [
    ({"beam_width": 0}, "integers of at least 1, not 24, 4, 6, 0"),
    ({"num_blocks": None}, "num_blocks, block_size"),
    ({"steps": 3}, '"steps" of a beam search'),
    ({"steps": [{}, {"parents": [0, 1]}]}, 'step 1: "parents" has 4 numbers'),
    ({"steps": [{}, {"parents": [0, 1, 2, 4]}]}, r"0 … 3, not \[0, 1, 2, 4\]"),
])
def test_a_document_that_is_no_beam_search_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        play_beams({**RECORDED, **change})


def test_a_pool_that_is_too_small_says_so():
    with pytest.raises(OutOfBlocks, match="1 blocks are needed, and 0 of 4 are free"):
        play_beams({**RECORDED, "num_blocks": 4})
