"""Inference on several ranks: parts of one model, or replicas of it.

    tensor.py     heads and vocabulary over the ranks
    pipeline.py   layers over the ranks, as many microbatches as stages
    router.py     replicas of the model, each request on one of them

Read them in this order.
"""
