"""A step of minipar itself by formulas: the software `minipar` of a cluster, as `h100/minipar`.

    layer       seconds and bytes of a layer: minipar's operations and messages
    parts       the model's chain, and how minipar cuts it into stages
    memory      bytes of the fullest rank
    reductions  what gradients and gathered weights add to a step
    step        seconds of a step, by part

Clusters with any other software, such as Megatron-LM's, have the formulas of `plan/time/` and
`plan/memory.py`, since that software cuts, keeps and overlaps in other ways.  These formulas
predict what `minipar simulate` runs (docs/pages/simulating.md compares both).
"""
