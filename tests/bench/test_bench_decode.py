"""The peers of decoding give the same tokens, and every row is measured."""

from minipar.nn import GPT
from tests.bench import decode


def test_decoding_is_measured():
    model = GPT(decode.CONFIG).initialize(seed=0)
    rows = [*decode.one_sequence(model, 1), *decode.together(model, 1)]
    assert len(rows) >= 3 and all(row.ratio > 0 for row in rows)
