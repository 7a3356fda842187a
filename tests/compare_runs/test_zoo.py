"""The zoo: mistakes that stood in well-known systems, planted here; each is found and named.

With those of test_planted.py; the number after a system's name is that of its issue.
"""

import numpy as np

import minipar.autograd as ag
from minipar.autograd import Tensor
from minipar.comm.mesh import DeviceMesh
from minipar.nn import GPT, GPTConfig, MoEConfig
from minipar.nn.moe.router import Router
from minipar.parallel.context.mask import AttentionMask
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.tensor.layers import RowLinear
from minipar.parallel.tensor.vocabulary import VocabularyLoss, vocabulary_cross_entropy
from minipar.testing import find_difference
from tests.compare_runs.programs import BATCHES, CONFIG, compared

EXPERTS = GPTConfig(vocab_size=29, context=12, num_layers=1, num_heads=2, width=16,
                    experts=MoEConfig(4, top_k=2, balance_loss=0.1))


def planted(mesh, plant, config=CONFIG, steps=1):
    """The difference of a strategy on a mesh, after plant(strategy), from one process."""
    def plain(comm, dtype):
        return DistributedDataParallel(GPT(config).initialize(0, dtype), comm)

    def mine(comm, dtype):
        strategy = DistributedDataParallel(GPT(config).initialize(0, dtype),
                                           DeviceMesh(comm, **mesh))
        plant(strategy)
        return strategy
    num_ranks = int(np.prod([size for axis, size in mesh.items() if axis != "ep"]))
    return find_difference(plain, mine, BATCHES, ranks=(1, num_ranks), steps=steps, dtype="float64")


def assert_found(found, key, *words, ranks=(0, 1)):
    """The first wrong array, its ranks, and words of the cause."""
    assert found.verdict == "different" and found.first.key == key, str(found)
    assert found.first.ranks == ranks and all(word in found.cause for word in words), str(found)


