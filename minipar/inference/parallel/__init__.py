"""One model on several ranks: every rank runs the same engine, and has a part of model and cache.

    tensor.py     heads and vocabulary over the ranks
    pipeline.py   layers over the ranks, as many microbatches as stages
    router.py     replicas of the model, each request on one of them

Read them in this order.
"""
