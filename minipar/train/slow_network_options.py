"""Options for slow networks: for ranks that train apart, and for wires that send little.

    [parallel]   strategy = "diloco", every = 8, outer_lr = 0.7 …       fields of ParallelConfig
    [messages]   rank = 4 …, with precision.reduce_dtype = "powersgd"   fields of MessagesConfig

A wire is a format of messages.  `docs/pages/slow_networks.md` says what the options do.
"""

from dataclasses import dataclass

from .option import setting


@dataclass(frozen=True, kw_only=True)
class ApartOptions:
    """Options of the strategies whose ranks train apart: what they exchange, and when."""

    local_states: str | None = setting(
        None, "optimizer states when parameters are averaged: kept, averaged or reset to 0",
        choices="parallel.data.local_sgd:LOCAL_STATES", default_text="kept", saved=False)
    average_first: int | None = setting(
        None, "average after each of the first N steps", least=0, metavar="N", default_text="0",
        saved=False)
    outer_lr: float | None = setting(None, "learning rate of the outer step", least=0,
                                     default_text="0.7", saved=False)
    outer_momentum: float | None = setting(None, "momentum of the outer step", least=0,
                                           default_text="0.9", saved=False)
    fragments: int | None = setting(
        None, "parts of the parameters, which take outer steps in turn", least=1, metavar="P",
        default_text="1", saved=False)
    delay: int | None = setting(
        None, "steps for which a message may travel: diloco's fragment, delayed's gradient",
        least=0, default_text="diloco: 0, delayed: 1", saved=False)
    mix: float | None = setting(None, "share of a rank's own parameters that stays in them",
                                least=0, default_text="0", saved=False)
    pull: float | None = setting(None, "share of the way to the centre, and of the centre's way",
                                 least=0, default_text="0.9 / ranks of dp", saved=False)


@dataclass(frozen=True)
class MessagesConfig:
    """Options of the wires of --reduce-dtype that send few numbers, or few bits of each."""

    rank: int | None = setting(None, "powersgd: columns of the factors of a matrix", least=1,
                               default_text="4")
    start: int | None = setting(
        None, "powersgd, onebit_adam: first steps, whose gradients are sent in full", least=0,
        default_text="10; onebit_adam: 50")
    beta2: float | None = setting(
        None, "onebit_adam: of v, which averages 1 / (1 - beta2) steps: fewer than start", least=0,
        default_text="0.97")
    density: float | None = setting(None, "top_k, dgc: share of a matrix's numbers that is sent",
                                    least=0, default_text="0.01")
    stage_steps: int | None = setting(
        None, "top_k, dgc: first N steps at density 25 %, N at 6.25 %, …", least=0, metavar="N",
        default_text="0")
    wire_momentum: float | None = setting(None, "dgc, sign_vote: momentum before the sum", least=0,
                                          default_text="0.9")
    nesterov: bool | None = setting(None, "dgc: Nesterov's momentum", default_text="no")
    masking: bool | None = setting(None, "dgc: stop the momentum of what is sent",
                                   default_text="yes")
    wire_clip: float | None = setting(
        None, "dgc: largest norm of a rank's gradient, times the root of the number of ranks",
        least=0, default_text="0: no clipping")
    threshold: float | None = setting(None, "threshold: the number that is sent", least=0,
                                      default_text="0.01")
