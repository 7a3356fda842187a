"""Options that the commands of inference share: how tokens are drawn, what the engine may use."""

import argparse
import os

from ...inference import SamplingParams, SchedulerConfig
from ...inference.cache import CACHES, KVSizes
from ...inference.scheduling import Preemption
from ...inference.scheduling.scripted_requests import MOST
from ...launcher import UsageError
from ...serve.text_model import TextModel, default_blocks
from ...units import in_bytes


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the options of SamplingParams."""
    group = parser.add_argument_group("sampling, in the order in which it is applied")
    for name, kind, help in (
            ("repetition_penalty", float, "divide positive logits of tokens that occurred by this, "
             "multiply negative ones (1)"),
            ("presence_penalty", float, "subtract from the logits of tokens of the answer (0)"),
            ("frequency_penalty", float, "subtract for each time that a token is in the answer "
             "(0)"),
            ("temperature", float, "divide the logits by this; 0: the likeliest token (1)"),
            ("min_p", float, "keep tokens of at least this part of the largest probability (0)"),
            ("top_k", int, "keep the K likeliest tokens (all)"),
            ("top_p", float, "keep the likeliest tokens that reach this probability (1)"),
            ("seed", int, "of the draws: the same seed, the same text (0)")):
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, help=help,
                           default=getattr(SamplingParams, name),
                           metavar="X" if kind is float else "N")


def add_scheduling(parser: argparse.ArgumentParser) -> None:
    """Add the options of SchedulerConfig."""
    group = parser.add_argument_group("cache and scheduler")
    group.add_argument("--block-size", type=int, default=16, metavar="N",
                       help="tokens in a block of the cache (16)")
    group.add_argument("--blocks", type=int, metavar="N",
                       help="blocks of the cache (enough for 8 sequences of the whole context)")
    group.add_argument("--cache", choices=tuple(CACHES), default="full",
                       help="keys and values as the model computes them, or as 8-bit integers "
                            "(full)")
    group.add_argument("--token-budget", type=int, metavar="N",
                       help="tokens that a step computes at most (no limit)")
    group.add_argument("--max-requests", type=int, metavar="N",
                       help="requests that run at the same time (no limit)")
    group.add_argument("--prefix-caching", action="store_true",
                       help="keep the blocks of prompts, for prompts that begin alike")
    group.add_argument("--preempt-by", choices=tuple(map(str, Preemption)),
                       default=SchedulerConfig.preempt_by,
                       help="when blocks run short: compute again, or move to the host "
                            "(recompute)")


def sampling_of(options: argparse.Namespace) -> SamplingParams:
    """The SamplingParams that the options say.  Raises UsageError."""
    names = SamplingParams.__dataclass_fields__
    try:
        return SamplingParams(**{name: getattr(options, name) for name in names})
    except ValueError as error:
        raise UsageError(f"--{str(error).replace('_', '-', 1)}") from error


def scheduling_of(options: argparse.Namespace, text: TextModel) -> SchedulerConfig:
    """The SchedulerConfig that the options say.  Raises UsageError."""
    blocks = options.blocks if options.blocks is not None \
        else default_blocks(text.model, max(1, options.block_size), num_sequences=8)
    try:
        config = SchedulerConfig(blocks, options.block_size, options.token_budget,
                                 options.max_requests, options.prefix_caching, options.preempt_by)
    except ValueError as error:
        raise UsageError(f"--{str(error).removeprefix('num_').replace('_', '-', 1)}") from error
    check_memory(options, text, config)
    return config


def check_memory(options: argparse.Namespace, text: TextModel, config: SchedulerConfig) -> None:
    """Raise UsageError for a cache that this machine has no room for."""
    for option, size in (("--blocks", config.num_blocks), ("--block-size", config.block_size)):
        if size > MOST:
            raise UsageError(f"{option} must be at most {MOST}, not {size}")
    itemsize = 1 if options.cache == "int8" else text.model.ln_f.weight.data.itemsize
    # the host has room for as many blocks, for requests that are swapped out
    needed = 2 * config.num_blocks * config.block_size \
        * KVSizes.of(text.model).bytes_per_token(itemsize)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise UsageError(f"--blocks {config.num_blocks} of --block-size {config.block_size} take "
                         f"{in_bytes(needed)}, and this machine has {in_bytes(memory)}: choose "
                         "less")
