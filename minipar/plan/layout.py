"""A layout: how the GPUs share the work of a step."""

from dataclasses import dataclass, replace
from typing import Any

from ..nn import GPTConfig
from ..parallel.cost import pipelines
from ..parallel.pipeline.schedule.registry import SCHEDULES
from ..parallel.registry import STRATEGIES

AXES = ("dp", "tp", "pp", "cp", "ep")
ZERO = ("ddp", "zero1", "zero2", "fsdp")        # by stage
KINDS = ("ddp", "zero1", "zero2", "fsdp")       # strategies that the search tries
REMATS = ("none", "selective", "full")
COSTED = tuple(name for name, entry in STRATEGIES.items() if entry.cost is not None)
# Schedules whose formulas hold for a backward longer than a forward; time/by_table.py does others.
PREDICTED = tuple(name for name in SCHEDULES if pipelines.has_formulas(name))


@dataclass(frozen=True)
class Layout:
    """Ranks along each axis, and the options that change time or memory.

    `batch` is the number of sequences in a step, `microbatch` those that a rank computes at a time.
    The ranks of ep are ranks of dp.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    sp: bool = True             # with tp: sequence parallelism
    v: int = 1                  # stages of each rank
    schedule: str = "1f1b"
    kind: str = "ddp"           # the strategy of dp
    microbatch: int = 1
    batch: int = 1
    remat: str = "none"
    offload: str = ""           # "optimizer": its states in the host's memory

    @property
    def num_gpus(self) -> int:
        """Ranks of all axes; those of ep are ranks of dp."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def stages(self) -> int:
        """Stages of a rank: v of them, or as many as the schedule has."""
        entry = SCHEDULES[self.schedule]
        return self.v if entry.any_stages else entry.num_stages

    @property
    def microbatches(self) -> int:
        """Microbatches of a rank in a step."""
        return self.batch // (self.dp * self.microbatch)

    def __str__(self):
        axes = [f"{axis}={getattr(self, axis)}" for axis in AXES if getattr(self, axis) > 1]
        more = [f"{self.schedule}" + f" v={self.v}" * (self.v > 1)] if self.pp > 1 else []
        more += [self.kind] if self.dp > 1 else []
        more += [f"remat {self.remat}"] if self.remat != "none" else []
        more += [f"offload {self.offload}"] if self.offload else []
        return ", ".join([*(axes or ["dp=1"]), *more, f"microbatch {self.microbatch}"])


def in_flight(layout: Layout, rank: int) -> float:
    """The most microbatches in flight on a rank, each counted once in each of its stages."""
    if layout.pp == 1:
        return layout.stages
    known = pipelines.in_flight(layout.schedule, rank, layout.pp, layout.microbatches,
                                layout.stages)
    if known is None and layout.schedule not in PREDICTED:
        from .time.by_table import most_in_flight  # here: a page has formulas alone
        known = most_in_flight(layout.schedule, rank, layout.pp, layout.microbatches)
    return layout.stages * layout.microbatches if known is None else known


def parse_layout(text: str, start: Layout) -> Layout:
    """`start` with the values of "dp=8,tp=8,remat=full".  Raises ValueError."""
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, has_value, value = part.strip().partition("=")
        if name not in Layout.__dataclass_fields__ or not has_value:
            raise ValueError(f"{text!r}: expected NAME=VALUE,… with the names "
                             f"{', '.join(Layout.__dataclass_fields__)}, not {part.strip()!r}")
        old = getattr(start, name)
        if not isinstance(old, str) and not value.isdecimal():
            raise ValueError(f"{text!r}: {name} is a whole number, not {value!r}")
        if not isinstance(old, str | bool) and int(value) < 1:
            raise ValueError(f"{text!r}: {name} is at least 1, not {value}")
        values[name] = value if isinstance(old, str) else type(old)(int(value))
    return replace(start, **values)


def layout_fault(layout: Layout, model: GPTConfig, num_gpus: int) -> str:
    """The reason for which a layout cannot run, or ""."""
    unknown = find_unknown(layout)
    if unknown:
        return unknown
    if layout.num_gpus != num_gpus:
        return f"dp·tp·pp·cp is {layout.num_gpus}, and the cluster has {num_gpus} GPUs"
    together = layout.dp * layout.microbatch
    if layout.microbatches * together != layout.batch or not layout.microbatches:
        return f"dp·microbatch is {together}, which does not divide a batch of {layout.batch}"
    stages = layout.pp * layout.stages
    if stages > model.num_layers:
        return f"{stages} stages are more than the model's {model.num_layers} layers"
    kv_heads = model.num_kv_heads or model.num_heads
    if model.num_heads % layout.tp or max(kv_heads, layout.tp) % min(kv_heads, layout.tp):
        return (f"tp={layout.tp} does not divide the {model.num_heads} heads, of which {kv_heads} "
                "have keys and values of their own")
    if model.context % (2 * layout.cp if layout.cp > 1 else 1):
        return f"2·cp={2 * layout.cp} does not divide a sequence of {model.context}"
    if layout.ep > 1 and (model.experts is None or model.experts.num_experts % layout.ep
                          or layout.dp % layout.ep):
        return f"ep={layout.ep} has to divide the experts and dp={layout.dp}"
    return ""


def find_unknown(layout: Layout) -> str:
    """The reason for which no prediction is possible, or ""."""
    if layout.schedule not in SCHEDULES:
        return f"unknown schedule {layout.schedule!r}: choose from {', '.join(SCHEDULES)}"
    if layout.kind not in COSTED:
        return f"no cost is known of the strategy {layout.kind!r}"
    if layout.remat not in REMATS:
        return f"unknown remat {layout.remat!r}: choose from {', '.join(REMATS)}"
    if layout.offload not in ("", "optimizer"):
        return f"no formula for offload {layout.offload!r}: optimizer, or use `minipar simulate`"
    if layout.v > 1 and layout.v != layout.stages:
        return (f"{layout.schedule} has {layout.stages} stage{'s' * (layout.stages > 1)} on each "
                f"rank, not v={layout.v}")
    return ""
