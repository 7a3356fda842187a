"""Inference: a trained model answers many requests at once.

    generate.py         one prompt, without an engine: begin here
    scheduling/         blocks of the cache, requests, continuous batching; no arrays
    cache/              keys and values as arrays, paged attention
    model/              one step of a GPT over a cache
    sampling/           from logits to the next token
    model_runner.py     one step with arrays: move blocks, run the model, draw tokens
    engine.py           submit, step, stream, cancel
    engine_metrics.py   times of requests, waste, hits, preemptions
    parallel/           one engine over tensor or pipeline ranks; replicas behind a router
    arrivals.py         requests that arrive at random times

Read them in this order; the head of each folder's __init__.py gives the order of its files.  The
engine follows vLLM (Kwon et al. 2023).
"""

from .engine import Engine, Generation
from .generate import generate
from .model_runner import ModelRunner
from .sampling import SamplingParams
from .scheduling import RequestTooLarge, SchedulerConfig

__all__ = ["Engine", "Generation", "ModelRunner", "RequestTooLarge", "SamplingParams",
           "SchedulerConfig", "generate"]
