"""Parameter groups: what a rule picks decays, or learns, otherwise; shards included."""

import numpy as np
import pytest

from minipar.backend import arrays
from minipar.nn import GPT, GPTConfig
from minipar.optim import NO_DECAY_FOR_VECTORS, SGD, AdamW, ParameterGroup
from minipar.optim.groups import GroupSpan, spans_of, spans_within
from tests.optim.test_optimizers import CASES, IDS, plain_adamw, set_gradients

GROUPS = [ParameterGroup(lambda segment: segment.name.startswith("h.1.mlp"), 0.7, 0.5),
          NO_DECAY_FOR_VECTORS,
          ParameterGroup(lambda segment: segment.name == "wpe.weight", lr_scale=3)]


def by_hand(name, ndim, decay, lr):
    """The weight decay and learning rate of a parameter, by those rules."""
    if name.startswith("h.1.mlp"):
        return 0.7, lr / 2
    return (decay, 3 * lr) if name == "wpe.weight" else (decay if ndim > 1 else 0, lr)


def gpt(dtype=np.float64):
    return GPT(GPTConfig(7, context=4, num_layers=2, num_heads=2, width=4)).initialize(0, dtype)


@pytest.mark.parametrize("block_bytes", [64, 1 << 18])
@pytest.mark.parametrize("kind, plain, options", CASES, ids=IDS)
def test_every_parameter_decays_and_learns_as_the_first_rule_says(kind, plain, options, block_bytes,
                                                                  monkeypatch):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", block_bytes)
    model, default = gpt(), 0.01 if plain is plain_adamw else 0.0
    optimizer = kind(model.slabs, lr=0.05, groups=GROUPS, **options)
    expected, states = model.state_dict(), {name: {} for name, _ in model.named_parameters()}
    for t in range(1, 5):
        optimizer.lr = 0.05 / t                     # a schedule
        gradients = set_gradients(model, t)
        for name, p in model.named_parameters():
            decay, lr = by_hand(name, p.ndim, options.get("weight_decay", default), optimizer.lr)
            expected[name] = plain(expected[name], gradients[name], states[name], t, lr,
                                   **{**options, "weight_decay": decay})
        optimizer.step()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(p.data, expected[name], rtol=1e-13, atol=1e-14, err_msg=name)


def test_without_groups_everything_decays_as_in_pytorch():
    model = gpt()
    before = model.state_dict()
    model.zero_grad()
    AdamW(model.slabs, lr=0.1, weight_decay=0.5).step()
    for name, values in model.state_dict().items():
        np.testing.assert_allclose(values, 0.95 * before[name], rtol=1e-14)
    AdamW(model.slabs, lr=0.1, weight_decay=0.5, groups=[NO_DECAY_FOR_VECTORS]).step()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(p.data, (0.95**2 if p.ndim > 1 else 0.95) * before[name],
                                   rtol=1e-14)


def test_neighbours_of_one_group_are_one_span():
    (slab,) = gpt().slabs
    names = [segment.name.removeprefix("h.0.") for segment in slab.segments[:9]]
    spans = spans_of(slab.segments, [NO_DECAY_FOR_VECTORS], 0.1)
    assert names[:6] == ["wte.weight", "wpe.weight", "ln_1.weight", "ln_1.bias",
                         "attn.c_attn.weight", "attn.c_attn.bias"]
    assert spans[:4] == [GroupSpan(0, 44, 0.1, 1), GroupSpan(44, 52, 0, 1),
                         GroupSpan(52, 100, 0.1, 1), GroupSpan(100, 112, 0, 1)]
    assert spans[-1].stop == slab.data.size
    assert all(a.stop == b.start and a[2:] != b[2:] for a, b in zip(spans, spans[1:]))
    assert spans_of(slab.segments, [], 0.1) == [GroupSpan(0, slab.data.size, 0.1, 1)]


def test_spans_are_cut_with_the_blocks():
    spans = [GroupSpan(0, 4, 0.1, 1), GroupSpan(6, 9, 0, 2), GroupSpan(9, 20, 0.3, 1)]
    assert spans_within(spans, 0, 4) == [spans[0]]
    assert spans_within(spans, 4, 6) == []
    assert spans_within(spans, 3, 10) == [GroupSpan(0, 1, 0.1, 1), GroupSpan(3, 6, 0, 2),
                                          GroupSpan(6, 7, 0.3, 1)]
    for start, stop in ((a, b) for a in range(21) for b in range(a, 21)):
        covered = [(start + i, span[2:]) for span in spans_within(spans, start, stop)
                   for i in range(span.start, span.stop)]
        assert covered == [(i, span[2:]) for span in spans for i in range(span.start, span.stop)
                           if start <= i < stop]


def test_negative_numbers_are_refused():
    with pytest.raises(ValueError, match="weight_decay is a number >= 0, not -1"):
        SGD(gpt().slabs, weight_decay=-1)
    with pytest.raises(ValueError, match="lr_scale is a number >= 0, not -2"):
        SGD(gpt().slabs, groups=[NO_DECAY_FOR_VECTORS, ParameterGroup(bool, lr_scale=-2)])
