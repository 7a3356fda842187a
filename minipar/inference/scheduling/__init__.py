"""Scheduling: the requests that compute in each step, and their blocks; no arrays, no model.

    block_pool.py        free blocks, how many sequences use each block, the cache of prefixes
    block_table.py       a sequence's tokens and block table; copy-on-write, fork, rewind
    request.py           a prompt and the sequences that answer it
    scheduler_config.py  sizes and rules: Policy, Preemption
    step.py              what the scheduler decides for one step
    scheduler.py         continuous batching: admit, run, preempt
    scripted_requests.py requests with given answers, played without a model (`minipar replay`)
    fragmentation.py     contiguous stretches against blocks: how much of a pool each wastes

Read them in this order.
"""

from .block_pool import BlockPool, OutOfBlocks, blocks_for, prefix_keys
from .block_table import CachedSequence
from .request import Request
from .scheduler import Scheduler
from .scheduler_config import Policy, Preemption, RequestTooLarge, SchedulerConfig
from .step import Scheduled, ScheduledStep

__all__ = ["BlockPool", "CachedSequence", "OutOfBlocks", "Policy", "Preemption", "Request",
           "RequestTooLarge", "Scheduled", "Scheduler", "SchedulerConfig", "ScheduledStep",
           "blocks_for", "prefix_keys"]
