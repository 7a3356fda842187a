"""GPTQ is what its definition says, in blocks as without, and better than rounding."""

import numpy as np
import pytest

from minipar.compress import Granularity, IntGrid, QuantizedTensor
from minipar.compress.quantization.gptq import gptq, hessian, inverse_root
from minipar.compress.quantization.observers import weight_qparams


def layer(num_out=6, num_in=24, seed=0):
    """A weight, and inputs that depend on each other."""
    draw = np.random.default_rng(seed)
    rows = draw.standard_normal((num_out, num_in))
    inputs = draw.standard_normal((200, num_in)) @ draw.standard_normal((num_in, num_in))
    return rows, inputs, hessian(inputs)


def by_definition(rows, h, grid, damping=0.01):
    """Optimal brain surgeon, column by column: the inverse of what is left of H, each time anew."""
    w = rows.copy()
    scale, zero = (a[:, 0] for a in weight_qparams(rows, grid))
    h = h + damping * np.mean(np.diag(h)) * np.eye(len(h))
    for i in range(w.shape[1]):
        inverse = np.linalg.inv(h[i:, i:])
        value = grid.decode(grid.encode(w[:, i], scale, zero), scale, zero)
        w[:, i:] -= np.outer((w[:, i] - value) / inverse[0, 0], inverse[0])
        w[:, i] = value
    return w


@pytest.mark.parametrize("block", [1, 5, 24, 128])
@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
def test_it_is_the_definition_in_any_blocks(block, scheme):
    rows, _, h = layer()
    grid = IntGrid(4, scheme)
    found = gptq(rows, h, grid, Granularity("channel"), block=block).rows(np.float64)
    np.testing.assert_allclose(found, by_definition(rows, h, grid), rtol=1e-6, atol=1e-6)


def test_the_order_of_activations_is_that_of_permuted_inputs():
    rows, _, h = layer()
    turn = np.argsort(-np.diag(h))
    expected = np.empty_like(rows)
    expected[:, turn] = by_definition(rows[:, turn], h[np.ix_(turn, turn)], IntGrid(3))
    for block in (1, 5, 128):
        found = gptq(rows, h, IntGrid(3), Granularity("channel"), block=block, order="activation")
        np.testing.assert_allclose(found.rows(np.float64), expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="an order is one of index, activation, not 'size'"):
        gptq(rows, h, IntGrid(3), Granularity("channel"), order="size")


@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
def test_in_the_order_of_activations_groups_keep_the_scales_of_the_weights(scheme):
    rows, inputs, h = layer(num_in=40)
    grid, per = IntGrid(3, scheme), Granularity.parse("group:16")
    found = gptq(rows, h, grid, per, order="activation")
    nearest = QuantizedTensor.nearest(rows, grid, per)
    assert np.array_equal(found.scale, nearest.scale)
    assert np.array_equal(found.zero, nearest.zero)
    errors = [np.sum((inputs @ (kept.rows() - rows).T) ** 2) for kept in (found, nearest)]
    assert errors[0] < 0.85 * errors[1]


def test_the_order_of_activations_helps_where_few_inputs_are_large():
    better = 0
    for seed in range(8):
        rows, inputs, _ = layer(num_in=48, seed=seed)
        inputs = inputs * np.where(np.arange(48) % 12 == 11, 20.0, 1.0)
        h = hessian(inputs)
        errors = [np.sum((inputs @ (gptq(rows, h, IntGrid(3), Granularity(), order=order).rows()
                                    - rows).T) ** 2) for order in ("index", "activation")]
        better += errors[1] < errors[0]
    assert better >= 7


@pytest.mark.parametrize("per", ["tensor", "channel", "group:32"])
@pytest.mark.parametrize("bits", [2, 4])
def test_its_outputs_are_nearer_than_those_of_rounding(bits, per):
    for seed in range(3):
        rows, inputs, h = layer(num_in=40, seed=seed)           # the last group is shorter
        kept = [gptq(rows, h, IntGrid(bits), Granularity.parse(per)),
                QuantizedTensor.nearest(rows, IntGrid(bits), Granularity.parse(per))]
        ours, theirs = (np.sum((inputs @ (k.rows() - rows).T) ** 2) for k in kept)
        assert ours < 0.85 * theirs
        assert [k.nbytes for k in kept] == [kept[0].nbytes] * 2


def test_independent_inputs_have_nothing_to_make_up():
    rows, _, _ = layer()
    assert np.array_equal(gptq(rows, np.eye(24), IntGrid(4), Granularity()).codes(),
                          QuantizedTensor.nearest(rows, IntGrid(4), Granularity()).codes())


def test_inputs_that_never_come():
    rows, _, h = layer()
    h[3] = h[:, 3] = 0
    assert np.isfinite(gptq(rows, h, IntGrid(4), Granularity()).rows()).all()
    assert np.isfinite(gptq(rows, h * 0, IntGrid(4), Granularity()).rows()).all()
    with pytest.raises(ValueError, match="singular in spite of damping 0"):
        inverse_root(-np.eye(3), damping=0)


def test_a_machine_without_flags_of_invalid_operations(monkeypatch):
    monkeypatch.setattr(np.linalg, "cholesky", lambda h: np.full_like(h, np.nan))
    with pytest.raises(ValueError, match="singular in spite of damping 0"):
        inverse_root(-np.eye(3), damping=0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_hessian_that_is_not_finite_is_refused(bad):
    """One bad number among the calibration inputs is enough; NaN used to come out as weights."""
    rows, inputs, _ = layer()
    inputs[7, 3] = bad
    with np.errstate(invalid="ignore"), pytest.raises(ValueError, match="NaN or infinity") as error:
        gptq(rows, hessian(inputs), IntGrid(4), Granularity())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("per", ["tensor", "channel", "group:32"])
def test_a_pruned_weight_keeps_its_zeros(per, scheme):
    rows, inputs, h = layer(num_in=40)
    rows *= np.random.default_rng(1).random(rows.shape) < 0.5
    found = gptq(rows, h, IntGrid(4, scheme), Granularity.parse(per)).rows()
    assert np.all(found[rows == 0] == 0)
    assert np.mean(found[rows != 0] != 0) > 0.8
    relative = np.linalg.norm(inputs @ (found - rows).T) / np.linalg.norm(inputs @ rows.T)
    assert relative < 0.2
