"""The mesh of a run, `--mesh pp=2,dp=2,tp=2`, and the options that go with its axes."""

import math
from collections.abc import Mapping

from ...comm.mesh import ORDER, parse_mesh
from ...environment import launched
from ...launcher import UsageError, errors_as_usage
from ...parallel.data.trained_apart import TrainedApart
from ...parallel.pipeline.schedule.registry import make_schedule
from ...parallel.registry import entry_of
from ..config import MESH_AXES, TrainConfig
from .context import check_context

MOST_SIMULATED = 4096       # ranks, each with its part of the model, in one process


def sizes_of(text: str) -> dict[str, int]:
    """ "pp=2,dp=4" as {"pp": 2, "dp": 4}.  Raises UsageError for another form, axis or size."""
    with errors_as_usage():
        sizes = parse_mesh(text)
    for axis in sizes:
        if axis not in (*ORDER, "ep"):
            raise UsageError(f"--mesh {text}: no axis {axis!r}, only {MESH_AXES}: for example "
                             "--mesh pp=2,dp=4")
    return sizes


def mesh_sizes(config: TrainConfig) -> dict[str, int]:
    """The sizes of the mesh by axis; {} without --mesh."""
    return sizes_of(config.parallel.mesh) if config.parallel.mesh else {}


def num_mesh_ranks(text: str) -> int:
    """The number of ranks of a mesh, in which ep takes ranks of dp.  Raises UsageError."""
    sizes = sizes_of(text)
    ep = sizes.pop("ep", 1)
    return math.prod({"dp": ep, **sizes}.values())


def is_hybrid(config: TrainConfig) -> bool:
    """True if the mesh has an axis pp, cp, tp or ep, besides those that cut only the batch."""
    return bool({"pp", "cp", "tp", "ep"} & mesh_sizes(config).keys())


def ranks_for(mesh: str | None, ranks: int | None) -> int:
    """The number of ranks: of mpirun, of --ranks, or of --mesh; 1 without these.

    Raises UsageError if the mesh has another number, if --ranks is given under mpirun, or if the
    ranks are too many to simulate.
    """
    world = launched()
    if world and ranks is not None:
        raise UsageError(f"--ranks simulates ranks without mpirun, but {world} started "
                         f"{world.size}: leave one of the two out")
    given = world.size if world else ranks
    num_ranks = num_mesh_ranks(mesh) if mesh is not None else given or 1
    if not world and num_ranks > MOST_SIMULATED:
        raise UsageError(f"{num_ranks:,} ranks are more than can be simulated here: choose at most "
                         f"{MOST_SIMULATED:,}")
    if given is not None and given != num_ranks:
        raise UsageError(f"--mesh {mesh} is for {num_ranks} ranks, but there "
                         f"{'is' if given == 1 else 'are'} {given}: say --mesh dp={given}, or "
                         f"start {num_ranks} ranks (mpirun -n {num_ranks} …)")
    return num_ranks


def num_ranks_of(config: TrainConfig) -> int:
    """The number of ranks.  Raises UsageError if --mesh or --hybrid-shard do not fit it."""
    mesh, hybrid_shard = config.parallel.mesh, config.parallel.hybrid_shard
    num_ranks = ranks_for(mesh, config.run.ranks)
    dp = sizes_of(mesh).get("dp", 1) if mesh is not None else num_ranks
    if hybrid_shard is not None and dp % hybrid_shard:
        raise UsageError(f"--hybrid-shard {hybrid_shard} does not divide {dp} "
                         f"rank{'s' if dp > 1 else ''}: choose a divisor of {dp}")
    return num_ranks


def check_mesh(config: TrainConfig) -> None:
    """Refuse options that do not go with the mesh.  Raises UsageError."""
    sizes = mesh_sizes(config)
    if "pp" in sizes:
        with errors_as_usage():
            make_schedule(config.parallel.schedule or "1f1b", 1, 1, config.parallel.virtual_stages)
    if config.parallel.sequence_parallel:
        check_sequence_parallel(config, sizes)
    check_experts(config, sizes)
    check_context(config, sizes)
    check_apart(config, sizes)
    if is_hybrid(config):
        check_hybrid(config)


def check_sequence_parallel(config: TrainConfig, sizes: Mapping[str, int]) -> None:
    """Refuse --sequence-parallel where tokens cannot be split over tp.  Raises UsageError."""
    if sizes.get("cp", 1) == 1 and config.model.context % sizes["tp"]:
        raise UsageError(f"--sequence-parallel splits --context {config.model.context} over "
                         f"{sizes['tp']} ranks, which does not divide: choose a multiple of "
                         f"{sizes['tp']}")


def check_hybrid(config: TrainConfig) -> None:
    """Refuse options that do not go with pp, cp, tp or ep.  Raises UsageError."""
    parallel = config.parallel
    if parallel.strategy == "dp":
        raise UsageError(f"--strategy dp, whose rank 0 drives all others, does not go with --mesh "
                         f"{parallel.mesh}: choose ddp")
    if parallel.microbatches is not None \
            and parallel.accumulate not in (1, parallel.microbatches):
        raise UsageError(f"--accumulate {parallel.accumulate} and --microbatches "
                         f"{parallel.microbatches} say the same thing of a pipeline: leave one out")


def check_apart(config: TrainConfig, sizes: Mapping[str, int]) -> None:
    """Refuse ep and replicate where each rank of dp trains alone.  Raises UsageError."""
    if not issubclass(entry_of(config.parallel.strategy).kind, TrainedApart):
        return
    for axis in {"ep", "replicate"} & sizes.keys():
        raise UsageError(f"--strategy {config.parallel.strategy} trains each rank of dp alone, "
                         f"with all parameters: leave {axis} out of --mesh, or choose another "
                         "strategy")


def check_experts(config: TrainConfig, sizes: Mapping[str, int]) -> None:
    """Refuse an axis ep that does not fit the experts or dp.  Raises UsageError."""
    ep, num_experts = sizes.get("ep", 1), config.experts.num_experts
    if "ep" not in sizes:
        return
    if not num_experts:
        raise UsageError("--mesh ep cuts the experts of a model over ranks: add --experts 8, or "
                         "leave ep out")
    if ep > num_experts:
        raise UsageError(f"--mesh ep={ep} is for at least {ep} experts, not --experts "
                         f"{num_experts}: choose a smaller ep, or more experts")
    if sizes.get("dp", ep) % ep:
        raise UsageError(f"--mesh {config.parallel.mesh}: ep takes neighbours of dp, so it must "
                         f"divide {sizes['dp']}: choose a divisor")
