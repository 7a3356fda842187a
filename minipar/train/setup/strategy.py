"""`minipar train --mesh pp=2,dp=2,tp=2`: what it can be told, its mistakes, the strategy it means.
"""

import argparse

from ...comm import Communicator, Trace
from ...comm.mesh import DeviceMesh
from ...launcher import UsageError
from ...nn import Module
from ...parallel.hybrid import AXES, DATA_PARALLEL, Hybrid, make_hybrid
from ...parallel.pipeline import SCHEDULES, Timeline, make_schedule
from ...parallel.strategies import make_strategy
from ...parallel.strategy import Strategy

BUCKET_MB = 25.0        # PyTorch's default
MEANING = "pp (pipeline), dp (data) and tp (tensor parallel)"


def add_mesh_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that go with a mesh."""
    group = parser.add_argument_group("mesh")
    group.add_argument("--mesh", metavar="AXIS=N,…",
                       help=f"how ranks are laid out, with the axes {MEANING}: for example "
                            "pp=2,dp=2,tp=2 (default: data parallel over all there are)")
    group.add_argument("--schedule", choices=SCHEDULES,
                       help="with pp: who does what in which order (1f1b)")
    group.add_argument("--microbatches", type=int, metavar="M",
                       help="with pp: how many each dp rank's part of a batch is cut into (2 pp)")
    group.add_argument("--virtual-stages", type=int, metavar="V",
                       help="with pp: stages of each rank, of a schedule that takes several (2)")
    group.add_argument("--sequence-parallel", action="store_true",
                       help="with tp: split a GPT's tokens between the pairs of layers")


def parse_mesh(text: str) -> dict[str, int]:
    """ "pp=2,dp=4" as {"pp": 2, "dp": 4}.  Raises UsageError for another form, axis or size."""
    sizes = {}
    for part in text.split(","):
        axis, _, size = part.partition("=")
        if not size.isdecimal() or int(size) < 1:
            raise UsageError(f"--mesh {text}: expected axis=size, for example dp=4, not {part!r}")
        if axis not in AXES:
            raise UsageError(f"--mesh {text}: no axis {axis!r}, only {MEANING}: for example "
                             "--mesh pp=2,dp=4")
        if axis in sizes:
            raise UsageError(f"--mesh {text}: axis {axis} is given twice")
        sizes[axis] = int(size)
    return sizes


def sizes_of(options: argparse.Namespace) -> dict[str, int]:
    """The mesh that was asked for; {} if none was."""
    return parse_mesh(options.mesh) if options.mesh else {}


def is_hybrid(options: argparse.Namespace) -> bool:
    """Whether there is more to it than data parallelism."""
    return bool({"pp", "tp"} & sizes_of(options).keys())


def check_mesh(options: argparse.Namespace) -> None:
    """Refuse what does not go with the mesh.  Raises UsageError."""
    sizes = sizes_of(options)
    for name in ("schedule", "microbatches", "virtual_stages"):
        if getattr(options, name) is not None and "pp" not in sizes:
            raise UsageError(f"--{name.replace('_', '-')} goes with a pipeline: add pp to the "
                             "mesh, for example --mesh pp=2, or leave it out")
    if options.sequence_parallel and sizes.get("tp", 1) == 1:
        raise UsageError("--sequence-parallel splits tokens over the ranks of tp: add tp to the "
                         "mesh, for example --mesh tp=2, or leave it out")
    if options.sequence_parallel and options.data == "digits":
        raise UsageError("--sequence-parallel splits a text's tokens, but --data digits trains an "
                         "MLP, which has no sequence: leave it out")
    if options.sequence_parallel and options.context % sizes["tp"]:
        raise UsageError(f"--sequence-parallel splits --context {options.context} over "
                         f"{sizes['tp']} ranks, which does not divide: choose a multiple of "
                         f"{sizes['tp']}")
    if not is_hybrid(options):
        return
    if options.strategy not in DATA_PARALLEL:
        raise UsageError(f"--strategy {options.strategy} does not go with --mesh {options.mesh}: "
                         f"beside pp and tp choose {' or '.join(DATA_PARALLEL)}")
    if options.hybrid_shard is not None:
        raise UsageError("--hybrid-shard shards over some of the ranks, but beside pp and tp fsdp "
                         "shards over all of dp: leave it out, or choose a smaller dp")
    if options.bucket_mb is not None:
        raise UsageError("--bucket-mb cuts gradients for overlap with one backward, but beside pp "
                         "and tp they are summed whole, after the last: leave it out")
    if options.microbatches is not None and options.accumulate not in (1, options.microbatches):
        raise UsageError(f"--accumulate {options.accumulate} and --microbatches "
                         f"{options.microbatches} say the same thing of a pipeline: leave one out")
    if "pp" in sizes:
        try:
            make_schedule(options.schedule or "1f1b", 1, 1, options.virtual_stages)
        except ValueError as error:
            raise UsageError(str(error)) from error


def num_microbatches(options: argparse.Namespace) -> int:
    """How many parts a rank's rows of a batch are cut into."""
    if options.microbatches or options.accumulate > 1:
        return options.microbatches or options.accumulate
    return 2 * sizes_of(options).get("pp", 0) or 1


def strategy_of(options: argparse.Namespace, model: Module, comm: Communicator) -> Strategy:
    """The strategy that the options name.  Raises UsageError, or ValueError, if it cannot be."""
    if not is_hybrid(options):
        return make_strategy(options.strategy, model, comm, options.bucket_mb or BUCKET_MB,
                             options.hybrid_shard)
    try:
        return make_hybrid(model, DeviceMesh(comm, **sizes_of(options)),
                           options.schedule or "1f1b", options.virtual_stages,
                           data_parallel=options.strategy,
                           sequence_parallel=options.sequence_parallel)
    except ValueError as error:
        raise UsageError(f"--mesh {options.mesh}: {error}") from error


def pipeline_of(strategy: Strategy, trace: Trace) -> Timeline | None:
    """What the ranks of rank 0's pipeline did in the last batch, on rank 0; None without one.

    `trace` is this rank's, of that batch.  All ranks call it.
    """
    if not isinstance(strategy, Hybrid) or strategy.pp.size == 1:
        return None
    return strategy.pipeline.timeline(trace)


def described(options: argparse.Namespace) -> str:
    """In a few words, for a headline."""
    if not is_hybrid(options):
        return options.strategy
    words = [options.mesh, options.strategy]
    if "pp" in sizes_of(options):
        words += [options.schedule or "1f1b", f"{num_microbatches(options)} microbatches"]
    return ", ".join(words + ["sequence parallel"] * options.sequence_parallel)
