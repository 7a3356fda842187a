"""Activation memory by formula: bytes that a transformer layer keeps for backward, on each rank.

b samples of t tokens, width d, h heads, p ranks; numbers of elements, masks of 1 byte apart:

                               none      tensor      sequence     of the paper's 34 bytes (fp16)
    norms: unit rows, scales   2btd+2bt  whole       1/p           4
    taken by column layers     2btd      whole       whole or 1/p  4    (of attention, of the MLP)
    q, k, v                    3btd      1/p         1/p           6
    probabilities              b h t²/2  1/p         1/p           5 h t / d, with dropout, no half
    taken by row layers        btd+4btd  1/p         1/p          10
    slope of gelu              4btd      1/p         1/p           8    (there its input)
    dropout's masks, bytes     2btd      whole       1/p           2

minipar keeps 16 btd elements, and the paper's 34 bytes are (34 - 2)/2 = 16 elements too.  Three
things differ.  An element has 4 bytes, since NumPy computes no faster in fewer.  The causal half of
the probabilities that a block of queries cannot see is not kept.  And attention's dropout keeps its
mask, but not the probabilities after it, which are one multiplication away (5 bytes in the paper:
2 + 1 + 2).

Selective rematerialization drops the probabilities and their mask; full rematerialization keeps
only the input of a layer.

With context parallelism over c ranks t is t/c throughout.  Attention computes its probabilities
again, block by block, and keeps one number a query instead: the logarithm of its softmax's
denominator.  Korthikanti et al. 2022 (arXiv 2205.05198), section 4, table 2.
"""

from ..autograd.ops.attention import QUERIES
from ..nn import GPTConfig

PARALLEL = ("tensor", "sequence", "gathered again")     # as parallelize(model, tp, …) makes them
REMAT = ("none", "selective", "full")
OF_GPT_2 = ("norm", "mlp", "rope", "experts", "head_width", "mlp_width")    # as by default, here


def visible_pairs(time: int) -> int:
    """Pairs of a query and a key that causal attention computes and keeps: little over t²/2."""
    ends = [min(time, start + QUERIES) for start in range(0, time, QUERIES)]
    return sum(end * (end - start) for start, end in zip([0, *ends], ends))


def layer_activations(config: GPTConfig, batch: int, tp: int = 1, parallel: str = "tensor",
                      remat: str = "none", itemsize: int = 4, cp: int = 1,
                      ulysses: int = 1) -> dict[str, int]:
    """Bytes that one layer keeps on one of tp · cp ranks from its forward to its backward, by what.

    `config.dropout` says whether masks are among them.  With cp > 1 attention goes block by block,
    after an exchange of heads on `ulysses` of the cp ranks.  Raises ValueError for unknown names,
    for layers of a different kind than GPT-2's, and for a context that cp does not divide.
    """
    for name in OF_GPT_2:
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
    repeated = ulysses * tp if remat == "none" else 1       # heads of keys, for as many ranks
    kv_width = max(config.num_kv_heads or heads, repeated) * (d // heads)
    between = tp if parallel != "tensor" else 1         # ranks that share the tokens there
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
    """Bytes that wait for backward in one process.

    They are the activations of all layers, the token ids (8 bytes each), and the mask of the
    embedding's dropout.  Then come the final norm, the input of the head, and the gradient of the
    logits.
    """
    n, d = batch * config.context, config.width
    ends = itemsize * (2 * n * d + n + n * config.vocab_size) + 8 * n
    return (config.num_layers * sum(layer_activations(config, batch, itemsize=itemsize).values())
            + ends + (n * d if config.dropout else 0))
