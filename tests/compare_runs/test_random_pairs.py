"""Random pairs of correct layouts: equal in float64, and apart by rounding in fewer bits.

`make test-all` tries 200 pairs.
"""

import numpy as np
import pytest

from minipar.comm.mesh import DeviceMesh
from minipar.data.batches import TextBatches
from minipar.mixed_precision.policy import BF16
from minipar.mixed_precision.set_precision import set_precision
from minipar.nn import GPT, GPTConfig, RopeConfig
from minipar.parallel.registry import make_strategy
from minipar.testing import find_difference
from tests.support.sweeps import every

KINDS = ["ddp", "zero1", "zero2", "fsdp", "zero3"]
SCHEDULES = ["gpipe", "1f1b", "zb_h1"]


def layout(draw):
    """Sizes of a mesh of at most 8 ranks, a kind and its options."""
    sizes = {axis: int(draw.choice([1, 1, 2, 3] if axis == "dp" else [1, 1, 2]))
             for axis in ("dp", "tp", "pp", "cp")}
    while np.prod([*sizes.values()]) > 8:
        sizes[draw.choice([axis for axis in sizes if sizes[axis] > 1])] = 1
    options = {}
    if sizes["pp"] > 1:
        options["schedule"] = str(draw.choice(SCHEDULES))
    if sizes["tp"] > 1 and draw.integers(2):
        options["sequence_parallel"] = True
    return sizes, str(draw.choice(KINDS)), options


def program(config, dtype, sizes, kind, options):
    """A strategy on a mesh; in bfloat16 by mixed precision."""
    def main(comm, asked):
        model = GPT(config).initialize(0, "float32" if asked == "bfloat16" else asked)
        if asked == "bfloat16":
            set_precision(model, BF16)
        return make_strategy(kind, model, DeviceMesh(comm, **sizes), **options)
    return main


@pytest.mark.parametrize("seed", every(50, range(200)))
@pytest.mark.one_in(4)
def test_a_correct_pair_is_no_alarm(seed):
    draw = np.random.default_rng(seed)
    dtype = ("float64", "float32", "bfloat16")[seed % 3]
    llama = {"norm": "rms", "mlp": "swiglu", "bias": False, "tied": False,
             "rope": RopeConfig(100.0)} if draw.integers(2) else {}
    config = GPTConfig(vocab_size=int(draw.integers(20, 40)), context=12, num_layers=2,
                       num_heads=2, width=16, dropout=float(draw.choice([0, 0.2])), **llama)
    batches = TextBatches(draw.integers(0, config.vocab_size, 300), 12, 8, seed=seed)
    left, right = ({"dp": 1}, "ddp", {}) if draw.integers(2) else layout(draw), layout(draw)
    # as many microbatches of the same rows: their masks of dropout are those of the samples
    ranks = tuple(int(np.prod([*side[0].values()])) for side in (left, right))
    microbatches = tuple(int(draw.integers(1, 4)) if side[0].get("pp", 1) == 1 else 2
                         for side in (left, right))
    found = find_difference(program(config, dtype, *left), program(config, dtype, *right), batches,
                            ranks=ranks, steps=2, microbatches=microbatches, dtype=dtype, seed=seed)
    expected = "equal" if dtype == "float64" else "rounding"
    assert found.verdict == expected, f"{left} {right} {microbatches} {dtype}: {found}"
