"""`minipar simulate`: one training step on thousands of simulated GPUs, by minipar's own code.

    minipar simulate --model gpt3-175b --cluster 128x8:h100/megatron-core --mesh dp=16,pp=8,tp=8 \\
        --batch 1536 --schedule interleaved --virtual-stages 3 --strategy zero1 --sequence-parallel
    minipar simulate --config run.toml --cluster 8x8:h100        the layout of `minipar plan --emit`

The model, the strategy, the schedule and the collectives are those of `minipar train`, on arrays
without numbers.  A cluster file says how long GPUs and links take (docs/pages/simulating.md).
"""

from dataclasses import dataclass
from pathlib import Path

from ... import viz
from ...launcher import UsageError
from ...plan.cluster import read_cluster
from ...plan.layout import COSTED, REMATS
from ...step_simulation.failures import Failures
from ...step_simulation.report import pipeline_timeline, rank_maps
from ...step_simulation.step import simulate_step
from ...train.option import Beside, CommandOptions, option, out_file, perfetto
from ..tables import Output
from .model_and_layout import parse_factors, parse_ranks, read_run
from .tables import failures_table, say

FAILING = Beside("mtbf", "", "says how often a GPU fails")


def main(options: "Options", output: Output) -> None:
    """Simulate a step, print its numbers, write the files asked for.  Raises UsageError."""
    try:
        cluster = read_cluster(options.cluster)
        model, layout = read_run(options, cluster)
        traced = parse_ranks(options.ranks) if options.perfetto is not None else []
        step = simulate_step(cluster, model, layout, slow_ranks=parse_factors(options.slow_ranks),
                             traced=traced)
        failures = None if options.mtbf is None else Failures(
            options.mtbf * 3600 / cluster.num_gpus, options.checkpoint, options.restart,
            options.days * 86400, options.seed)
        if failures is not None and not (failures.checkpoint > 0 and failures.run / 1e6
                                         < failures.mtbf):
            raise ValueError("--mtbf, --checkpoint: expected a checkpoint that takes time, and at "
                             f"most a million failures, not {options.checkpoint:g} s and "
                             f"{options.days:g} days with one every {failures.mtbf:.3g} s")
        if failures is not None and failures.mtbf < failures.checkpoint:
            raise ValueError(f"--mtbf {options.mtbf:g} hours of a GPU are {failures.mtbf:.3g} s of "
                             f"{cluster.num_gpus:,} GPUs, less than a checkpoint takes: nothing "
                             "would ever be done")
    except (ValueError, OSError) as error:
        raise UsageError.of(error) from error
    say(output, step)
    if failures is not None:
        output.table(failures_table(failures))
    if layout.pp > 1:
        output.file(options.timeline, viz.draw_pipeline, pipeline_timeline(step), str(layout))
    elif options.timeline is not None:
        raise UsageError("--timeline draws the stages of a pipeline: give the mesh pp=2, or "
                         "--perfetto FILE for one stage")
    output.file(options.map, viz.draw_rank_map, rank_maps(step), str(layout))
    output.file(options.perfetto, viz.write_perfetto, step.trace)


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of the command."""

    model: str | None = option(None, "a name, as gpt3-175b, or layers=N,width=N,heads=N,vocab=N …, "
                               "as for minipar plan", metavar="NAME|SIZES")
    cluster: str = option("1x8:h100", "N nodes of M GPUs, and a software after a slash, as for "
                          "minipar plan", metavar="NxM:GPU")
    config: Path | None = option(None, "the layout, and sizes of the model: a file of minipar plan "
                                 "--emit, or of minipar train; other options win over it",
                                 metavar="FILE")
    vocabulary: int = option(51200, "tokens of a model that --config describes", least=2)
    mesh: str | None = option(None, "ranks along each axis, as dp=16,pp=8,tp=8",
                              metavar="AXIS=N,…", default_text="all along dp")
    batch: int | None = option(None, "sequences of a step, over all ranks", least=1)
    microbatch: int = option(1, "sequences that a rank computes at a time", least=1)
    sequence: int | None = option(None, "tokens of a sequence", least=1)
    schedule: str | None = option(None, "the schedule of the pipeline",
                                  choices="parallel.pipeline.schedule.registry:SCHEDULES")
    virtual_stages: int | None = option(None, "stages of each rank", least=1)
    strategy: str | None = option(None, "the way in which the ranks of dp share the work",
                                  choices=COSTED)
    sequence_parallel: bool = option(False, "split the tokens over tp between pairs of layers")
    remat: str | None = option(None, "what backward recomputes", choices=REMATS)
    offload: str | None = option(None, "keep these in the host's memory: activations, optimizer "
                                 "(its states)", metavar="WHAT,…")
    slow_ranks: str = option("", "ranks that take longer, each with a factor, as 5=1.2",
                             metavar="RANK=FACTOR,…", default_text="none")
    timeline: Path | None = out_file("draw the stages of a pipeline over time (.png, .svg, .pdf)")
    map: Path | None = out_file("draw a map of all ranks: how much each computes, and its memory")
    perfetto: Path | None = perfetto()
    ranks: str = option("0", "the ranks of that trace", metavar="RANK,…",
                        needs=Beside("perfetto", "trace.json", "writes the trace"))
    mtbf: float | None = option(None, "hours until a GPU fails, in the mean: also simulate a long "
                                "run that fails", metavar="HOURS", group="failures", least=0)
    checkpoint: float = option(60.0, "that a checkpoint takes", metavar="SECONDS",
                               group="failures", least=0, needs=FAILING)
    restart: float = option(600.0, "from a failure to the next step", metavar="SECONDS",
                            group="failures", least=0, needs=FAILING)
    days: float = option(30.0, "length of the run", metavar="DAYS", group="failures", least=0,
                         needs=FAILING)
    seed: int = option(0, "of the failures", group="failures", needs=FAILING)
