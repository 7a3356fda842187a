"""GPT: a language model of identical blocks (Radford et al. 2019; names as in GPT-2's code).

    ids ─▶ wte + wpe ─▶ h.0 ─▶ h.1 ─▶ … ─▶ ln_f ─▶ head ─▶ logits
                         │
            x ─┬─▶ ln_1 ─▶ attn ─▶ + ─┬─▶ ln_2 ─▶ mlp ─▶ + ─▶
               └──────────────────────┘└─────────────────┘       pre-norm, residual

With RMS norm, SwiGLU, rotary positions and no biases it is a Llama (Touvron et al. 2023).

b = batch, t = tokens of a sequence, d = width, V = vocabulary.  There are h heads of queries and
kv heads of keys and values, of width n: by default kv = h and n = d/h.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .. import autograd as ag
from ..autograd import Tensor
from ..backend import Array, asarray_like
from .layers import CrossEntropy, Dropout, Embedding, LayerNorm, Linear, RMSNorm
from .module import Module, Part
from .moe import MoE, MoEConfig
from .parameter import normal
from .rotary import RopeConfig, RotaryPositions

NORMS = {"layer": LayerNorm, "rms": RMSNorm}


@dataclass(frozen=True)
class GPTConfig:
    """The configuration of a GPT.  Raises ValueError for values that cannot work, saying which."""

    vocab_size: int
    context: int = 128
    num_layers: int = 4
    num_heads: int = 4
    width: int = 128
    num_kv_heads: int | None = None     # fewer than num_heads: grouped-query attention
    dropout: float = 0.0
    tied: bool = True                   # the head shares the weights of the token embedding
    head_width: int | None = None       # of each head; None: width / num_heads
    mlp_width: int | None = None        # between the two layers of an MLP; None: 4 width
    norm: str = "layer"                 # or "rms"
    norm_epsilon: float = 1e-5
    mlp: str = "gelu"                   # or "swiglu"
    rope: RopeConfig | None = None      # rotary positions; None: learned ones, wpe
    bias: bool = True                   # of the linear layers in the blocks
    experts: MoEConfig | None = None    # in the place of the MLPs of some blocks

    def __post_init__(self):
        for name in ("vocab_size", "context", "num_layers", "num_heads", "width", "head_width",
                     "mlp_width"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.head_width is None and self.width % self.num_heads:
            raise ValueError(f"a width of {self.width} does not divide into {self.num_heads} "
                             f"heads: choose a width that is a multiple of {self.num_heads}")
        if self.num_kv_heads is not None and (
                self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads):
            raise ValueError(f"{self.num_heads} heads cannot share {self.num_kv_heads} heads of "
                             "keys and values evenly: choose a divisor")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"a dropout rate is in [0, 1), not {self.dropout}")
        for name, kinds in (("norm", NORMS), ("mlp", MLPS)):
            if getattr(self, name) not in kinds:
                raise ValueError(f"unknown {name} {getattr(self, name)!r}: choose from "
                                 f"{', '.join(kinds)}")


def residual_std(config: GPTConfig) -> float:
    """The initial standard deviation of the weights that end a branch: 2 branches in each block."""
    return 0.02 / math.sqrt(2 * config.num_layers)


class Attention(Module):
    """Causal self-attention: x (b, t, d) → (b, t, d)."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        d, self.num_heads = config.width, config.num_heads
        self.num_kv_heads = config.num_kv_heads or config.num_heads
        width = config.head_width or d // self.num_heads
        self.c_attn = Linear(d, (self.num_heads + 2 * self.num_kv_heads) * width, config.bias,
                             initializer=normal(0.02))
        self.c_proj = Linear(self.num_heads * width, d, config.bias,
                             initializer=normal(residual_std(config)))
        self.rotary = RotaryPositions(config.rope, width) if config.rope else None
        self.attn_dropout, self.resid_dropout = Dropout(config.dropout), Dropout(config.dropout)
        self.core = CoreAttention(self, "rotary", "attn_dropout")

    def forward(self, x: Tensor) -> Tensor:
        """x (b, t, d) → (b, t, d)."""
        qkv = self.c_attn(x)                # (b, t, d) @ (d, (h + 2 kv) n) → (b, t, (h + 2 kv) n)
        attended = self.core(qkv, self.num_heads, self.num_kv_heads)
        return self.resid_dropout(self.c_proj(attended))


