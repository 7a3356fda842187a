"""`minipar train`: a GPT or an MLP, over all ranks there are, with any strategy.

    minipar train --data my.txt --layers 6 --steps 2000 --out out/gpt
    minipar train --config run.toml --lr 0.001
    minipar train --resume out/gpt --ranks 4 --strategy fsdp

The flags come from the fields of the configuration, minipar/train/config.py.
"""

import argparse
import sys

from ..launcher import UsageError, report_usage
from ..train import TrainResult, train
from ..train.check import checked
from ..train.command_line import add_arguments, parse_config
from ..train.config_file import to_toml
from .tables import Column, Output, Table

__all__ = ["add_arguments", "main"]


def main(options: argparse.Namespace, output: Output) -> int:
    """Train, or print the configuration; return the exit status.  Raises UsageError.

    The status is 1 on every rank if --verify finds a difference.
    """
    config = parse_config(options)
    if options.print_config:
        if options.json:
            raise UsageError("--print-config writes TOML to stdout, and --json JSON: leave one of "
                             "them out")
        checked(config)
        if output.is_first:
            sys.stdout.write(to_toml(config))
        return 0
    result = train(config, output.console)
    if output.is_first:
        output.table(closing_figures(result), show=False)
    if result.comparison is not None and result.comparison.verdict == "different":
        return report_usage(UsageError(f"NOT the same as one rank, in float64: {result.comparison}",
                                       status=1))
    return 0


def closing_figures(result: TrainResult) -> Table:
    """The results of a training run, for scripts: losses, accuracy, files."""
    table = Table.of("training", "figure", Column("value"), Column("unit", is_text=True))
    table.add("steps", len(result.losses), "")
    table.add("final loss", result.losses[-1], "nats")
    table.add("parameters", result.model.num_parameters(), "")
    table.add("validation loss", result.score.nats, "nats")
    if result.score.accuracy is not None:
        table.add("validation accuracy", result.score.accuracy, "")
    if result.comparison is not None:
        table.add("distance to one rank", result.distance, "relative")
    for file in result.files:
        table.add(file.name, str(file), "path")
    return table
