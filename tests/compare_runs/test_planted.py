"""Planted mistakes: the first wrong array, its ranks and the kind of difference are named."""

import numpy as np
import pytest

from minipar.optim import AdamW
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.tensor.layers import TensorSplit
from minipar.parallel.tensor.sequence import SequenceSplit
from minipar.parallel.zero.zero1 import ZeRO1
from minipar.parallel.zero.zero2 import ZeRO2
from minipar.testing import find_difference
from tests.compare_runs.programs import BATCHES, compared, on_mesh, plain


class NoReduction(DistributedDataParallel):
    def reduce(self, flat):
        flat.fill_missing()


class LargerLoss(DistributedDataParallel):
    """torchtitan 2972, 1732: gradients are scaled otherwise with a pipeline than without."""

    def run_batch(self, microbatches, loss_divisor, seed=0, step=0):
        return super().run_batch(microbatches, loss_divisor / len(microbatches), seed, step)


class TiedTwice(DistributedDataParallel):
    """Megatron-LM 844: the sum over the stages that share an embedding is wrong."""

    def shared_gradients(self):
        for among, gradient in super().shared_gradients():
            if among.rank == 0:
                gradient *= 2
            yield among, gradient


class LocalNorm(ZeRO1):
    """PyTorch 170862, torchtitan 596: the norm is that of this rank's part."""

    def clip_grad_norm(self, max_norm):
        for slab in self.slabs:
            slab.norm_comm = None
        return super().clip_grad_norm(max_norm)


class LastMicrobatch(ZeRO2):
    """DeepSpeed 7718, open-instruct 1498: earlier microbatches are overwritten."""

    def reduce(self, flat):
        self.piece_of[flat].has_grad = False
        super().reduce(flat)


class NotGathered(ZeRO1):
    def parameters_changed(self):
        pass


class OtherSeed(DistributedDataParallel):
    """InternLM 405: ranks that hold the same activations draw different masks."""

    def run_batch(self, microbatches, loss_divisor, seed=0, step=0):
        return super().run_batch(microbatches, loss_divisor, seed + self.dp.rank, step)


class NaN(DistributedDataParallel):
    def finish(self):
        super().finish()
        if self.comm.rank == 1:
            self.slabs[0].grad[-1] = np.nan


CASES = {   # mesh, strategy, microbatches; the first wrong array, its ranks, words of the cause
    "no reduction": ({"dp": 2}, NoReduction, 1, (0, "gradient", "wte.weight"), (0, 1),
                     ["whose sum is right", "over dp is missing"]),
    "loss × microbatches": ({"pp": 2}, LargerLoss, 3, (0, "loss", "loss"), (0, 1),
                            ["3 times as large (microbatches)"]),
    "tied twice": ({"pp": 2}, TiedTwice, 2, (0, "gradient", "wte.weight"), (0, 1),
                   ["2 × that of rows 0-2, stage 0", "the only one of 28", "tied weights"]),
    "local norm": ({"dp": 2}, LocalNorm, 1, (0, "norm", "norm"), (0, 1),
                   ["all gradients agree", "own part"]),
    "last microbatch": ({"dp": 2}, LastMicrobatch, 2, (0, "gradient", "wte.weight"), (0,),
                        ["only the last microbatch"]),
    "not gathered": ({"dp": 2}, NotGathered, 1, (0, "parameter", "wte.weight"), (1,),
                     ["as before the step"]),
    "another seed": ({"dp": 2}, OtherSeed, 1, (0, "forward", "drop"), (1,),
                     ["another dropout mask"]),
    "no number": ({"dp": 2}, NaN, 1, None, (1,), ["1 of", "no numbers"]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_planted_mistake_is_named(name):
    mesh, kind, microbatches, key, ranks, words = CASES[name]
    found = compared(mesh, kind, microbatches)
    assert found.verdict == "different" and found.first.ranks == ranks, str(found)
    assert key is None or found.first.key == key, str(found)
    assert all(word in found.cause for word in words), found.cause


def test_a_forgotten_copy_to_is_missing_before_the_column_layer(monkeypatch):
    """SkyRL 1886: the gradient of the input is not summed over tp."""
    monkeypatch.setattr(TensorSplit, "enter", lambda self, x: x)
    found = compared({"tp": 2})
    assert found.first.key == (0, "backward", "ln_f") and found.first.ranks == (0, 1)
    assert "over tp is missing" in found.cause and "up to head all agree" in found.cause


def test_a_norm_that_is_not_summed_under_sequence_parallelism(monkeypatch):
    """Megatron-LM 1446, gpt-neox 1259: each rank of tp sees the gradient of its tokens."""
    monkeypatch.setattr(SequenceSplit, "shared", lambda self, weight: weight)
    found = compared({"tp": 2}, sequence_parallel=True)
    assert found.first.key[:2] == (0, "local gradient") and "ln_f" in found.first.key[2]
    assert "over tp is missing" in found.cause


def test_weight_decay_that_is_applied_twice_on_one_rank():
    """pytorch-image-models 2750: once for each group of parameters."""
    class Twice(AdamW):
        def step(self):
            super().step()
            for slab in self.slabs:
                slab.data *= 1 - self.lr * 0.1

    def mine(comm, dtype):
        strategy = right(comm, dtype)
        kind = Twice if comm.rank == 1 else AdamW
        return strategy, kind(strategy.slabs, lr=1e-3, weight_decay=0.1)
    right, _ = on_mesh({"dp": 2}, ZeRO1)
    found = find_difference(plain, mine, BATCHES, ranks=(1, 2), dtype="float64", steps=1)
    assert found.first.key[1] == "parameter" and "weight decay is applied twice" in found.cause


def test_weight_decay_that_one_rank_leaves_out():
    def mine(comm, dtype):
        strategy = right(comm, dtype)
        return strategy, AdamW(strategy.slabs, lr=1e-3, weight_decay=0.1 * (comm.rank == 0))

    right, _ = on_mesh({"dp": 2}, ZeRO1)
    found = find_difference(plain, mine, BATCHES, ranks=(1, 2), dtype="float64", steps=1)
    assert "takes 0.0001 × the parameter too little away: is there no decay?" in found.cause


def test_the_first_step_that_is_different_ends_the_comparison():
    class Late(DistributedDataParallel):
        def parameters_changed(self):
            self.steps = getattr(self, "steps", 0) + 1
            if self.steps == 2 and self.comm.rank == 1:
                self.slabs[0].data += 1e-6
            super().parameters_changed()
    found = compared({"dp": 2}, Late, steps=4)
    assert found.first.key[:2] == (1, "parameter") and found.first.ranks == (1,)
    assert max(gap.key[0] for gap in found.gaps) == 1


