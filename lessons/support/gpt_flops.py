"""Lesson 00: the exact FLOPs of one step of a GPT, predicted by kind of operation.

b sequences of t tokens, width d, h heads, L layers, V tokens in the vocabulary.
"""

from minipar.autograd import Meter
from minipar.autograd.ops.attention import QUERIES
from minipar.nn import GPTConfig
from minipar.parallel.cost.activations import visible_pairs

# Kinds in the lesson's table, and the meter's names of their operations.
KINDS = {"linear layers": ("Linear",), "attention": ("FusedAttention",),
         "layer norms, GELU, sums": ("LayerNorm", "Gelu", "Add", "Embedding"),
         "loss": ("CrossEntropy",)}


def predict_flops(config: GPTConfig, batch: int) -> dict[str, int]:
    """FLOPs of forward and backward, by kind (KINDS), of `batch` whole sequences.

    A linear layer multiplies a token by its weights once forward and twice backward, for dx and dw.
    That is 6 FLOPs a weight, with 12 d² weights in a layer and V d in the head.  Biases, 9 d a
    layer, are added forward and their gradients summed backward.
    """
    t, d, layers, vocabulary = config.context, config.width, config.num_layers, config.vocab_size
    n = batch * t
    return {
        "linear layers": n * (6 * (12 * layers * d * d + vocabulary * d) + 2 * 9 * layers * d),
        "attention": batch * layers * attention_flops(t, d, config.num_heads),
        "layer norms, GELU, sums": (
            n * (2 * layers + 1) * (18 * d + 7)             # layer norms: 2 a layer, and the last
            + n * layers * (15 * 4 * d + 2 * d)             # GELU on 4 d, two residual sums
            + n * 3 * d),       # tokens + positions, and the gradients of both tables
        "loss": n * (6 * vocabulary + 8) + 1}


def attention_flops(t: int, d: int, num_heads: int) -> int:
    """FLOPs of causal attention of one sequence, forward and backward.

    A pair of a query and a key costs 6 products of d / h numbers in each head, 12 d FLOPs in all.
    Each head's softmax adds 10.  Only the pairs in blocks that a query may see are computed.
    """
    pairs = visible_pairs(t)
    ends = [min(t, start + QUERIES) for start in range(0, t, QUERIES)]
    masked = sum((end - start)**2 for start, end in zip([0, *ends], ends))      # the triangles
    return pairs * (12 * d + 10 * num_heads) + num_heads * masked + t * d + 2 * d * (sum(ends) - t)


def count_flops(meter: Meter) -> dict[str, int]:
    """The FLOPs that a meter counted, by kind."""
    return {kind: meter.total_flops(names=names) for kind, names in KINDS.items()}
