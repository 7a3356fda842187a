"""Tensor-parallel inference: each rank has some heads of the model, and their part of the cache.

    rank 0   engine ─▶ StepWork ─▶ heads 0 1, their keys and values ─┐             ┌─▶ token
                                                                     Σ, 2 a layer ─┤
    rank 1   engine ─▶ StepWork ─▶ heads 2 3, their keys and values ─┘             └─▶ token

All ranks run the same engine on equal requests.  So they decide alike, send no schedule, and have
equal block tables.  A step of T tokens sends

    2 all-reduces of T·d numbers for each layer, one more for the embedding   (as in training: f, g)
    a few numbers for each draw                               (sampling/vocabulary_parallel.py)

A rank's cache takes 1/p of the bytes.  Pope et al. 2022, section 3.
"""

from collections.abc import Sequence

from ...backend import Array, to_host
from ...comm import Communicator
from ...nn import GPT
from ..cache import PagedKVCache
from ..model import forward_over_cache
from ..model_runner import Draw, ModelRunner, NewToken, StepWork
from ..sampling.vocabulary_parallel import next_tokens_over_ranks, top_logprobs_over_ranks


class TensorParallelRunner(ModelRunner):
    """Runs this rank's part of a GPT that `parallel.tensor.parallelize` has cut over `tp`.

    All ranks of `tp` run the same steps.
    """

    def __init__(self, model: GPT, tp: Communicator, num_blocks: int, block_size: int,
                 kind: type[PagedKVCache] = PagedKVCache):
        super().__init__(model, num_blocks, block_size, kind)
        self.tp = tp

    def run(self, work: StepWork) -> list[NewToken]:
        """Collective.  Carry out one step; return a token for each of its draws."""
        self.cache.apply(work.swapped_out, work.swapped_in, work.copied)
        logits = forward_over_cache(self.model, self.cache, work.inputs).data
        return draw_tokens_over_ranks(self.tp, logits, self.vocab_size, work.draws)


def draw_tokens_over_ranks(tp: Communicator, logits: Array, vocab_size: int,
                           draws: Sequence[Draw]) -> list[NewToken]:
    """Collective.  A token for each draw, from this rank's columns (S, V/p) of the logits."""
    drawn = to_host(logits)[[draw.sequence_index for draw in draws]]
    tokens = next_tokens_over_ranks(tp, drawn, vocab_size, [draw.inputs for draw in draws])
    found = [NewToken(token) for token in tokens]
    asked = [i for i, draw in enumerate(draws) if draw.num_logprobs is not None]
    if asked:
        most = max(draws[i].num_logprobs or 0 for i in asked)
        logprobs = top_logprobs_over_ranks(tp, drawn[asked], vocab_size,
                                           [tokens[i] for i in asked], most)
        for i, (logprob, likeliest) in zip(asked, logprobs):
            wanted = list(likeliest.items())[:draws[i].num_logprobs]
            found[i] = NewToken(tokens[i], logprob, dict(wanted))
    return found


def step_bytes(num_ranks: int, num_layers: int, width: int, num_tokens: int,
               itemsize: int) -> float:
    """Bytes that each rank sends in a step of `num_tokens` tokens, without those for drawing.

    There are 2 all-reduces a layer and one for the embedding.  By a ring, a rank sends
    2 n (p - 1)/p bytes in an all-reduce of n bytes.
    """
    numbers = (2 * num_layers + 1) * num_tokens * width
    return 2 * numbers * itemsize * (num_ranks - 1) / num_ranks
