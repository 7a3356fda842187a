"""The configuration of a training run: one value, from the command line to the last checkpoint.

    defaults, checkpoint of --resume, file of --config, --set, flags ─▶ TrainConfig ─▶ train(config)
                        of several values, the one furthest right counts

To add an option, add a field with an `option(…)` (`option.py`).  Its flag is `--` and its
`flag_name`, or else the name of the field.  A `setting(…)` has no flag: it is given as
`--set section.name=…`.  In a file both are `[section] name = …`.  A checkpoint keeps the value,
unless `saved=False`.  `check.py` refuses a value of a wrong type, an unknown choice, and a number
below `least` or above `most`.  It also refuses an option that lacks what it `needs`, or is given
beside what it goes `without`.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .option import Beside, OptionField, option, options_of, setting
from .slow_network_options import ApartOptions, MessagesConfig

DEVICES = ("cpu", "cuda")
MESH_AXES = ("pp (pipeline), dp (data), replicate (copies of what dp shards), cp (context: tokens "
             "of a sequence), tp (tensor parallel) and ep (experts, over neighbours of dp)")


@dataclass(frozen=True)
class ModelConfig:
    """The sizes and kinds of layers of the GPT, or of the MLP that `--data digits` trains."""

    layers: int = option(4, "blocks of the GPT", most=10_000)
    heads: int = option(4, "attention heads")
    kv_heads: int | None = setting(None, "heads of keys and values",
                                   default_text="as many as --heads")
    width: int = option(128, "width of the model")
    head_width: int | None = setting(None, "width of each head", default_text="--width / --heads")
    mlp_width: int | None = setting(None, "width between the two layers of each block's MLP",
                                    default_text="4 x --width")
    context: int = option(64, "tokens that the model sees at once")
    untied: bool = setting(False, "give the head weights of its own, not the token embedding's")
    hidden: str = option("128,64", "hidden sizes of the MLP that --data digits trains",
                         metavar="SIZES")
    dropout: float = option(0.0, "dropout rate")
    norm: str = setting("layer", "layer norm as in GPT-2, or RMS norm as in Llama",
                       choices="nn.gpt:NORMS")
    norm_epsilon: float = setting(1e-5, "added to the variance by the norm", least=0)
    mlp: str = setting("gelu", "the MLP of each block: GPT-2's GELU or Llama's SwiGLU",
                      choices="nn.gpt:MLPS")
    rope: str | None = setting(None, "rotary positions with this base, as 10000, scaled as "
                               "500000,llama3,8,1,4,8192", metavar="THETA",
                               default_text="learned positions")
    bias: bool = setting(True, "biases in the linear layers of the blocks")
    activation: str = setting("relu", "between the layers of the MLP",
                               choices="nn.layers:Activation.KINDS", saved=False)


@dataclass(frozen=True)
class ExpertsConfig:
    """The experts of the GPT, by the names of nn.MoEConfig."""

    num_experts: int = option(
        0, "MLPs in each block, of which every token uses a few; 0: the one of a dense model",
        flag_name="experts", least=0, most=2**20,
        without=(Beside("data", "digits", "are MLPs in the blocks of a GPT"),))
    top_k: int = setting(2, "experts of each token", least=1)
    every: int = setting(1, "only the last of every N blocks has experts", least=1,
                        flag_name="experts_every")
    width: int | None = setting(None, "width between the two layers of each expert", least=1,
                                flag_name="expert_width", default_text="that of the MLP")
    num_shared: int = setting(0, "experts that every token uses besides", least=0,
                              flag_name="shared_experts")
    scores: str = setting("softmax", "scores of the router; sigmoid: as DeepSeek-V3",
                         choices="nn.moe.config:SCORES", flag_name="router")
    renormalize: bool | None = setting(None, "let the gates of a token add up to `scale`",
                                       default_text="if it uses several experts")
    scale: float = setting(1.0, "factor of the gates", least=0, flag_name="gate_scale")
    num_groups: int = setting(1, "groups of experts", least=1, flag_name="expert_groups")
    top_groups: int = setting(1, "groups from which a token takes its experts", least=1)
    capacity_factor: float | None = setting(
        None, "places of an expert, relative to even use; choices that find none are dropped",
        least=0, default_text="none is dropped")
    drop: str = setting("choice", "the order in which choices take places",
                        choices="nn.moe.config:DROPS")
    capacity_per: str = setting("sequence", "tokens that share the places",
                                choices="nn.moe.config:CAPACITY_GROUPS")
    balance_loss: float = setting(0.01, "coefficient of the loss that balances experts", least=0)
    balance_per: str = setting("sequence", "tokens over which that loss is taken",
                               choices="nn.moe.config:BALANCE_GROUPS")
    z_loss: float = setting(0.0, "coefficient of the loss against large logits of routers", least=0)
    bias_rate: float = setting(0.0, "step of a bias that balances experts without a loss", least=0)


@dataclass(frozen=True)
class RecordedData:
    """What a checkpoint records of the data beside the options."""

    vocabulary: str | dict | None = None    # characters, or as `data.vocabulary_of` reads it
    seed: int | None = None             # the one that made the synthetic language
    source: str | None = None           # what --data was …
    path: str | None = None             # … and where that file was


@dataclass(frozen=True)
class DataConfig:
    """The data, and the size of a batch."""

    source: str = option("docs", "Python's own documentation (docs), handwritten digits, a made-up "
                         "language with a known best loss (synthetic), or the path of any text",
                         flag_name="data", metavar="docs|digits|synthetic|PATH")
    batch: int = option(32, "samples in each step, over all ranks", least=1, most=2**32)
    recorded: RecordedData = RecordedData()     # no option: it comes from a checkpoint


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer; its rate rises linearly to `lr`, then falls by a schedule to `lr` / 10."""

    name: str = option("adamw", "the update rule", flag_name="optimizer",
                       choices="optim.registry:OPTIMIZERS")
    lr: float | None = option(
        None, "peak learning rate; after --warmup a schedule lowers it to LR/10 in the last step",
        least=0, metavar="LR", default_in="optim.registry:OPTIMIZERS")
    warmup: int | None = option(None, "warm-up steps", least=0, default_text="a tenth of --steps")
    lr_schedule: str = setting("cosine", "how the rate falls after the warm-up",
                               choices="optim.lr_schedule:LR_SCHEDULES")
    weight_decay: float | None = setting(
        None, "weight decay of matrices and embeddings; biases and layer norms do not decay",
        least=0, default_in="optim.registry:OPTIMIZERS")
    decay_all: bool = setting(False, "let biases and layer norms decay too")
    momentum: float | None = setting(None, "momentum of an optimizer that has one", least=0,
                                     default_in="optim.registry:OPTIMIZERS")
    clip: float = option(1.0, "largest norm of all gradients together; 0: no clipping", least=0)


