"""A cluster as data: a GPU, its links, and the software that runs on it.

    8x8:h100                8 nodes of 8 GPUs of clusters/h100.toml
    128x8:h100/llama3       the same GPU, with another software generation of that file
    2x8:NAME.toml           a file of one's own

A software generation is a few numbers that no data sheet has.  The file says which of them were
fitted, and to which runs.
"""

import tomllib
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "clusters"
SHARES = ("product", "stream", "link", "nic", "unfused", "kept")       # above 0
SPLITS, ACTIVATIONS = ("even", "greedy", "ends", "minipar"), ("fused", "minipar")
# The software MINIPAR, minipar itself, takes its rates from BASE, or else from the file's first
# software.  LEFT_OUT switches off what minipar does not have: launching by the host, stalls, and
# formats other than 16-bit weights with float32 states.
MINIPAR, BASE = "minipar", "megatron-core"
LEFT_OUT = {"split": MINIPAR, "launch": 0, "busy": 0, "cross": 0, "gather": 0, "stall": 0,
               "stalled": (), "stalled_ddp": (), "stalled_alone": (), "sum_bytes": 0, "kept": 1,
               "gradient_bytes": 2, "message_bytes": 2, "zero1_bytes": 4, "regather": False,
               "keeps_gathered": False, "memory_base": 0}
MOST_GPUS = 100_000
FORMS = "give NODESxGPUS:NAME, as 8x8:h100, or a TOML file"


@dataclass(frozen=True)
class Software:
    """Numbers of a training framework on one GPU; shares are of the data sheet's rates."""

    name: str = ""
    # rates
    product: float = 0.8            # share of the peak that large products reach
    stream: float = 0.85            # share of the memory bandwidth in element-wise kernels
    link: float = 0.8               # share of the link in collectives
    nic: float = 0.8                # share of the NIC between nodes
    waves: bool = False             # products take whole waves of tiles
    kernel: float = 0.0             # seconds from the end of a kernel to the start of the next
    flash: tuple[float, float] | None = (0.45, 0.40)    # shares of the peak; None: not fused
    unfused: float = 1.0            # bytes of element-wise kernels, relative to fused ones
    loss: float = 105.0             # bytes a logit of the loss in float32, forward and backward
    operations: dict = field(default_factory=dict, hash=False)  # measured: seconds of a call, of a
                                    # FLOP, of a byte, by name and phase; others by the rates above
    # delays and stalls
    launch: float = 0.0             # seconds of the host to launch a layer, forward and backward
    latency: float = 0.0            # seconds of a collective within a node …
    latency_rank: float = 0.0       # … and more for each rank
    cross: float = 0.0              # seconds of a tp collective for each node boundary in its group
    busy: float = 0.0               # launch delay of a tp collective for each other rank, beside pp
    gather: float = 0.0             # latency per rank of ZeRO-1's gathers, one for each weight
    stall: float = 0.0              # seconds that a stalled run loses per microbatch and neighbour
    stalled: tuple[tuple[int, float], ...] = ()         # share of stalled pipelines from N nodes on
    stalled_ddp: tuple[tuple[int, float], ...] = ()     # … of those whose dp ranks share nothing
    stalled_alone: tuple[tuple[int, float], ...] = ()   # … of runs without a pipeline
    stalls_from: float = 0.0        # bytes of a pipeline message, below which few stall
    # what hides
    tp_overlap: float = 0.0         # hidden share of tp messages
    pp_overlap: float = 0.0         # hidden share of pipeline messages
    dp_overlap: float = 0.0         # part of the last microbatch that hides gradients …
    zero1_overlap: float = 0.0      # … with ZeRO-1
    overlap_beside_pp: bool = True  # … also in a pipeline
    regather: bool = False          # with sp, backward gathers inputs again
    split: str = "even"             # layers of stages: "even", "greedy", "ends", or as minipar's
    # bytes
    weight_bytes: float = 2         # of each parameter: weights in use …
    gradient_bytes: float = 2       # … gradients that backward keeps …
    master_bytes: float = 12        # … what ZeRO-1 shards: master weights and Adam's averages
    message_bytes: float = 2        # of a gradient on the wire
    zero1_bytes: float = 6          # … with ZeRO-1, the weight's included
    sum_bytes: float = 0            # that adding up a gradient moves in each microbatch
    adam_bytes: float = 34          # that the optimizer moves
    memory_base: float = 0.0        # bytes of a run without a model
    kept: float = 1.0               # activations kept, relative to those of fused kernels
    keeps_gathered: bool = False    # with sp and no pipeline, backward finds its inputs gathered
    activations: str = "fused"      # "minipar": by parallel/cost/activations.py
    fitted: str = ""                # which numbers were fitted, and on which runs

    @property
    def is_minipar(self) -> bool:
        """True if formulas of minipar itself hold (minipar_formulas/)."""
        return self.split == MINIPAR

    def __post_init__(self):
        for name, known in (("split", SPLITS), ("activations", ACTIVATIONS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}: choose from "
                                 f"{', '.join(known)}")
        for name, line in self.operations.items():
            if not (isinstance(line, list) and len(line) == 3 and all(
                    isinstance(number, int | float) and number >= 0 for number in line)):
                raise ValueError(f"operations: {name} has three numbers >= 0, seconds of a call, "
                                 f"of a FLOP and of a byte, not {line!r}")