class CoreAttention(Part):
    """The part of attention between its two linear layers: the softmax, without parameters."""

    def forward(self, qkv: Tensor, heads: int, kv_heads: int) -> Tensor:
        """Queries, keys and values (b, t, (h + 2 kv) n) → weighted means of values (b, t, h n)."""
        if "rotary" in self.names:
            qkv = self.rotary(qkv, heads + kv_heads)
        return self.attend(qkv, heads, kv_heads)

    def attend(self, qkv: Tensor, heads: int, kv_heads: int) -> Tensor:
        """`forward` without the rotation, for queries and keys that are rotated already."""
        time = qkv.shape[1]
        keep = self.attn_dropout.mask(qkv.data, (heads, time, time))
        return ag.fused_attention(qkv, heads, kv_heads, keep=keep, rate=self.attn_dropout.rate)


class FeedForward(Module):
    """Two linear layers with a GELU between: x (b, t, d) → (b, t, 4d) → (b, t, d).

    4d stands for `mlp_width`, here and below.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        d, wide = config.width, config.mlp_width or 4 * config.width
        self.c_fc = Linear(d, wide, config.bias, initializer=normal(0.02))
        self.c_proj = Linear(wide, d, config.bias, initializer=normal(residual_std(config)))
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """x (b, t, d) → (b, t, 4d) → (b, t, d)."""
        return self.dropout(self.c_proj(ag.gelu(self.c_fc(x))))


class GatedFeedForward(FeedForward):
    """A gated MLP (SwiGLU): x (b, t, d) → silu(c_gate x) · c_fc x (b, t, 4d) → (b, t, d)."""

    def __init__(self, config: GPTConfig):
        super().__init__(config)
        self.c_gate = Linear(config.width, config.mlp_width or 4 * config.width, config.bias,
                             initializer=normal(0.02))

    def forward(self, x: Tensor) -> Tensor:
        """x (b, t, d) → (b, t, 4d) → (b, t, d)."""
        return self.dropout(self.c_proj(ag.swiglu(self.c_gate(x), self.c_fc(x))))


MLPS = {"gelu": FeedForward, "swiglu": GatedFeedForward}


def make_mlp(config: GPTConfig, block: int) -> Module:
    """The MLP of block number `block`, or its mixture of experts."""
    mlp, experts = MLPS[config.mlp], config.experts
    if experts is None or not experts.has_experts(block):
        return mlp(config)
    wide = experts.width or config.mlp_width or 4 * config.width
    shared = mlp(replace(config, mlp_width=experts.num_shared * wide, dropout=0.0)) \
        if experts.num_shared else None
    return MoE(experts, mlp(replace(config, mlp_width=wide)), shared, config.dropout)


class Block(Module):
    """x (b, t, d) → (b, t, d): attention mixes positions, the MLP treats each by itself."""

    def __init__(self, config: GPTConfig, index: int = 0):
        super().__init__()
        norm = NORMS[config.norm]
        self.ln_1, self.attn = norm(config.width, config.norm_epsilon), Attention(config)
        self.ln_2, self.mlp = norm(config.width, config.norm_epsilon), make_mlp(config, index)

    def forward(self, x: Tensor) -> Tensor:
        """x (b, t, d) → (b, t, d)."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


def too_long_error(time: int, context: int) -> ValueError:
    """The error of a sequence longer than the context."""
    return ValueError(f"a sequence of {time} tokens is longer than the model's context of "
                      f"{context}: shorten it, or build the model with context={time}")


