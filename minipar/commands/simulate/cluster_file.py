"""`minipar calibrate --cluster FILE`: this machine as a cluster file, and steps predicted by it.

    mpirun -n 4 python -m minipar calibrate --cluster FILE
    minipar simulate --cluster 1x4:FILE --mesh dp=2,pp=2 --model layers=4,width=256,…

The numbers are measured by small programs (step_simulation/measure.py).  Then real steps of a small
GPT are timed and compared with their prediction.  No number of the file comes from such a step.
"""

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from ...atomic_files import write_text
from ...comm import Cluster, Communicator
from ...environment import blas_threads
from ...launcher import UsageError, launch, on_first_rank
from ...nn import GPTConfig
from ...plan.cluster import ClusterSpec
from ...plan.layout import Layout
from ...step_simulation import simulate_step
from ...step_simulation.measure import measure_machine, measured_step
from ..tables import Column, Output, Shown, Table
from .tables import seconds

MODELS = [GPTConfig(vocab_size=1024, context=128, num_layers=4, num_heads=width // 32, width=width)
          for width in (128, 256, 512)]
BATCH = 8                               # about so many sequences in a step
NUM_STEPS = 8                           # timed steps, at most


def write_cluster(path: Path, num_rounds: int, output: Output, is_real: bool) -> None:
    """Measure on all ranks of mpirun if `is_real`, else on one; write the file; compare steps.

    Raises UsageError for a path that cannot be written, or for ranks on several nodes.
    """
    if path.suffix != ".toml" or not path.parent.is_dir():
        raise UsageError(f"--cluster {path}: expected a file NAME.toml in a folder that exists")

    def main(comm: Communicator) -> None:
        if comm.node_of(comm.size - 1) != comm.node_of(0):
            raise UsageError("--cluster measures one machine: start all ranks on one node")
        measured = measure_machine(comm, num_rounds)
        on_first_rank(comm, lambda: write_text(path, as_toml(measured)))
        output.text(f"{path}: {measured.title}.")
        compare(comm, measured, min(num_rounds, NUM_STEPS), output)
    if is_real:
        launch(main)
    else:
        with threadpool_limits(blas_threads()):
            Cluster(1).run(main)


def as_toml(cluster: ClusterSpec) -> str:
    """The text of a cluster file, which `read_cluster` reads."""
    s = cluster.software
    lines = [f"{json.dumps(name)} = {json.dumps(line)}" for name, line in s.operations.items()]
    return "\n".join([*_rows(cluster, ("name", "software", "nodes")), "", f"[software.{s.name}]",
                      *_rows(s, ("name", "operations")), "", f"[software.{s.name}.operations]",
                      "# seconds of a call, of a FLOP, of a byte", *lines, ""])


def _rows(values: Any, others: tuple[str, ...]) -> list[str]:
    """KEY = VALUE of each field, without fields that have their default and without `others`."""
    return [f"{f.name} = {_value(getattr(values, f.name))}" for f in fields(values)
            if f.name not in others and getattr(values, f.name) != f.default]


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {number}" for key, number in value.items()) + "}"
    return "[]" if value is None else json.dumps(value, ensure_ascii=False)


def layouts(num_ranks: int) -> list[Layout]:
    """The layouts whose steps are compared: dp alone, and dp with two ranks of tp or of pp."""
    each = max(1, BATCH // num_ranks)
    batch = each * num_ranks
    found = [Layout(dp=num_ranks, batch=batch, microbatch=each, sp=False, kind=kind)
             for kind in ("ddp", "zero1")[:num_ranks]]
    if num_ranks % 2 == 0:
        shared = Layout(dp=num_ranks // 2, batch=batch, microbatch=2 * each, sp=False)
        found += [replace(shared, tp=2), replace(shared, pp=2, microbatch=max(1, each // 2))]
    return found


def compare(comm: Communicator, cluster: ClusterSpec, num_steps: int, output: Output,
            models: Sequence[GPTConfig] = MODELS) -> None:
    """Collective.  Print the predicted and the measured seconds of steps."""
    made = Table.of(f"a step of a GPT of {models[0].num_layers} layers, {models[0].context} tokens "
                    f"a sequence, about {BATCH} sequences", "width", "layout",
                    Column("predicted", "s"), Column("measured", "s"), "error")
    for model, layout in product(models, layouts(comm.size)):
        measured = measured_step(comm, model, layout, num_steps)
        if comm.rank == 0:
            predicted = simulate_step(cluster, model, layout).seconds
            made.add(model.width, str(layout), seconds(predicted), seconds(measured),
                     Shown(predicted / measured - 1, f"{predicted / measured - 1:+.1%}"))
    output.table(made)
