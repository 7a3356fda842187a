"""Optimizers that see whole tensors; a rank may have a part of a tensor, or none.

    muon            Muon: orthogonalized momentum
    newton_schulz   its orthogonalization
    layerwise       steps fitted to the norms of whole tensors
    lamb, lars      LAMB and LARS, which do so
    exchange        bring matrices that are cut over ranks together on one rank each
    runs            neighbouring parameters of a slab, with states of their own

`OPTIMIZERS` in `optim/registry.py` has them by name.
"""
