"""GPTQ: round a weight column by column; the remaining columns compensate for each error.

The layer's output should change little, that is Σ over its inputs x of |(W - Ŵ) x|².  This is
tr((W - Ŵ) H (W - Ŵ)ᵀ) / 2 with the Hessian H = 2 X Xᵀ of calibration inputs.  When input i is
rounded, the other inputs compensate best by

    W[:, j] -= (w_i - ŵ_i) / H⁻¹[i, i] · H⁻¹[i, j]      for all j not yet rounded

after which i is removed from H.  The removal is a step of Gaussian elimination on H⁻¹.  One
Cholesky factorization H⁻¹ = Uᵀ U does all steps in advance.  Row i of U is row i of the remaining
H⁻¹, divided by √H⁻¹[i, i].

    done    a block of columns      later
    ─────┬─────────────────────┬──────────────
     ŵ ŵ │ ŵ ŵ ŵ  i ──▶ ──▶ ──▶ │  once a block:  W[:, later] -= E U[block, later]
    ─────┴─────────────────────┴──────────────

Lazy batches: the columns after the block get all its errors E in one product.

Order: a weight of a large input matters most to the output.  If the weights of large inputs are
rounded first ("activation": by decreasing diagonal of H), all others can compensate for their
errors.  The scales of groups then follow from the original weights, because the inputs of a group
are not rounded one after the other.

A weight that is exactly 0 stays 0, as with rounding to nearest, so pruned models keep their zeros.
The later weights compensate instead.

Source: Frantar, Ashkboos, Hoefler & Alistarh, GPTQ: Accurate post-training quantization for
generative pre-trained transformers (2022), whose code calls the order "activation" act_order;
Hassibi & Stork, Optimal brain surgeon (1992).
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from ...backend import Array
from .float_grid import Grid
from .granularity import Granularity
from .observers import weight_qparams
from .quantized_tensor import QuantizedTensor

ORDERS = ("index", "activation")


def hessian(inputs: Array) -> Array:
    """2 X Xᵀ of inputs (…, K), one per row: (K, K) float64."""
    x = inputs.reshape(-1, inputs.shape[-1]).astype(np.float64)
    return 2 * (x.T @ x)


def inverse_root(h: Array, damping: float = 0.01) -> Array:
    """U, upper triangular, with Uᵀ U = (H + damping · mean(diag H) · I)⁻¹.

    H = 0 is damped by I.  Raises ValueError if the damped H is not positive definite, or H has NaN
    or infinity.
    """
    if not np.isfinite(h).all():
        raise ValueError("the Hessian of the calibration inputs has NaN or infinity, and so would "
                         "the weights: give calibration data that the model maps to finite numbers")
    mean = np.mean(np.diag(h))
    damped = h + (damping * mean if mean > 0 else 1.0) * np.eye(len(h))
    try:
        root = np.linalg.cholesky(np.linalg.inv(damped)).T
    except np.linalg.LinAlgError:
        root = np.full_like(h, np.nan)      # as NumPy returns in WebAssembly, which raises nothing
    if not np.isfinite(root).all():
        raise ValueError(f"the Hessian of the calibration inputs is singular in spite of damping "
                         f"{damping:g}: raise it, or give more calibration data")
    return root


def round_columns(w: Array, u: Array, nearest: Callable[[Array], Array], kept: Array) -> Array:
    """Round the columns of a block w (outputs, n), in place; return their errors E (outputs, n).

    u (n, n) is the block's part of U; nearest(column) returns the nearest values of a column.
    Weights that are not `kept` (outputs, n) become 0.  E[:, i] is the error of column i in the unit
    of U's rows, (w_i - ŵ_i) / U[i, i].
    """
    errors = np.zeros_like(w)
    for i in range(w.shape[1]):
        value = nearest(w[:, i]) * kept[:, i]
        errors[:, i] = (w[:, i] - value) / u[i, i]
        w[:, i + 1:] -= np.outer(errors[:, i], u[i, i + 1:])
        w[:, i] = value
    return errors


def _nearest(grid: Grid, fitted: tuple[Array, Array], column: Array) -> Array:
    return grid.decode(grid.encode(column, *fitted), *fitted)


def column_order(h: Array, order: str) -> Array:
    """The order of the columns: 0, 1, …, or by decreasing diagonal of H."""
    if order not in ORDERS:
        raise ValueError(f"an order is one of {', '.join(ORDERS)}, not {order!r}")
    diagonal = np.diag(h)
    return np.argsort({"index": 0 * diagonal, "activation": -diagonal}[order], kind="stable")


def gptq(weight: Array, h: Array, grid: Grid, per: Granularity, observer: str = "minmax",
         damping: float = 0.01, block: int = 128, order: str = "index") -> QuantizedTensor:
    """Quantize a layer's weight (outputs, inputs), from the Hessian h (inputs, inputs).

    `damping` is that of `inverse_root`, `order` one of ORDERS.  `block` columns share one late
    update (see the head); groups have blocks of their own.  Scales follow from the original
    weights.  But in index order, the scales of a group follow from its weights when it is rounded,
    as earlier columns have changed them.
    """
    turn = column_order(h, order)
    w, u = weight[:, turn].astype(np.float64), inverse_root(h[np.ix_(turn, turn)], damping)
    codes = np.empty_like(weight, dtype=grid.dtype)
    in_groups, in_order = per.kind == "group", order == "index"
    scale, zero = weight_qparams(per.split(weight), grid, observer)
    if in_groups:
        block = per.size if in_order else 1
    for start in range(0, w.shape[1], block):
        here = slice(start, start + block)
        columns = turn[here]
        if in_groups:
            group = columns[0] // per.size
            if in_order:
                scale[:, group], zero[:, group] = weight_qparams(w[:, here], grid, observer)
            fitted = scale[:, group, 0], zero[:, group, 0]
        else:
            fitted = scale[:, 0], zero[:, 0]        # one, or one for each output
        errors = round_columns(w[:, here], u[here, here], partial(_nearest, grid, fitted),
                               weight[:, columns] != 0)
        codes[:, columns] = grid.encode(w[:, here], *(a[:, None] for a in fitted))
        w[:, start + block:] -= errors @ u[here, start + block:]
    return QuantizedTensor.from_codes(codes, scale, zero, grid, per)
