"""What `minipar train` can be told, and every mistake that can be found before the ranks start."""

import argparse
import math
import tempfile
from collections.abc import Iterable
from pathlib import Path

from ..environment import launched
from ..launcher import UsageError
from ..nn import GPTConfig
from ..parallel.strategies import BUCKETED, NAMES
from .setup.device import add_device_argument, check_device
from .setup.memory import add_memory_arguments, check_memory
from .setup.precision import add_precision_arguments, check_precision
from .setup.strategy import BUCKET_MB, add_mesh_arguments, check_mesh, parse_mesh

OPTIMIZERS = ("adamw", "adam", "sgd")
MOST_SIMULATED = 4096       # ranks, each with its part of the model, in one process

# What a checkpoint keeps, and a resumed run takes from it unless it is told otherwise.  What goes
# with the ranks there happen to be (--mesh and what goes with it, --hybrid-shard, --bucket-mb) has
# to be said again.
REMEMBERED = ("layers", "heads", "kv_heads", "width", "head_width", "mlp_width", "context",
              "untied", "hidden", "dropout", "data", "batch", "steps", "optimizer", "lr", "warmup",
              "weight_decay", "decay_all", "momentum", "clip", "seed", "dtype", "precision",
              "loss_scale", "reduce_dtype", "gather_dtype", "strategy", "accumulate", "remat")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `minipar train`."""
    # Of a checkpoint that is gone on from: its characters, where its text was, the seed of data.
    parser.set_defaults(vocabulary=None, data_paths={}, data_seed=None)
    model = parser.add_argument_group("model")
    model.add_argument("--layers", type=int, default=4, help="blocks of the GPT (4)")
    model.add_argument("--heads", type=int, default=4, help="attention heads (4)")
    model.add_argument("--kv-heads", type=int, help="heads of keys and values (as many as --heads)")
    model.add_argument("--width", type=int, default=128, help="width of the model (128)")
    model.add_argument("--head-width", type=int, help="of each head (--width / --heads)")
    model.add_argument("--mlp-width", type=int,
                       help="between the two layers of each block's MLP (4 x --width)")
    model.add_argument("--context", type=int, default=64, help="tokens the model sees at once (64)")
    model.add_argument("--untied", action="store_true",
                       help="give the head weights of its own, not those of the token embedding")
    model.add_argument("--hidden", default="128,64", metavar="SIZES",
                       help="hidden sizes of the MLP that --data digits trains (128,64)")
    model.add_argument("--dropout", type=float, default=0.0, help="dropout rate (0)")
    data = parser.add_argument_group("data")
    data.add_argument("--data", default="docs", metavar="docs|digits|synthetic|PATH",
                      help="Python's own documentation (default), handwritten digits, a made-up "
                           "language with a known best loss, or any text file")
    data.add_argument("--batch", type=int, default=32, help="samples a step, over all ranks (32)")
    run = parser.add_argument_group("run")
    run.add_argument("--steps", type=int, default=200, help="optimizer steps (200)")
    run.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    run.add_argument("--lr", type=float, default=None,
                     help="peak learning rate (3e-3; sgd: 0.1)")
    run.add_argument("--warmup", type=int, default=None, help="warm-up steps (a tenth of --steps)")
    run.add_argument("--weight-decay", type=float, default=None,
                     help="of matrices and embeddings; parameters of one axis, biases and layer "
                          "norms, do not decay (adamw: 0.01, adam and sgd: 0)")
    run.add_argument("--decay-all", action="store_true",
                     help="let parameters of one axis decay too")
    run.add_argument("--momentum", type=float, default=0.9, help="momentum of sgd (0.9)")
    run.add_argument("--clip", type=float, default=1.0, help="global gradient norm (1; 0: off)")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    run.add_argument("--ranks", type=int, metavar="N",
                     help="without mpirun: simulate N ranks in this process (1)")
    add_device_argument(run)
    add_mesh_arguments(parser)
    add_precision_arguments(parser)
    how = parser.add_argument_group("strategy")
    how.add_argument("--strategy", choices=NAMES, default="ddp",
                     help="how ranks share the work: dp, rank 0 drives; ddp, gradients are summed "
                          "in buckets (default); zero1, zero2, zero3, optimizer states, and "
                          "gradients, and parameters are sharded; fsdp, all of them, by block")
    how.add_argument("--accumulate", type=int, default=1, metavar="K",
                     help="add up the gradients of K microbatches in each step (1)")
    how.add_argument("--bucket-mb", type=float, metavar="MB",
                     help=f"megabytes of a bucket of gradients, with {_listed(BUCKETED)} "
                          f"({BUCKET_MB:g})")
    how.add_argument("--hybrid-shard", type=int, metavar="N",
                     help="with fsdp: shard over N neighbouring ranks, and replicate those shards "
                          "over the others (all ranks)")
    add_memory_arguments(parser)
    files = parser.add_argument_group("results")
    files.add_argument("--out", type=Path, metavar="DIR",
                       help="write checkpoints there, the loss curve, and one step's timeline, "
                            "memory and pipeline")
    files.add_argument("--save-every", type=int, default=0, metavar="N",
                       help="also write a checkpoint every N steps")
    files.add_argument("--resume", type=Path, metavar="DIR",
                       help="go on from the checkpoint there, and write there if no --out is given")
    files.add_argument("--sample", type=int, default=0, metavar="N",
                       help="print N characters of generated text at the end")
    files.add_argument("--prompt", default="\n", help="what the sample goes on from")
    files.add_argument("--temperature", type=float, default=0.8)
    files.add_argument("--verify", type=int, default=0, metavar="N",
                       help="at the end, repeat the first N steps in float64 on all ranks and on "
                            "one, and print how far apart they are")


def choose_world(options: argparse.Namespace) -> int:
    """How many ranks there will be.  Raises UsageError if the mesh, or shards, do not fit them."""
    world = launched()
    if world and options.ranks is not None:
        raise UsageError(f"--ranks simulates ranks without mpirun, but {world} started "
                         f"{world.size}: leave one of the two out")
    given = world.size if world else options.ranks
    if given is not None and given < 1:
        raise UsageError(f"--ranks takes a positive whole number, not {given}")
    num_ranks = given or 1
    if options.mesh is not None:
        num_ranks = math.prod(parse_mesh(options.mesh).values())
    if not world and num_ranks > MOST_SIMULATED:
        raise UsageError(f"{num_ranks:,} ranks are more than can be simulated here: choose at most "
                         f"{MOST_SIMULATED:,}")
    if given is not None and given != num_ranks:
        raise UsageError(f"--mesh {options.mesh} is for {num_ranks} ranks, but there are {given}: "
                         f"say --mesh dp={given}, or start {num_ranks} ranks "
                         f"(mpirun -n {num_ranks} …)")
    if options.hybrid_shard is not None and num_ranks % options.hybrid_shard:
        raise UsageError(f"--hybrid-shard {options.hybrid_shard} does not divide {num_ranks} "
                         f"rank{'s' if num_ranks > 1 else ''}: choose a divisor of {num_ranks}")
    return num_ranks


def check(options: argparse.Namespace) -> None:
    """Refuse numbers that cannot work.  Raises UsageError."""
    for name, least in (("steps", 1), ("batch", 1), ("sample", 0), ("verify", 0), ("save_every", 0),
                        ("seed", 0), ("accumulate", 1), ("hybrid_shard", 1), ("microbatches", 1),
                        ("virtual_stages", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise UsageError(f"--{name.replace('_', '-')} must be at least {least}, not {value}")
    _check_strategy(options)
    check_mesh(options)
    check_memory(options)
    check_precision(options)
    check_device(options)
    for name in ("lr", "temperature", "clip", "weight_decay", "momentum", "warmup"):
        value = getattr(options, name)
        if value is not None and not (0 <= value < math.inf):
            raise UsageError(f"--{name.replace('_', '-')} must be a number >= 0, not {value}")
    if options.out is None and options.resume is not None and options.resume.is_dir():
        options.out = options.resume            # the run goes on where it is
    if options.save_every and options.out is None:
        raise UsageError("--save-every needs a folder: add --out DIR")
    if options.out is not None:
        _check_folder(options.out)
    if options.sample and options.data == "digits":
        raise UsageError("--sample generates text, but --data digits trains a classifier: "
                         "leave --sample out")
    if options.lr is None:
        options.lr = 0.1 if options.optimizer == "sgd" else 3e-3
    if options.warmup is None:
        options.warmup = options.steps // 10
    if options.warmup >= options.steps and options.warmup:
        raise UsageError(f"--warmup {options.warmup} must be less than --steps {options.steps}")


def _check_strategy(options: argparse.Namespace) -> None:
    """Refuse options that the strategy has no use for."""
    if options.bucket_mb is not None:
        if not 0 < options.bucket_mb < math.inf:
            raise UsageError("--bucket-mb takes a number of megabytes > 0, not "
                             f"{options.bucket_mb:g}: for example --bucket-mb 1")
        if options.strategy not in BUCKETED:
            raise UsageError(f"--bucket-mb goes with {_listed(BUCKETED)}; {options.strategy} has "
                             "no buckets: leave it out")
    if options.hybrid_shard is not None and options.strategy != "fsdp":
        raise UsageError("--hybrid-shard goes with --strategy fsdp, not with "
                         f"{options.strategy}: leave it out, or say --strategy fsdp")


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}"


def _check_folder(folder: Path) -> None:
    """Find out now, not after the training, whether results can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be written to ({error.strerror}): give a folder "
                         "that can") from error


def gpt_config(options: argparse.Namespace, vocab_size: int) -> GPTConfig:
    """The model that the options describe.  Raises UsageError for sizes that cannot work."""
    try:
        return GPTConfig(vocab_size, options.context, options.layers, options.heads, options.width,
                         options.kv_heads, options.dropout, not options.untied, options.head_width,
                         options.mlp_width)
    except ValueError as error:
        raise UsageError(str(error)) from error


def hidden_sizes(options: argparse.Namespace) -> list[int]:
    """--hidden as numbers.  Raises UsageError for anything else."""
    sizes = options.hidden.split(",") if options.hidden else []
    if any(not size.isdecimal() or int(size) < 1 for size in sizes):
        raise UsageError(f"--hidden takes sizes separated by commas, for example 128,64, not "
                         f"{options.hidden!r}")
    return [int(size) for size in sizes]
