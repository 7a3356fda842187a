"""Selective recomputation: backward computes only attention's probabilities again.

    block    x ─▶ q, k, v ─▶ softmax(q kᵀ) v ─▶ …
             kept           dropped           kept

This changes what happens inside a block.  So it is neither a plan of whole parts (`plans.py`) nor a
policy that makes one (`policies.py`).
"""

from ...nn import GPT
from .recompute import checkpoint


def rematerialize_attention(model: GPT) -> GPT:
    """Change `model` so that it recomputes only attention's probabilities; return it.

    This is the selective recomputation of Korthikanti et al. 2022, section 5: it saves much memory
    for few FLOPs.
    """
    for block in model.h:
        block.attn.core.around(checkpoint)
    return model
