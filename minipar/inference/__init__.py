"""Inference: a trained model answers many requests at once.

    generate.py   one prompt, without an engine: begin here
    scheduling/   blocks of the cache, requests, continuous batching; no arrays
    cache/        keys and values as arrays, paged attention, a step of the model over them
    sampling/     from logits to the next token
    runner.py     a step with its arrays: cache, model, draws
    engine.py     submit, step, stream, cancel
    metrics.py    times of requests, waste, hits, preemptions
    parallel/     the same over tensor and pipeline ranks; replicas behind a router
    compressed.py weights and cache of fewer bits: bytes and errors
    simulated_load.py   requests by chance in virtual time, without a model

Read them in this order; each folder says its own.  Kwon et al. 2023 (vLLM) is the paper.
"""

from .engine import Engine, Generation
from .generate import generate
from .runner import ModelRunner
from .sampling import SamplingParams
from .scheduling import RequestTooLarge, SchedulerConfig

__all__ = ["Engine", "Generation", "ModelRunner", "RequestTooLarge", "SamplingParams",
           "SchedulerConfig", "generate"]
