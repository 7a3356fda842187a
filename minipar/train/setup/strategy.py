"""The strategy and the mesh of a run: `minipar train --strategy zero1 --mesh pp=2,dp=2,tp=2`."""

import math
from collections.abc import Mapping
from typing import Any

from ...comm import Communicator
from ...comm.mesh import DeviceMesh
from ...launcher import UsageError
from ...nn import Module
from ...parallel.hybrid.hybrid import AXES
from ...parallel.pipeline.schedule.registry import make_schedule
from ...parallel.registry import HYBRID_STRATEGIES, make_strategy
from ...parallel.strategy import Strategy
from ..config import MESH_AXES, TrainConfig
from .context import check_context, context_options
from .precision import activation_format, wire_options


def parse_mesh(text: str) -> dict[str, int]:
    """ "pp=2,dp=4" as {"pp": 2, "dp": 4}.  Raises UsageError for another form, axis or size."""
    sizes = {}
    for part in text.split(","):
        axis, _, size = part.partition("=")
        if not size.isdecimal() or int(size) < 1:
            raise UsageError(f"--mesh {text}: expected axis=size, for example dp=4, not {part!r}")
        if axis not in (*AXES, "ep"):
            raise UsageError(f"--mesh {text}: no axis {axis!r}, only {MESH_AXES}: for example "
                             "--mesh pp=2,dp=4")
        if axis in sizes:
            raise UsageError(f"--mesh {text}: axis {axis} is given twice")
        sizes[axis] = int(size)
    return sizes


def mesh_sizes(config: TrainConfig) -> dict[str, int]:
    """The sizes of the mesh by axis; {} without --mesh."""
    return parse_mesh(config.parallel.mesh) if config.parallel.mesh else {}


def num_mesh_ranks(text: str) -> int:
    """The number of ranks of a mesh, in which ep takes ranks of dp.  Raises UsageError."""
    sizes = parse_mesh(text)
    ep = sizes.pop("ep", 1)
    return math.prod({"dp": ep, **sizes}.values())


def is_hybrid(config: TrainConfig) -> bool:
    """True if the mesh cuts the model or sequences as well as the batch."""
    return bool({"pp", "cp", "tp", "ep"} & mesh_sizes(config).keys())


def check_mesh(config: TrainConfig) -> None:
    """Refuse options that do not go with the mesh.  Raises UsageError."""
    sizes = mesh_sizes(config)
    for name in ("schedule", "microbatches", "virtual_stages"):
        if config.get(name) is not None and "pp" not in sizes:
            raise UsageError(f"--{name.replace('_', '-')} goes with a pipeline: add pp to the "
                             "mesh, for example --mesh pp=2, or leave it out")
    if config.parallel.sequence_parallel and sizes.get("tp", 1) == 1:
        raise UsageError("--sequence-parallel splits tokens over the ranks of tp: add tp to the "
                         "mesh, for example --mesh tp=2, or leave it out")
    if config.parallel.sequence_parallel and config.data.source == "digits":
        raise UsageError("--sequence-parallel splits a text's tokens, but --data digits trains an "
                         "MLP, which has no sequence: leave it out")
    if config.parallel.sequence_parallel and sizes.get("cp", 1) == 1 \
            and config.model.context % sizes["tp"]:
        raise UsageError(f"--sequence-parallel splits --context {config.model.context} over "
                         f"{sizes['tp']} ranks, which does not divide: choose a multiple of "
                         f"{sizes['tp']}")
    check_experts(config, sizes)
    check_context(config, sizes)
    if not is_hybrid(config):
        return
    parallel = config.parallel
    if parallel.strategy not in HYBRID_STRATEGIES:
        raise UsageError(f"--strategy {parallel.strategy} does not go with --mesh {parallel.mesh}: "
                         f"beside pp and tp choose {' or '.join(HYBRID_STRATEGIES)}")
    if config.parallel.hybrid_shard is not None:
        raise UsageError("--hybrid-shard shards over some of the ranks, but beside pp and tp fsdp "
                         "shards over all of dp: leave it out, or choose a smaller dp")
    if config.parallel.bucket_mb is not None:
        raise UsageError("--bucket-mb cuts gradients for overlap with one backward, but beside pp "
                         "and tp they are summed whole, after the last: leave it out")
    if parallel.microbatches is not None \
            and parallel.accumulate not in (1, parallel.microbatches):
        raise UsageError(f"--accumulate {parallel.accumulate} and --microbatches "
                         f"{parallel.microbatches} say the same thing of a pipeline: leave one out")
    if "pp" in sizes:
        try:
            make_schedule(config.parallel.schedule or "1f1b", 1, 1, config.parallel.virtual_stages)
        except ValueError as error:
            raise UsageError(str(error)) from error


def check_experts(config: TrainConfig, sizes: Mapping[str, int]) -> None:
    """Refuse experts, or ranks for them, that do not go with the rest.  Raises UsageError."""
    ep, num_experts = sizes.get("ep", 1), config.experts.num_experts
    if num_experts and config.data.source == "digits":
        raise UsageError("--experts are MLPs in the blocks of a GPT, but --data digits trains an "
                         "MLP without blocks: leave --experts out")
    if num_experts and config.parallel.strategy == "dp":
        raise UsageError("--experts needs each sample's share of the loss, which --strategy dp "
                         "does not give to its replicas: choose ddp")
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


def num_microbatches(config: TrainConfig) -> int:
    """The number of microbatches into which a rank's rows of a batch are cut."""
    if config.parallel.microbatches or config.parallel.accumulate > 1:
        return config.parallel.microbatches or config.parallel.accumulate
    return 2 * mesh_sizes(config).get("pp", 0) or 1


def build_strategy(config: TrainConfig, model: Module, comm: Communicator) -> Strategy:
    """The configured strategy.  Raises UsageError or ValueError for one that cannot be."""
    parallel = config.parallel
    options: dict[str, Any] = {**wire_options(config)}
    if not is_hybrid(config):
        given = {"bucket_mb": parallel.bucket_mb, "hybrid_shard": parallel.hybrid_shard}
        options |= {name: value for name, value in given.items() if value is not None}
        return make_strategy(parallel.strategy, model, comm, **options)
    try:
        return make_strategy(parallel.strategy, model, DeviceMesh(comm, **mesh_sizes(config)),
                             schedule=parallel.schedule or "1f1b",
                             virtual_stages=parallel.virtual_stages,
                             sequence_parallel=parallel.sequence_parallel,
                             context=context_options(config, mesh_sizes(config)),
                             activation_format=activation_format(config), **options)
    except ValueError as error:
        raise UsageError(f"--mesh {config.parallel.mesh}: {error}") from error


def describe_strategy(config: TrainConfig) -> str:
    """The strategy in a few words, for a headline."""
    if not is_hybrid(config):
        return config.parallel.strategy
    words = [config.parallel.mesh, config.parallel.strategy]
    if "pp" in mesh_sizes(config):
        words += [config.parallel.schedule or "1f1b", f"{num_microbatches(config)} microbatches"]
    context = context_options(config, mesh_sizes(config))
    if context is not None:
        # `context` says ring for ulysses: with rings of one rank each
        words += [config.context.method or context.method, context.order]
    return ", ".join(words + ["sequence parallel"] * config.parallel.sequence_parallel)
