"""Pruning: set the least important weights to 0, or remove whole neurons and heads.

    saliency.py           a score for every weight: magnitude, random, Taylor
    prune.py              masks without the lowest scores, global or per layer
    two_of_four.py        2 of every 4 weights: the masks, and a layer that stores them packed
    distributed_topk.py   the k lowest scores over all ranks, exactly, without collecting them
    masks.py              Masks: masked weights at each use, also of sharded models
    sparsity_schedule.py  when to prune: gradually, along a cubic
    structured.py         scores and masks of whole neurons and heads
    shrink.py             remove dead neurons and heads: a smaller dense model
    sparse.py             sparse storage and sparse products for inference
    serialization.py      pruned models in checkpoints

A mask is a boolean array of a weight's shape: True where the weight is kept.
"""
