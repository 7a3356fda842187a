"""From the options and files of `minipar simulate` to the model and the layout that it runs."""

from dataclasses import replace
from typing import Any

from ...comm.mesh import parse_mesh
from ...nn import GPTConfig
from ...plan.cluster import ClusterSpec
from ...plan.layout import Layout
from ...plan.models import given_model
from ...step_simulation.step import AXES, check_layout
from ...train.config import TrainConfig
from ...train.config_file import read_config
from ...train.setup.gpt_sizes import gpt_config


def read_run(options: Any, cluster: ClusterSpec) -> tuple[GPTConfig, Layout]:
    """The model and the layout: from --config, over which other options win.  Raises ValueError."""
    config = TrainConfig()
    if options.config is not None:
        config = config.updated(**read_config(options.config))
    if options.model is not None:
        model = given_model(options.model, options.sequence)
    elif options.config is not None:
        model = gpt_config(config, options.vocabulary)
        model = replace(model, context=options.sequence or model.context)
    else:
        raise ValueError("simulate needs a model: --model gpt3-175b, or --config FILE")
    if options.mesh is not None:
        sizes = dict.fromkeys(AXES, 1) | mesh_of(f"--mesh {options.mesh}", options.mesh)
    elif config.parallel.mesh is not None:
        sizes = mesh_of(f"the file's mesh {config.parallel.mesh}", config.parallel.mesh)
    else:
        sizes = {"dp": cluster.num_gpus}
    layout = Layout(**sizes, sp=False) if options.config is None else layout_of(config, sizes)
    given: dict[str, Any] = {
        "batch": options.batch, "schedule": options.schedule, "v": options.virtual_stages,
        "kind": options.strategy, "remat": options.remat, "sp": options.sequence_parallel or None,
        "offload": options.offload,
        "microbatch": options.microbatch if options.gives("microbatch") else None}
    layout = replace(layout, **{key: value for key, value in given.items() if value is not None})
    if layout.v == 1 and layout.schedule == "interleaved":
        layout = replace(layout, v=2)
    if layout.batch == 1 and options.batch is None:
        layout = replace(layout, batch=layout.dp * layout.microbatch * 2 * layout.pp)
    check_layout(layout, model, cluster.num_gpus)
    return model, layout


def layout_of(config: TrainConfig, sizes: dict[str, int]) -> Layout:
    """The layout of a run of `minipar train` on a mesh of these sizes."""
    parallel = config.parallel
    num = parallel.microbatches or parallel.accumulate
    each = config.data.batch // (sizes["dp"] * num)
    return Layout(**sizes, sp=parallel.sequence_parallel, v=parallel.virtual_stages or 1,
                  schedule=parallel.schedule or "1f1b", kind=parallel.strategy,
                  microbatch=max(1, each), batch=config.data.batch, remat=config.memory.remat,
                  offload=config.memory.offload)


def mesh_of(where: str, text: str) -> dict[str, int]:
    """The sizes of dp and of axes with several ranks.  Raises ValueError for an unknown axis.

    Without an axis dp, dp has the ranks of ep.
    """
    sizes = {axis: size for axis, size in parse_mesh(text).items() if size > 1}
    for axis in sizes:
        if axis not in AXES:
            raise ValueError(f"{where}: a simulated step has no axis {axis!r}: choose from "
                             f"{', '.join(AXES)}")
    return {"dp": sizes.get("ep", 1)} | sizes


def parse_factors(text: str) -> dict[int, float]:
    """The ranks of "5=1.2,9=2" with their factors.  Raises ValueError for other texts."""
    found = {}
    for part in filter(None, text.split(",")):
        rank, _, factor = part.partition("=")
        try:
            found[int(rank)] = float(factor)
        except ValueError:
            raise ValueError(f"--slow-ranks {text}: expected RANK=FACTOR, as 5=1.2, not {part!r}"
                             ) from None
        if not 0 < found[int(rank)] < 1e6:
            raise ValueError(f"--slow-ranks {text}: a factor is a number > 0, not {factor}")
    return found


def parse_ranks(text: str) -> list[int]:
    """The ranks of "0,128".  Raises ValueError for other texts."""
    if not all(part.isdecimal() for part in text.split(",")):
        raise ValueError(f"--ranks {text}: expected RANK,…, as 0,128")
    return [*map(int, text.split(","))]