class PaddedLoss(VocabularyLoss):
    def forward(self, logits, targets, loss_divisor=None, ignore_index=-100):
        columns = -(-self.vocab_size // self.tp.size)
        padding = np.eye(logits.shape[-1], columns, dtype=logits.dtype)
        return vocabulary_cross_entropy(ag.linear(logits, Tensor(padding)), targets, self.tp,
                                        columns * self.tp.size, loss_divisor, ignore_index)


def test_columns_of_padding_count_in_the_loss():
    """Megatron-LM 1754: a vocabulary that tp does not divide."""
    def plant(strategy):
        model = strategy.model
        model.cross_entropy = PaddedLoss.replacing(model.cross_entropy)
    found = planted({"tp": 2}, plant)
    assert_found(found, (0, "loss", "loss"), "the loss itself adds up other columns")


def test_the_order_of_tokens_is_forgotten_in_the_mask(monkeypatch):
    """slime 73: zig-zag order; the mask is that of pieces in a row."""
    tiles = AttentionMask.tiles

    def in_a_row(positions):
        return np.arange(len(positions)) + 6 * int(positions[0] // 3)

    def wrong(self, queries, keys):
        if len(queries) < 12:
            queries, keys = in_a_row(queries), in_a_row(keys)
        return tiles(self, queries, keys)
    monkeypatch.setattr(AttentionMask, "tiles", wrong)
    found = compared({"cp": 2})
    assert_found(found, (0, "forward", "h.0.attn.core"), "only tokens 3-11 of 12",
                 "up to h.0.attn.c_attn all agree")


class ExpertsTimesEp(DistributedDataParallel):
    def finish(self):
        super().finish()
        for slab in self.slabs:
            for segment in slab.segments:
                if ".experts." in segment.name:
                    slab.grad[segment.start:segment.stop] *= 2


def test_gradients_of_experts_are_multiplied_by_ep():
    """DeepSpeed 6545, PyTorch 160285: the ranks of ep have added them up already."""
    def plain(comm, dtype):
        return DistributedDataParallel(GPT(EXPERTS).initialize(0, dtype), comm)

    def mine(comm, dtype):
        return ExpertsTimesEp(GPT(EXPERTS).initialize(0, dtype), DeviceMesh(comm, dp=2, ep=2))
    found = find_difference(plain, mine, BATCHES, ranks=(1, 2), steps=1, dtype="float64")
    assert_found(found, (0, "gradient", "h.0.mlp.experts.c_fc.weight"), "all of it is 2 times",
                 "summed over ranks which all have it")


class LargerBalance(Router):
    def losses(self, routed, num_samples, step):
        return super().losses(routed, num_samples, step) * 2


def test_the_loss_of_the_router_is_multiplied_by_tp():
    """Megatron-LM 5047: the balance loss, once on each rank of tp."""
    def plant(strategy):
        layer = strategy.model.h[0].mlp
        layer.router = LargerBalance.replacing(layer.router)
    found = planted({"tp": 2}, plant, EXPERTS)
    assert_found(found, (0, "backward", "h.0.ln_2"), "up to h.0.mlp all agree",
                 "only h.0.mlp.router.weight differs: usually a loss of the router")


class FilledLate(DistributedDataParallel):
    def reduce(self, flat):
        self.straggler = [p for p in flat.parameters if p.grad is not None][-1]
        self.kept = self.straggler.grad.copy()
        self.straggler.grad[...] = 0
        return super().reduce(flat)

    def finish(self):
        super().finish()
        self.straggler.grad += self.kept


def test_a_bucket_is_reduced_before_it_is_full():
    """fairscale 780: a gradient arrives when its bucket is on its way."""
    found = compared({"dp": 2}, FilledLate)
    assert_found(found, (0, "gradient", "ln_f.bias"), "over dp is missing",
                 "it is the only one of 28")


def test_the_columns_of_q_k_and_v_are_cut_as_one():
    """DeepSpeed 3844: a fused matrix [q k v] has to be cut by heads in each of its three."""
    def plant(strategy):
        whole = GPT(CONFIG).initialize(0, "float64").h[0].attn.c_attn.weight.data
        mine = strategy.model.h[0].attn.c_attn.weight.data
        mine[...] = np.split(whole, 2, axis=1)[strategy.comm.rank]
    found = planted({"tp": 2}, plant)
    assert_found(found, (0, "initial", "h.0.attn.c_attn.weight"), "another order along its columns",
                 "32 of 48 are elsewhere")


def test_queries_and_keys_change_places_in_attention():
    """The columns are those of q, k and v; attention takes them for k, q and v."""
    def plant(strategy):
        def swapped(forward, qkv, *more, **options):
            q, k, v = (qkv[:, :, 8 * i:8 * (i + 1)] for i in range(3))
            return forward(ag.concatenate([k, q, v], axis=-1), *more, **options)
        strategy.model.h[0].attn.core.around(swapped)
    found = planted({"tp": 2}, plant)
    assert_found(found, (0, "forward", "h.0.attn.core"), "which columns are q, k and v",
                 "up to h.0.attn.c_attn all agree")


def test_positions_begin_anew_on_each_rank_of_cp():
    """Megatron-LM 560: each rank counts its own tokens from 0."""
    def plant(strategy):
        strategy.model.embed.positions.around(
            lambda forward, places: forward(np.arange(len(places))), inside=True)
    found = planted({"cp": 2}, plant)
    assert_found(found, (0, "forward", "drop"), "only tokens 3-11 of 12", "up to wte all agree")


class Float16Sums(DistributedDataParallel):
    def reduce(self, flat):
        flat.grad[...] = flat.grad.astype(np.float16)
        return super().reduce(flat)


def test_sums_of_float16_on_the_wire():
    """PyTorch 106395: gradients are sent in fewer bits than they are computed in."""
    found = compared({"dp": 2}, Float16Sums)
    assert_found(found, (0, "gradient", "wte.weight"), "as after rounding to float16")


class BiasOnEachRank(RowLinear):
    def forward(self, x):
        y = ag.linear(x, self.weight)
        return self.split.leave(y + self.bias)


def test_the_bias_of_a_row_parallel_layer_is_added_by_each_rank():
    """text-generation-inference 1036: the bias belongs after the sum."""
    def plant(strategy):
        mlp = strategy.model.h[0].mlp
        mlp.c_proj = BiasOnEachRank.replacing(mlp.c_proj)
    found = planted({"tp": 2}, plant, steps=2)
    assert_found(found, (1, "forward", "h.0.mlp.c_proj"), "every row is off by the same numbers",
                 "up to h.0.mlp.c_fc all agree")
