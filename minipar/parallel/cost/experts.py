"""A layer with experts on paper: parameters, FLOPs, messages, activations.

n tokens of width d on a rank, E experts of hidden width f, k of them for each token, p ranks of ep:

    parameters      d E + E (2 d f + f + d)     of which a token uses  d E + k (2 d f + f + d)
    FLOPs           n (2 d E + 4 k d f)         of the products in forward; twice that in backward
    all-to-alls     k n d (p-1)/p elements that a rank sends in each of four: to the experts and
                    back, in forward and in backward; if all experts get equally many tokens

With SwiGLU an expert has three matrices instead of two, and biases of 2 f + d numbers instead of
f + d; without biases there are none.  A dense MLP of width k f takes as many FLOPs as k experts.
Lepikhin et al. 2020 (GShard), section 3.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ...nn import GPTConfig, MoEConfig

MATRICES = {"gelu": 2, "swiglu": 3}     # of an MLP, by its name in nn.gpt.MLPS


def _sizes(config: GPTConfig) -> tuple[MoEConfig, int, int, int]:
    """(the experts' settings, d, f, matrices of an MLP).  Raises ValueError for a dense model."""
    if config.experts is None:
        raise ValueError("these are formulas of experts: give a GPTConfig with experts")
    wide = config.experts.width or config.mlp_width or 4 * config.width
    return config.experts, config.width, wide, MATRICES[config.mlp]


def layer_parameters(config: GPTConfig, active: bool = False) -> int:
    """The number of parameters of a layer with experts, or, with `active`, of those a token uses.

    The router's bias is counted among them.
    """
    experts, d, wide, matrices = _sizes(config)
    biases = (matrices - 1) * wide + d if config.bias else 0
    used = experts.top_k if active else experts.num_experts
    shared = experts.num_shared * wide
    of_shared = matrices * d * shared + ((matrices - 1) * shared + d) * config.bias if shared else 0
    bias = experts.num_experts if experts.bias_rate else 0
    return d * experts.num_experts + bias + used * (matrices * d * wide + biases) + of_shared


class ParameterCounts(NamedTuple):
    """Numbers of parameters of a layer with experts, by the axes of the mesh that cut them."""

    experts: int            # tp and ep cut them: matrices, and biases of their hidden layers
    expert_biases: int      # ep alone cuts them: biases of the experts' outputs
    others: int             # no axis cuts them: the router, the bias of a shared expert's output


def parameter_counts(config: GPTConfig) -> ParameterCounts:
    """The numbers of parameters of a layer, by the axes that cut them.

    The matrices and hidden biases of shared experts, which tp alone cuts, are not counted.
    """
    experts, d, wide, matrices = _sizes(config)
    biases = (matrices - 1) * wide * config.bias
    router = (d + bool(experts.bias_rate)) * experts.num_experts
    return ParameterCounts(experts.num_experts * (matrices * d * wide + biases),
                           experts.num_experts * d * config.bias,
                           router + d * (config.bias and experts.num_shared > 0))


def forward_flops(config: GPTConfig, num_tokens: int) -> int:
    """FLOPs of the products of a layer's forward: router, chosen experts, shared experts."""
    experts, d, wide, matrices = _sizes(config)
    of_experts = (experts.top_k + experts.num_shared) * matrices * 2 * d * wide
    return num_tokens * (2 * d * experts.num_experts + of_experts)


def all_to_all_bytes(config: GPTConfig, num_tokens: int, ep: int, itemsize: int = 4) -> float:
    """Bytes that a rank with `num_tokens` tokens sends in each of a layer's four all-to-alls.

    Assumes that all experts get equally many tokens, and that no choice is dropped.
    """
    experts, d, _, _ = _sizes(config)
    return experts.top_k * num_tokens * d * itemsize * (ep - 1) / ep


def exchanged_bytes(table: Sequence[Sequence[int]], rank: int, width: int,
                    itemsize: int = 4) -> tuple[int, int]:
    """(bytes to experts, bytes of results) that `rank` sends; `table[i][j]` rows go i to j."""
    there = sum(table[rank]) - table[rank][rank]
    back = sum(row[rank] for row in table) - table[rank][rank]
    return there * width * itemsize, back * width * itemsize


def layer_activations(config: GPTConfig, num_tokens: int, num_rows: int | None = None,
                      ep: int = 1, itemsize: int = 4) -> dict[str, int]:
    """Bytes that a layer with experts keeps for backward on one rank, by name.

    A rank has `num_tokens` tokens, and computes `num_rows` rows with its experts, by default as
    many as its tokens have choices.  Assumes that no choice is dropped, and that there are no
    shared experts, no dropout and no losses of the router.
    """
    experts, d, wide, matrices = _sizes(config)
    n, k, num_experts = num_tokens, experts.top_k, experts.num_experts
    sent = n * k
    rows = sent if num_rows is None else num_rows
    gates = num_experts + k + 1 if experts.renormalizes else num_experts
    kept = {"input of the router": itemsize * n * d, "scores and gates": itemsize * n * gates,
            "choices": 8 * (n + n * k), "rows of experts": itemsize * rows * d,
            "hidden": itemsize * rows * wide * matrices,
            "results and their gates": itemsize * sent * (d + 1), "order of rows": 8 * 2 * sent}
    if ep > 1:
        kept["order of arrived rows"] = 8 * 2 * rows
    return kept
