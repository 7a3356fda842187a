"""Generation: draw the next token from the model's distribution, append it, repeat.

The model runs on the whole context again for each token.
"""

from collections.abc import Iterator

import numpy as np

from ..autograd import no_grad
from ..backend import to_host
from ..nn import GPT
from ..random import generator


def generate(model: GPT, prompt: np.ndarray, num_tokens: int, temperature: float = 1.0,
             seed: int = 0) -> Iterator[int]:
    """Yield `num_tokens` tokens that follow `prompt` (t,), integer ids, at least one.

    Logits are divided by `temperature` before softmax: 0 takes the likeliest token, 1 samples
    from the model's distribution, more is more random.
    """
    if not len(prompt) or temperature < 0:
        raise ValueError("generation needs a prompt of at least one token and a temperature >= 0, "
                         f"not {len(prompt)} tokens and {temperature}")
    ids, draw = np.array(prompt, np.int64), generator(seed, "generate")
    for _ in range(num_tokens):
        with no_grad():
            logits = to_host(model(ids[None, -model.config.context:]).data)[0, -1]
        if temperature:
            gumbel = draw.gumbel(size=logits.size)  # argmax of logits + Gumbel noise: a sample
            token = int(np.argmax(logits / temperature + gumbel))
        else:
            token = int(np.argmax(logits))
        ids = np.append(ids, token)
        yield token
