"""Selective recomputation: attention's probabilities alone are computed again in backward.

    block    x ─▶ q, k, v ─▶ softmax(q kᵀ) v ─▶ …
             kept           dropped           kept

It changes what happens inside a block, so it is no plan of whole parts (`plans.py`) and no policy
that makes one (`policies.py`).
"""

from ...nn import GPT
from .recompute import checkpoint


def rematerialize_attention(model: GPT) -> GPT:
    """Change `model` so that it recomputes only attention's probabilities; return it.

    Selective recomputation of Korthikanti et al. 2022, section 5: much memory, few FLOPs.
    """
    for block in model.h:
        block.attn.core.around(checkpoint)
    return model
