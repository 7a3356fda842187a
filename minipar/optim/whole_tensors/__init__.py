"""Optimizers that see whole tensors; a rank may have a part of a tensor, or none.

    muon            Muon: orthogonalized momentum
    newton_schulz   its orthogonalization
    layerwise       base of LAMB and LARS: steps scaled by the norms of whole tensors
    lamb, lars      LAMB and LARS
    exchange        bring matrices that are cut over ranks together on one rank each
    runs            neighbouring parameters of a slab, with states of their own

`OPTIMIZERS` in `optim/registry.py` has them by name.
"""