A_PIPELINE = Beside("mesh", "pp", "goes with a pipeline")


@dataclass(frozen=True)
class ParallelConfig(ApartOptions):
    """The strategy, the mesh and the pipeline: the division of the work over ranks."""

    strategy: str = option("ddp", "the way in which the ranks of dp share the work; or a class of "
                           "your own", choices="parallel.registry:STRATEGIES", or_class=True)
    accumulate: int = option(1, "add up the gradients of K microbatches in each step", least=1,
                             metavar="K")
    bucket_mb: float | None = option(
        None, "MiB (2**20 bytes) in a bucket of gradients, reduced in one message",
        metavar="MB", least=1e-6, default_text="25", saved=False)
    hybrid_shard: int | None = option(
        None, "shard over N neighbouring ranks, replicate the shards over the others",
        least=1, metavar="N", default_text="all ranks", saved=False)
    whole_parameters: bool | None = setting(
        None, "shards are cut between parameters, so that Muon finds whole matrices on a rank",
        default_text="shards are equally long", saved=False)
    every: int | None = option(
        None, "exchange the parameters after every K steps", least=1, metavar="K",
        default_text="4", saved=False)
    vertical_sync: bool | None = setting(
        None, "a microbatch meets the same version of the weights on all stages",
        default_text="each stage's newest", saved=False)
    microbatches_per_step: int | None = setting(
        None, "microbatches of a step, at least as many as stages", least=1, metavar="M",
        default_text="pp", saved=False)
    num_slices: int | None = setting(None, "slices of the tokens of a sequence", least=1,
                                     metavar="S", default_text="4", saved=False)
    mesh: str | None = option(
        None, f"the grid of ranks, with the axes {MESH_AXES}: for example pp=2,dp=2,tp=2",
        metavar="AXIS=N,…", default_text="data parallel over all ranks", saved=False)
    schedule: str | None = option(None, "with pp: the order of forwards and backwards",
                                  choices="parallel.pipeline.schedule.registry:SCHEDULES",
                                  default_text="1f1b", saved=False, needs=A_PIPELINE)
    microbatches: int | None = option(
        None, "with pp: microbatches into which each dp rank's rows are cut", least=1,
        metavar="M", default_text="2 pp", saved=False, needs=A_PIPELINE)
    virtual_stages: int | None = setting(
        None, "with pp: stages of each rank, for a schedule that takes several", least=1,
        metavar="V", default_text="2", saved=False, needs=A_PIPELINE)
    sequence_parallel: bool = option(
        False, "with tp: split a GPT's tokens between pairs of layers", saved=False,
        needs=Beside("mesh", "tp", "splits tokens over the ranks of tp"),
        without=(Beside("data", "digits", "splits a text's tokens"),))


