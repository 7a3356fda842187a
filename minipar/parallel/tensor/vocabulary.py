"""A vocabulary cut over the ranks: the embedding, and a cross-entropy that never gathers logits.

    table      rank 0: tokens 0 … 5     rank 1: tokens 6 … 10        chunk_bounds: uneven is fine
    embedding  the ranks that lack a token give zeros; the sum over the ranks is its row
    loss       −ln softmax(z)ₜ = ln Σ exp(z − m) − (zₜ − m)

The loss takes three all-reduces of one number a token: the maximum m, the target's z − m and the
sum of exponentials.  An all-gather would bring all V logits of a token to each rank.  Shoeybi et
al. 2019 (Megatron-LM), section 3.
"""

from typing import Any

import numpy as np

from ...autograd import IGNORE_INDEX, Function, Tensor, count_targets, linear
from ...autograd.ops.attention import MASKED
from ...autograd.ops.cross_entropy import scaled
from ...backend import Array, as_rows, check_ids, keep_where, row_sum, scatter_add
from ...comm import Communicator
from ...comm.collectives import all_reduce, chunk_bounds
from ...nn import Embedding
from ...nn.gpt import Head
from ...nn.layers import CrossEntropy
from .layers import TensorSplit
from .packed_weights import kind_like


class PartialEmbedding(Function):
    """Rows of a table of the tokens from `start` on, zeros for tokens that are elsewhere."""

    expects = "a table (rows, width) and an array of token numbers"

    @staticmethod
    def flops(ctx, out, table, ids):
        return 0, [out.size, 0]

    @staticmethod
    def forward(ctx, table, ids, start, vocab_size):
        check_ids(ids, vocab_size, "ids")
        ids = ids - start
        here = (ids >= 0) & (ids < table.shape[0])
        ids = np.where(here, ids, 0)
        ctx.save(ids, here)
        ctx.shape = table.shape
        return keep_where(here[..., None], np.take(table, ids, axis=0))

    @staticmethod
    def backward(ctx, g):
        (ids, here), shape = ctx.saved, ctx.shape
        return [lambda: scatter_add(as_rows(keep_where(here()[..., None], g)), ids().reshape(-1),
                                    shape), None]


class VocabularyCrossEntropy(Function):
    """Σ -ln softmax(logits)[target] / loss_divisor, of logits cut along their last axis.

    Saves this rank's columns of dlogits = (softmax - one-hot) / loss_divisor.
    """

    expects = "logits (..., this rank's classes) and integer targets (...)"
    metered = False     # it waits for other ranks: its own 6 FLOPs a logit are not reported

    @staticmethod
    def forward(ctx, logits, targets, comm, bounds, num_classes, loss_divisor, ignore_index):
        start, stop = bounds
        if targets.shape != logits.shape[:-1] or targets.dtype.kind not in "iu":
            raise ValueError("targets are one class number for each row of logits")
        if logits.shape[-1] != stop - start:
            raise ValueError(f"the logits of this rank have {logits.shape[-1]} columns, its piece "
                             f"is {start} … {stop - 1}")
        ctx.comm = comm
        d, targets = as_rows(logits), targets.reshape(-1, 1)
        counts = targets != ignore_index
        d = np.where(counts, d, 0)                                  # what is ignored may be NaN
        classes = np.arange(start, stop, like=d)
        d = np.where(classes < num_classes, d, MASKED)              # so may padding
        check_ids(np.where(counts, targets, 0), num_classes, "targets")
        here = counts & (targets >= start) & (targets < stop)
        own = np.where(here, targets - start, 0)
        d -= all_reduce(comm, np.max(d, axis=-1, keepdims=True), "max", "ring")
        mine = np.where(here, np.take_along_axis(d, own, axis=-1), 0)      # elsewhere d may be -inf
        at_target = all_reduce(comm, mine, "sum", "ring")
        np.exp(d, out=d)
        total = all_reduce(comm, row_sum(d), "sum", "ring")
        if ctx.needs_grad[0]:
            d *= counts / (total * loss_divisor)
            at_own = np.take_along_axis(d, own, axis=-1)
            np.put_along_axis(d, own, at_own - here / loss_divisor, axis=-1)
            ctx.save(d.reshape(logits.shape))
        return np.sum((np.log(total) - at_target) * counts) / loss_divisor

    @staticmethod
    def backward(ctx, g):
        (dlogits,) = ctx.saved
        return [lambda: scaled(dlogits(), g), None]


class VocabularyEmbedding(Embedding):
    """An embedding cut along the vocabulary: every rank has the rows of some tokens."""

    split: TensorSplit
    vocab_size: int
    bounds: tuple[int, int]         # of this rank's tokens

    def forward(self, ids: Array) -> Tensor:
        """Ids (…) → their rows (…, width)."""
        start = self.bounds[0]
        mine = PartialEmbedding.apply(self.weight, Tensor(ids), start=start,
                                      vocab_size=self.vocab_size)
        return self.split.leave(mine)


def split_vocabulary(embedding: Embedding, split: TensorSplit) -> VocabularyEmbedding:
    """An embedding for the place of `embedding`, cut by its rows.

    Raises ValueError if there are fewer rows than ranks.
    """
    vocab_size, tp = embedding._parameters["weight"].shape[0], split.tp
    if vocab_size < tp.size:
        raise ValueError(f"a vocabulary of {vocab_size} tokens leaves some of {tp.size} ranks "
                         f"without any: choose tp of at most {vocab_size}")
    split.shard(embedding._parameters["weight"], 0)
    return kind_like(embedding, VocabularyEmbedding).replacing(
        embedding, split=split, vocab_size=vocab_size,
        bounds=chunk_bounds(vocab_size, tp.size)[tp.rank])


class VocabularyHead(Head):
    """A head tied to an embedding that is cut along the vocabulary: this rank's columns."""

    split: TensorSplit

    def forward(self, x: Tensor) -> Tensor:
        """x (b, t, d) → the logits (b, t, V/p) of this rank's tokens."""
        return linear(self.split.enter(self.ln_f(x)), self.wte.weight.T)


class VocabularyLoss(CrossEntropy):
    """The loss of this rank's columns of the logits, the same on every rank."""

    tp: Communicator
    vocab_size: int

    def forward(self, logits: Tensor, targets: Array, *options: Any) -> Tensor:
        """The loss, as CrossEntropy computes it."""
        return vocabulary_cross_entropy(logits, targets, self.tp, self.vocab_size, *options)


def vocabulary_cross_entropy(logits: Tensor, targets: Array, comm: Communicator, total: int,
                             loss_divisor: float | None = None,
                             ignore_index: int = IGNORE_INDEX,
                             num_classes: int | None = None) -> Tensor:
    """Mean negative log-likelihood in nats of targets (...), the same on every rank.

    `logits` (..., n) are this rank's columns, by `chunk_bounds`, of `total`.  If `num_classes` is
    given, only the first `num_classes` of all columns count.  The others are padding, for instance
    of a vocabulary rounded up to a convenient size.  `loss_divisor` and `ignore_index` are as in
    `autograd.cross_entropy`.
    """
    if loss_divisor is None:
        loss_divisor = count_targets(targets, ignore_index) or 1
    return VocabularyCrossEntropy.apply(
        logits, targets, comm=comm, bounds=chunk_bounds(total, comm.size)[comm.rank],
        num_classes=num_classes or total, loss_divisor=float(loss_divisor),
        ignore_index=ignore_index)
