"""Inference on several ranks: parts of one model, replicas of it, or both.

    tensor_runner.py     heads and vocabulary over the ranks
    logprob_messages.py  log-probabilities as numbers, to be sent
    pipeline_stage.py    this rank's layers
    pipeline_engine.py   layers over the ranks, as many groups of requests as stages
    replica_router.py    replicas of the model, each request on one of them
    scoring.py           the log-probabilities of a given text

Read them in this order.
"""