A_CONTEXT = Beside("mesh", "cp", "says how the ranks of cp share tokens")


@dataclass(frozen=True)
class ContextConfig:
    """How the ranks of cp, an axis of the mesh, share the tokens of a sequence."""

    method: str | None = option(
        None, "keys and values travel around a ring, or are gathered first; ulysses: tokens are "
        "exchanged for heads", flag_name="context_method",
        choices="train.setup.context:METHODS", default_text="ring", saved=False, needs=A_CONTEXT)
    order: str | None = setting(
        None, "the tokens of each rank; zigzag gives all ranks equal work",
        flag_name="context_order", choices="parallel.context.token_order:ORDERS",
        default_text="zigzag", saved=False, needs=A_CONTEXT)
    ulysses_degree: int | None = setting(
        None, "N neighbours exchange tokens for heads, with rings between them", least=1,
        metavar="N", default_text="1", saved=False, needs=A_CONTEXT)


ROUNDS = Beside("dtype", "float64", "rounds float32 numbers")


@dataclass(frozen=True)
class PrecisionConfig:
    """The formats in which numbers are computed, kept and sent."""

    dtype: str = option("float32", "of the parameters", choices=("float32", "float64"))
    compute: str = option("fp32", "format of activations, gradients and weights in use; fp8: of "
                          "factors, the rest bf16", flag_name="precision",
                          choices="mixed_precision:PRECISIONS", without=(ROUNDS,))
    loss_scale: str | None = option(
        None, "factor of the loss in backward", metavar="dynamic|none|N",
        default_text="dynamic with fp16 and fp8, else none",
        needs=Beside("precision", "fp16", "goes with numbers that underflow"))
    reduce_dtype: str = option(
        "fp32", "format in which data-parallel ranks sum gradients (integers: sent as such, summed "
        "in float32, and the rounding error is sent in the next step), or a method that sends few "
        "numbers, or few bits of each (docs/pages/slow_networks.md)",
        choices="parallel.wire_formats.registry:WIRES", without=(ROUNDS,))
    gather_dtype: str = option("fp32", "format in which zero3 and fsdp gather weights",
                               choices="parallel.wire_formats.registry:WIRES", without=(ROUNDS,))


