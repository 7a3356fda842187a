"""Activation memory by formula: bytes that a transformer layer keeps for backward, on each rank.

b samples of t tokens, width d, h heads, p ranks of tp.  The table counts elements; a dropout mask
has 1 byte for each of its elements:

                               one rank  tensor      sequence     of the paper's 34 bytes (fp16)
    norms: unit rows, scales   2btd+2bt  whole       1/p           4
    taken by column layers     2btd      whole       whole or 1/p  4    (of attention, of the MLP)
    q, k, v                    3btd      1/p         1/p           6
    probabilities              b h t²/2  1/p         1/p           5 h t / d more, dropout included
    taken by row layers        btd+4btd  1/p         1/p          10
    slope of gelu              4btd      1/p         1/p           8    (the paper: gelu's input)
    dropout's masks, bytes     2btd      whole       1/p           2

Beside probabilities, minipar keeps 16 btd elements (and 2bt scales), and the paper's 34 bytes are
(34 - 2)/2 = 16 elements too.  Three sizes differ.  minipar's element has 4 bytes by default, since
NumPy computes no faster with 2.  minipar keeps about half of the probabilities: those of the keys
that a block of queries can see.  And attention's dropout keeps its mask (b h t² bytes), but not the
probabilities after it, which are one multiplication away (5 bytes in the paper: 2 + 1 + 2).

Selective rematerialization drops the probabilities and their mask; full rematerialization keeps
only the input of a layer.

With context parallelism over c ranks, t/c takes the place of t, except in the mask of attention's
dropout, which has t²/c elements for each head.  Attention computes its probabilities again, block
by block.  It keeps one number for each query instead: the logarithm of its softmax's denominator.
Korthikanti et al. 2022 (arXiv 2205.05198), section 4, table 2.
"""

from ...autograd.ops.attention import QUERIES
from ...nn import GPTConfig

PARALLEL = ("tensor", "sequence", "gathered again")     # as parallelize(model, tp, …) makes them
REMAT = ("none", "selective", "full")
GPT_2_FIELDS = ("norm", "mlp", "rope", "experts", "head_width", "mlp_width")    # keep the defaults


def visible_pairs(time: int) -> int:
    """The number of (query, key) pairs that causal attention computes and keeps for t tokens.

    A block of 64 queries takes all keys up to its end: t (t + 64)/2 pairs if 64 divides t.
    """
    ends = [min(time, start + QUERIES) for start in range(0, time, QUERIES)]
    return sum(end * (end - start) for start, end in zip([0, *ends], ends))


def layer_activations(config: GPTConfig, batch: int, tp: int = 1, parallel: str = "tensor",
                      remat: str = "none", itemsize: int = 4, cp: int = 1,
                      ulysses: int = 1) -> dict[str, int]:
    """Bytes that one layer keeps on one of tp · cp ranks from its forward to its backward, by name.

    With `config.dropout`, dropout masks are among them.  With cp > 1 attention goes block by block;
    with `ulysses` > 1, groups of that many of the cp ranks exchange heads before.  Raises
    ValueError for unknown names, for layers of a different kind than GPT-2's, and for a context
    that cp does not divide.
    """
    for name in GPT_2_FIELDS:
        if getattr(config, name) != getattr(GPTConfig, name):
            raise ValueError(f"{name} is {getattr(config, name)}, but these are the formulas of "
                             "GPT-2's layers: leave it out")
    for what, value, known in (("parallel", parallel, PARALLEL), ("remat", remat, REMAT)):
        if value not in known:
            raise ValueError(f"unknown {what} {value!r}: choose from {', '.join(known)}")
    if config.context % cp:
        raise ValueError(f"cp = {cp} does not divide a context of {config.context}: its ranks keep "
                         "different numbers of tokens; choose a multiple")
    b, t, d, heads = batch, config.context // cp, config.width, config.num_heads
    # Each rank of ulysses and tp keeps a head of keys; with remat, backward repeats heads again.
    repeated = ulysses * tp if remat == "none" else 1
    kv_width = max(config.num_kv_heads or heads, repeated) * (d // heads)
    between = tp if parallel != "tensor" else 1     # ranks that share the tokens of norms, dropout
    if remat == "full":
        return {"input": itemsize * b * t * d // between}
    columns = tp if parallel == "gathered again" else 1
    masks = 1 if config.dropout else 0
    kept = {"norms": itemsize * (2 * b * t * d + 2 * b * t) // between,
            "taken by column layers": itemsize * 2 * b * t * d // columns,
            "q, k, v": itemsize * b * t * (d + 2 * kv_width) // tp,
            "probabilities": itemsize * b * heads * visible_pairs(t) // tp,
            "their dropout mask": masks * b * heads * t * config.context // tp,
            "taken by row layers": itemsize * 5 * b * t * d // tp,
            "slope of gelu": itemsize * 4 * b * t * d // tp,
            "dropout masks": masks * 2 * b * t * d // between}
    if cp > 1:
        del kept["probabilities"]
        kept["log-sum-exp"] = itemsize * b * heads * t // tp
    if ulysses > 1:
        kept["results before the exchange"] = itemsize * b * t * d // tp
    if remat == "selective":
        for name in ("probabilities", "their dropout mask", "log-sum-exp",
                     "results before the exchange"):
            kept.pop(name, None)
    return kept


def gpt_activations(config: GPTConfig, batch: int, itemsize: int = 4) -> int:
    """Bytes that a whole GPT keeps for backward in one process.

    They are the activations of all layers, the token ids (8 bytes each), and the mask of the
    embedding's dropout.  At the end of the model, the final norm, the input of the head and the
    gradient of the logits are added.
    """
    n, d = batch * config.context, config.width
    ends = itemsize * (2 * n * d + n + n * config.vocab_size) + 8 * n
    return (config.num_layers * sum(layer_activations(config, batch, itemsize=itemsize).values())
            + ends + (n * d if config.dropout else 0))
