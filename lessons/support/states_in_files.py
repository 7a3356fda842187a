"""Lesson 21: weights and optimizer states that wait in a file, measured."""

import numpy as np

from minipar.backend import allocating_with
from minipar.backend.mapped_file import MappedFile
from minipar.comm import Communicator
from minipar.inference import generate
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, GPTConfig
from minipar.optim import AdamW
from minipar.parallel.zero.fsdp import FullyShardedDataParallel


def weights_by_block(comm: Communicator, config: GPTConfig) -> tuple[bool, int, list[int]]:
    """(whether a model in a file generates the same, bytes of weights at the peak, of units)."""
    prompt, ledger, zeros = np.arange(5), Ledger(), MappedFile().zeros
    expected = list(generate(GPT(config).initialize(), prompt, 3))
    with ledger.recording(), allocating_with(dict.fromkeys(("parameters", "gradients"), zeros)):
        model = GPT(config).initialize()
        strategy = FullyShardedDataParallel(model, comm.split(comm.rank))   # alone: no messages
        same = list(generate(model, prompt, 3)) == expected
    return (same, ledger.peak - ledger.peak_of["KV cache"],     # the cache is there all the time
            [sum(piece.nbytes for piece in unit.pieces) for unit in strategy.units])


def states_in_file(config: GPTConfig) -> tuple[int, int]:
    """Bytes of AdamW's states in memory, and in the file."""
    ledger, file = Ledger(), MappedFile()
    with ledger.recording(), allocating_with({"optimizer states": file.zeros}):
        optimizer = AdamW(GPT(config).initialize().slabs)
        optimizer.step()
    return ledger.live_of["optimizer states"], ledger.live_of["offloaded"]
