"""A GPT that says what a test wants: its answer depends on the position alone."""

from pathlib import Path

import numpy as np

from minipar.data import Vocabulary
from minipar.interop import save_pretrained
from minipar.nn import GPT, GPTConfig


def scripted_state(model: GPT, says: list[int]) -> dict[str, np.ndarray]:
    """The parameters with which `says[p]` follows the token at position p, the last one for ever.

    The context is the width, so that each position has a direction of its own.
    """
    width = model.config.width
    assert width == model.config.context
    state = {name: 0 * array for name, array in model.state_dict().items()}
    state |= {"ln_f.weight": np.ones(width, "f"), "wpe.weight": 99 * np.eye(width, dtype="f")}
    for position in range(width):
        state["wte.weight"][says[min(position, len(says) - 1)], position] = 3
    return state


def save_scripted(folder: Path, says: list[int], vocab_size: int, vocabulary: Vocabulary | None,
                  width: int = 8) -> None:
    """Write Hugging Face's files of a model that says this, after a prompt of one token."""
    model = GPT(GPTConfig(vocab_size, width, 2, 2, width)).initialize(0)
    save_pretrained(folder, model, vocabulary, scripted_state(model, says))