@dataclass(frozen=True)
class MemoryConfig:
    """Recomputation, offloading, and the limit of a rank's memory."""

    remat: str = option(
        "none", "what backward recomputes instead of keeping: attention's probabilities "
        "(selective), every block (full), segments of K blocks, √L segments, or as little as fits "
        "into SIZE bytes of activations", metavar="none|selective|full|every:K|sqrt|optimal:SIZE")
    offload: str = option(
        "", "keep these in a file, mapped into memory when they are needed: activations, optimizer "
        "(its states), parameters (with fsdp: its shards of parameters and gradients)",
        metavar="WHAT,…", saved=False,
        without=(Beside("device", "cuda", "keeps arrays in a file of the host"),))
    offload_dir: Path | None = setting(None, "folder of that temporary file", metavar="DIR",
                                       default_text="the system's", saved=False,
                                       needs=Beside("offload", "activations", "is for --offload"))
    memory_limit: str | None = option(
        None, "stop with a message when a rank needs more, for example 512MB", metavar="SIZE",
        saved=False, without=(Beside("device", "cuda", "limits the memory of the host"),))


@dataclass(frozen=True)
class RunConfig:
    """The length of the run, its ranks and device, and its results."""

    steps: int = option(200, "optimizer steps", least=1)
    seed: int = option(0, "of initial values, batches and dropout", least=0)
    ranks: int | None = option(None, "without mpirun: simulate N ranks in this process",
                               least=1, metavar="N", default_text="1", saved=False)
    device: str = option("cpu", "where arrays live: cuda needs CuPy, gives rank r GPU r mod their "
                         "number, and sends messages through the host", choices=DEVICES,
                         saved=False)
    out: Path | None = option(None, "folder for checkpoints, the loss curve, and the timeline, "
                              "memory and pipeline of one step", metavar="DIR", saved=False)
    save_every: int = option(0, "also write a checkpoint every N steps", least=0, metavar="N",
                             saved=False)
    resume: Path | None = option(None, "continue from the checkpoint in DIR, and write there if "
                                 "--out is not given", metavar="DIR", saved=False)
    sample: int = option(0, "print N characters of generated text at the end", least=0,
                         metavar="N", saved=False,
                         without=(Beside("data", "digits", "generates text"),))
    prompt: str = option("\n", "what the sample continues", default_text="\\n", saved=False)
    temperature: float = setting(0.8, "of the sample", least=0, saved=False)
    verify: int = option(0, "at the end, repeat the first N steps in float64 on all ranks and on "
                         "one; fail if they differ", least=0, metavar="N", saved=False)
    check: bool = option(False, "real ranks report collectives that differ, deadlocks and stopped "
                         "ranks within seconds, as with MINIPAR_CHECK=1", saved=False)
    record: Path | None = setting(None, "folder in which each rank records what it computes, for "
                                  "`minipar compare`", metavar="DIR", saved=False)
    record_steps: int = setting(3, "steps to record", least=1, saved=False)


@dataclass(frozen=True)
class TrainConfig:
    """Everything that `minipar train` can be told; `check.checked` says what goes together."""

    model: ModelConfig = ModelConfig()
    experts: ExpertsConfig = ExpertsConfig()
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    parallel: ParallelConfig = ParallelConfig()
    context: ContextConfig = ContextConfig()
    precision: PrecisionConfig = PrecisionConfig()
    messages: MessagesConfig = MessagesConfig()
    memory: MemoryConfig = MemoryConfig()
    run: RunConfig = RunConfig()

    def get(self, key: str) -> Any:
        """The value of an option, by the name of its flag: "lr", "kv_heads", "data"."""
        return getattr(getattr(self, OPTIONS[key].section), OPTIONS[key].name)

    def gives(self, key: str) -> bool:
        """True if an option has another value than its default."""
        return self.get(key) != OPTIONS[key].default

    @property
    def options(self) -> dict[str, OptionField]:
        """Every option, by the name of its flag."""
        return OPTIONS

    def updated(self, **values: Any) -> "TrainConfig":
        """A copy with new values, by the names of their flags: `updated(lr=0.1, steps=9)`."""
        changes: dict[str, dict[str, Any]] = {}
        for key, value in values.items():
            changes.setdefault(OPTIONS[key].section, {})[OPTIONS[key].name] = value
        return replace(self, **{section: replace(getattr(self, section), **of_section)
                                for section, of_section in changes.items()})


OPTIONS = options_of(TrainConfig)       # every option, by the name of its flag
