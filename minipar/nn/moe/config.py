"""The configuration of a mixture of experts."""

from dataclasses import dataclass

SCORES = ("softmax", "sigmoid")
DROPS = ("choice", "token", "probability")
CAPACITY_GROUPS = ("sequence", "microbatch")
BALANCE_GROUPS = ("sequence", "batch")


@dataclass(frozen=True)
class MoEConfig:
    """Experts, their router, and what keeps them balanced.

    Raises ValueError for values that cannot work, saying which.
    """

    num_experts: int
    top_k: int = 2                      # experts of each token
    every: int = 1                      # the last of every N blocks has experts
    width: int | None = None            # of an expert's hidden layer; None: that of the MLP
    num_shared: int = 0                 # experts that every token uses
    scores: str = "softmax"             # of the logits; "sigmoid": DeepSeek-V3
    renormalize: bool | None = None     # gates of a token add up to `scale`; None: if top_k > 1
    scale: float = 1.0                  # factor of the gates
    num_groups: int = 1                 # of experts; a token uses only its `top_groups` best
    top_groups: int = 1
    capacity_factor: float | None = None    # None: dropless
    drop: str = "choice"                # the order in which tokens take the places of an expert
    capacity_per: str = "sequence"      # the group of tokens that share the places of an expert
    balance_loss: float = 0.01          # coefficient; 0: no such loss
    balance_per: str = "sequence"       # "batch": of a microbatch over all ranks
    z_loss: float = 0.0                 # coefficient of the mean squared log-sum-exp
    bias_rate: float = 0.0              # step of the router's bias; 0: it has none

    def __post_init__(self):
        for name in ("num_experts", "top_k", "every", "num_groups", "top_groups"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("num_shared", "balance_loss", "z_loss", "bias_rate"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is not negative, but it is {getattr(self, name)}")
        for name, choices in (("scores", SCORES), ("drop", DROPS), ("balance_per", BALANCE_GROUPS),
                              ("capacity_per", CAPACITY_GROUPS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"unknown {name} {getattr(self, name)!r}: choose from "
                                 f"{', '.join(choices)}")
        if self.capacity_factor is not None and self.capacity_factor <= 0:
            raise ValueError(f"a capacity factor is > 0, not {self.capacity_factor}: None drops "
                             "no token")
        if self.num_experts % self.num_groups or self.top_groups > self.num_groups:
            raise ValueError(f"{self.num_experts} experts in {self.num_groups} groups of which "
                             f"{self.top_groups} are used: choose groups that divide the experts, "
                             "and no more of them than there are")
        candidates = self.num_experts // self.num_groups * self.top_groups
        if self.top_k > candidates:
            raise ValueError(f"a token cannot use {self.top_k} of {candidates} experts: choose a "
                             "smaller top_k, or more experts")
        if self.top_k == 1 and self.renormalizes:
            raise ValueError("a renormalized gate of the only expert is constant, so the router "
                             "would learn nothing: leave renormalize off, or choose top_k=2")

    @property
    def renormalizes(self) -> bool:
        """True if the gates of a token add up to `scale`."""
        return self.top_k > 1 if self.renormalize is None else self.renormalize

    def has_experts(self, block: int) -> bool:
        """True if block number `block` of a model has experts."""
        return block % self.every == self.every - 1