@dataclass(frozen=True)
class ClusterSpec:
    """`nodes` of `per_node` GPUs; rates in FLOP/s and bytes/s in one direction."""

    name: str
    title: str
    peak: dict = field(hash=False)  # FLOP/s by dtype, dense
    memory: float                   # bytes of the card
    usable: float                   # bytes that context and NCCL leave
    bandwidth: float                # of the memory
    units: int                      # multiprocessors
    link: float                     # between GPUs of a node
    nic: float                      # of a GPU to other nodes …
    dtype: str = "bf16"             # of products
    nic_shared_by: float = 1        # … if this many GPUs share it, for each
    host: float = 25e9              # to the memory of the host
    per_node: int = 8
    nodes: int = 1
    cores: int = 0                  # of a node, which its ranks share; 0: each has its own
    software: Software = Software()

    def __post_init__(self):
        if self.dtype not in self.peak:
            raise ValueError(f"the peak of {self.name} in {self.dtype} is missing: peak has "
                             f"{', '.join(self.peak)}")
        if self.num_gpus > MOST_GPUS:
            raise ValueError(f"{self.num_gpus:,} GPUs are too many: at most {MOST_GPUS:,}")

    @property
    def num_gpus(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.per_node

    @property
    def rate(self) -> float:
        """FLOP/s of a GPU's data sheet."""
        return self.peak[self.dtype]


def read_cluster(text: str) -> ClusterSpec:
    """The cluster of a text "8x8:h100" or "8x8:h100/SOFTWARE", or of a TOML file.

    Raises ValueError for a name that is unknown and a file that is wrong.
    """
    size, has_size, name = text.rpartition(":")
    name, _, software = name.partition("/") if not name.endswith(".toml") else (name, "", "")
    cluster = from_file(file_of(name), software)
    if not has_size:
        return cluster
    counts = size.split("x")
    if len(counts) != 2 or not all(c.isdecimal() and int(c) > 0 for c in counts):
        raise ValueError(f"--cluster {text}: {FORMS}")
    return replace(cluster, nodes=int(counts[0]), per_node=int(counts[1]))


def file_of(name: str) -> Path:
    """The file of a GPU by its name, or a file of one's own.  Raises ValueError."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.exists():
        known = ", ".join(sorted(file.stem for file in FOLDER.glob("*.toml")))
        raise ValueError(f"no GPU {name!r} is known: choose from {known}, or give a TOML file")
    return path


@cache
def from_file(path: Path, software: str = "") -> ClusterSpec:
    """The cluster that a file describes, by default with its first software.  Raises ValueError."""
    table = _table(path)
    if "like" in table:                 # the file of another GPU, for all that is not said
        table = _merged(_table(FOLDER / f"{table.pop('like')}.toml"), table)
    programs: dict[str, Any] = table.pop("software", {})
    if software == MINIPAR and software not in programs and programs:
        base = BASE if BASE in programs else next(iter(programs))
        fused = [program["flash"] for program in programs.values() if program.get("flash")]
        programs[MINIPAR] = {"like": base, **LEFT_OUT, "flash": [*fused, [*Software.flash]][0]}
    software = software or next(iter(programs), "")
    numbers = _inherited(programs, software, str(path)) if software else {}
    made = _fill(Software, f"{path} [software.{software}]", {"name": software, **numbers})
    return _fill(ClusterSpec, str(path), {"name": path.stem, "software": made, **table})


def _table(path: Path) -> dict[str, Any]:
    """The content of a file.  Raises ValueError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}: {FORMS}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from error


def _merged(table: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """A table with the entries of another one, which win; software is joined by name."""
    software = table.get("software", {}) | over.get("software", {})
    return {**table, **over, "software": software}


def _inherited(programs: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    """The values of a software, with those of its `like` for the rest.  Raises ValueError."""
    if name not in programs:
        raise ValueError(f"{where}: no software {name!r}: choose from {', '.join(programs)}")
    own, others = dict(programs[name]), {k: v for k, v in programs.items() if k != name}
    base = own.pop("like", None)
    return {**(_inherited(others, base, where) if base else {}), **own}


def _fill(kind: Any, where: str, values: dict[str, Any]) -> Any:
    """A dataclass of the values.  Raises ValueError for unknown, missing and senseless ones."""
    known: dict[str, Any] = {f.name: f.type for f in fields(kind)}
    for key, value in values.items():
        if key not in known:
            raise ValueError(f"{where}: unknown {key!r}: choose from {', '.join(known)}")
        needs_more = kind is ClusterSpec and key != "cores" or key in SHARES
        if known[key] in (int, float):
            if isinstance(value, bool | str | list) or value < 0 or needs_more and not value:
                raise ValueError(f"{where}: {key} is a number {'>' if needs_more else '>='} 0, "
                                 f"not {value!r}")
        elif known[key] in (str, bool, dict) and not isinstance(value, known[key]):
            raise ValueError(f"{where}: {key} is {value!r}, not a {known[key].__name__}")
    values = {key: _tuple(value) if isinstance(value, list) else value
              for key, value in values.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{where}: {str(error).split('__init__() ')[-1]}") from error


def _tuple(values: list) -> tuple | None:
    """The list as a tuple, None for an empty one."""
    return tuple(_tuple(value) if isinstance(value, list) else value for value in values) or None