class Positions(Part):
    """The embeddings of positions."""

    def forward(self, places: slice | Array) -> Tensor:
        """The embeddings (t, d) of some positions: a slice, or an array of integers."""
        weight = self.wpe.weight
        return weight[places if isinstance(places, slice) else asarray_like(places, weight.data)]


class Embed(Part):
    """The first part of a GPT: tokens plus positions."""

    positions: Positions
    context: int

    def forward(self, ids: Array) -> Tensor:
        """ids (b, t) → x (b, t, d)."""
        time = ids.shape[1]
        if time > self.context:
            raise too_long_error(time, self.context)
        tokens = self.wte(ids)
        return self.drop(tokens + self.positions(slice(time)) if "wpe" in self.names else tokens)


class Head(Part):
    """The last part of a GPT: a norm and the logits."""

    def forward(self, x: Tensor) -> Tensor:
        """x (b, t, d) → logits (b, t, V)."""
        x = self.ln_f(x)
        return self.lm_head(x) if "lm_head" in self.names else ag.linear(x, self.wte.weight.T)


class GPT(Module):
    """ids (b, t) → logits (b, t, V).

        model(ids), forward(ids)    logits (b, t, V)    what users call
        loss(ids, targets)          a scalar            what strategies call: cross-entropy in nats
        logits(ids)                 logits (b, t, V)    the same; an MLP has it too

    A GPT is a list of parts, which a strategy may alter or replace, and a loss:

        embed(ids)                  x (b, t, d)         tokens plus positions
        h[i](x)                     x (b, t, d)         the blocks
        head(x)                     logits (b, t, V)    the last norm and the head
        cross_entropy(logits, …)    a scalar            the loss of logits

    If it is tensor-parallel, `head` gives this rank's columns, and `model(ids)` gathers them all.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.wte = Embedding(config.vocab_size, config.width)
        if config.rope is None:
            self.wpe = Embedding(config.context, config.width)
        self.drop = Dropout(config.dropout)
        self.h = [Block(config, i) for i in range(config.num_layers)]
        self.ln_f = NORMS[config.norm](config.width, config.norm_epsilon)
        if not config.tied:
            self.lm_head = Linear(config.width, config.vocab_size, bias=False,
                                  initializer=normal(0.02))
        self.embed = Embed(self, "wte", "wpe", "drop")
        self.embed.positions, self.embed.context = Positions(self, "wpe"), config.context
        self.head = Head(self, "ln_f", "wte" if config.tied else "lm_head")
        self.cross_entropy = CrossEntropy(self)

    def __iter__(self) -> Iterator[Module]:
        yield from (self.embed, *self.h, self.head)

    def forward(self, ids: Array, gather: bool = True) -> Tensor:
        """ids (b, t) → logits (b, t, V).  Raises ValueError if t is longer than the context.

        `gather` is for tensor parallelism, which alters this call by `around`.  Each rank then
        computes some of the logits, and returns all of them only with `gather`.
        """
        return self.run_parts(self, ids)

    def logits(self, ids: Array) -> Tensor:
        """The logits (b, t, V) of ids (b, t)."""
        return self(ids)

    def criterion(self, logits: Tensor, targets: Array,
                  loss_divisor: float | None = None) -> Tensor:
        """Cross-entropy of targets (b, t) under logits (b, t, V), divided as in `loss`."""
        return self.cross_entropy(logits, targets, loss_divisor, self.ignore_index)

    def loss(self, ids: Array, targets: Array, loss_divisor: float | None = None) -> Tensor:
        """Cross-entropy in nats of targets (b, t), summed and divided by `loss_divisor`.

        Targets equal to `self.ignore_index`, by default -100, do not count.  `loss_divisor` is by
        default the number of targets that count.
        """
        return self.criterion(self(ids, gather=False), targets, loss_divisor)
