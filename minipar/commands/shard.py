"""`minipar shard MODEL`: annotate a few tensors of a model, and see what follows (GSPMD).

    minipar shard gpt --mesh dp=2,tp=4 --annotate 'ids=dp' \\
        --annotate 'h.*.attn.c_attn.weight=(None, tp)' --annotate 'h.*.mlp.c_fc.weight=(None, tp)'

    minipar shard gpt --mesh dp=2,tp=4 --width 4096 --heads 32 --search --memory 2e9

No ranks run: the program of a rank is worked out from shapes.
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD

from .. import viz
from ..comm.mesh import parse_mesh
from ..gspmd import P, ShardingPlan, plan
from ..gspmd.describe import CollectiveTotal, folded, rows
from ..gspmd.search import Machine, memory_bytes, program_seconds, search
from ..gspmd.spec import local_shape, show
from ..launcher import errors_as_usage
from ..nn import GPT, MLP, Module
from ..train.config import OPTIONS, TrainConfig
from ..train.option import REQUIRED, Beside, CommandOptions, option, picture
from ..train.setup.gpt_sizes import gpt_config
from ..units import in_bytes
from .tables import Column, Output, Shown, Table

SIZES = tuple([field.key for field in OPTIONS.values() if field.section == "model"
               if field.key != "dropout"])


def main(options: "Options", output: Output) -> None:
    """Print the local program, the conflicts and the bytes.  Raises UsageError."""
    with errors_as_usage("", ImportError):
        mesh = parse_mesh(options.mesh)
        by_hand = plans_by_hand(options, mesh) if options.search else {}
        planned = find_plan(options, mesh, by_hand) if options.search else make_plan(options, mesh)
    title, program = f"{options.model} on {options.mesh}", planned.program
    if options.inputs:
        output.table(inputs_table(planned), SIMPLE_HEAD)
    output.table(program_table(planned, title), SIMPLE_HEAD)
    if planned.shardings.conflicts:
        output.table(conflicts_table(planned), SIMPLE_HEAD)
    if options.search:
        output.table(comparison_table(options, {"found": planned} | by_hand), SIMPLE_HEAD)
    output.text(f"a rank sends {in_bytes(program.num_bytes)} in forward, "
                f"{in_bytes(program.gradient_bytes)} in backward, and keeps "
                f"{in_bytes(memory_bytes(program))}; a step takes "
                f"{program_seconds(program, machine_of(options)) * 1e3:.4g} ms")
    output.file(options.png, viz.draw_sharded_program, folded(rows(program)), mesh, title)


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of the command."""

    of_training = {"sizes": SIZES}
    model: str = option(REQUIRED, "gpt or mlp; with its loss", choices=("gpt", "mlp"),
                        is_positional=True)
    mesh: str = option(REQUIRED, "the axes of the mesh and their sizes, as dp=2,tp=4",
                       metavar="AXIS=N,…")
    annotate: tuple[str, ...] = option(
        (), "the axes of each dimension of a value, as 'h.*.mlp.c_fc.weight=(None, tp)'; inputs "
        "are ids (or x) and targets; may be given again", metavar="NAME=SPEC",
        without=(Beside("search", "", "says what is sharded"),))
    priority: tuple[str, ...] = option(
        (), "annotations of 0 (the default) are propagated before those of 1, …",
        metavar="NAME=N", needs=Beside("annotate", "", "orders annotations"))
    batch: int = option(8, "samples", least=1)
    vocabulary: int = option(256, "tokens, or classes of the mlp", least=2)
    inputs: bool = option(False, "list the inputs and parameters, too")
    png: Path | None = picture("the annotated graph")
    search: bool = option(False, "find the cheapest sharding, instead of annotations",
                          group="search")
    memory: float | None = option(None, "of a rank, for parameters, AdamW's states and "
                                  "activations", metavar="BYTES", group="search",
                                  default_text="no limit")
    flops: float = option(Machine.flops, "of a device in a second", metavar="N", group="search")
    latency: float = option(Machine.latency, "of a collective", metavar="SECONDS", group="search")
    bandwidth: str = option("", "bytes a second that a rank sends along an axis",
                            metavar="AXIS=BYTES,…", group="search",
                            default_text=f"{Machine.default_bandwidth:g}")


def make_plan(options: Options, mesh: dict[str, int]) -> ShardingPlan:
    """The plan of the model's loss.  Raises ValueError, KeyError."""
    model, inputs = make_model(options)
    return plan(loss, *inputs.values(), model=model, names=list(inputs), mesh=mesh,
                annotations=annotations(options.annotate, options.priority))


def find_plan(options: Options, mesh: dict[str, int],
              by_hand: dict[str, ShardingPlan]) -> ShardingPlan:
    """The cheapest plan of the model's loss, also compared with the plans `by_hand`.

    Raises ValueError, ImportError.
    """
    model, inputs = make_model(options)
    return search(loss, *inputs.values(), model=model, names=list(inputs), mesh=mesh,
                  machine=machine_of(options), memory=options.memory, beside=[*by_hand.values()])


def plans_by_hand(options: Options, mesh: dict[str, int]) -> dict[str, ShardingPlan]:
    """Plans to compare with: the batch over all ranks; and a GPT's Megatron layout on each axis."""
    model, inputs = make_model(options)
    first = next(iter(inputs))
    by_hand = {"the batch over all ranks": {first: P(tuple(mesh))}}
    for axis in mesh if options.model == "gpt" else ():
        rest = tuple([other for other in mesh if other != axis])
        by_hand[f"two weights a block over {axis}, the batch over the rest"] = {
            first: P(rest or None), "h.*.attn.c_attn.weight": P(None, axis),
            "h.*.mlp.c_fc.weight": P(None, axis)}
    return {name: plan(loss, *inputs.values(), model=model, names=list(inputs), mesh=mesh,
                       annotations=specs) for name, specs in by_hand.items()}


def comparison_table(options: Options, plans: dict[str, ShardingPlan]) -> Table:
    """The time, the bytes and the memory of each plan."""
    machine = machine_of(options)
    table = Table.of("beside layouts by hand", "sharding", Column("a step", "s"),
                     Column("sends", "B"), Column("keeps", "B"))
    for name, each in plans.items():
        sends = each.program.num_bytes + each.program.gradient_bytes
        seconds, keeps = program_seconds(each.program, machine), memory_bytes(each.program)
        table.add(name, Shown(seconds, f"{seconds * 1e3:.4g} ms"), Shown(sends, in_bytes(sends)),
                  Shown(keeps, in_bytes(keeps)))
    return table


def machine_of(options: Options) -> Machine:
    """The speeds that the options name.  Raises ValueError for speeds that cannot be."""
    bandwidth = {}
    for part in filter(None, options.bandwidth.split(",")):
        axis, _, number = part.partition("=")
        try:
            bandwidth[axis.strip()] = float(number)
        except ValueError:
            raise ValueError(f"--bandwidth {options.bandwidth!r}: name each axis with its bytes a "
                             "second, as dp=1e10,tp=1e11") from None
    if min(options.flops, *bandwidth.values(), 1) <= 0 or options.latency < 0:
        raise ValueError("--flops and --bandwidth are positive, --latency is not negative")
    return Machine(options.flops, options.latency, bandwidth)


def loss(model: Module, x: Any, targets: Any) -> Any:
    """The loss of a batch, as a program for one device."""
    return model.loss(x, targets, loss_divisor=float(targets.size))


def make_model(options: Options) -> tuple[Module, dict[str, Any]]:
    """A model without numbers, and arrays of the shapes of its inputs, by name."""
    config = TrainConfig().updated(**options.training)
    if options.model == "gpt":
        ids = np.zeros((options.batch, config.model.context), np.int64)
        return GPT(gpt_config(config, options.vocabulary)), {"ids": ids, "targets": ids.copy()}
    sizes = [64, *map(int, config.model.hidden.split(",")), options.vocabulary]     # 8 x 8 pixels
    return MLP(sizes), {"x": np.zeros((options.batch, 64), np.float32),
                        "targets": np.zeros(options.batch, np.int64)}


def annotations(texts: tuple[str, ...], priorities: tuple[str, ...]) -> dict[str, P]:
    """The specs of --annotate by name, with --priority.  Raises ValueError for any other text."""
    specs = {}
    for text in texts:
        name, sign, spec = text.partition("=")
        if not sign:
            raise ValueError(f"--annotate {text!r}: write NAME=SPEC, as 'ids=dp'")
        specs[name.strip()] = P.parse(spec)
    for text in priorities:
        name, _, number = text.partition("=")
        if name.strip() not in specs or not number.strip().isdecimal():
            raise ValueError(f"--priority {text!r}: write NAME=N with the name of an annotation, "
                             "as 'h.*.weight=1'")
        old = specs[name.strip()]
        specs[name.strip()] = P(*[axes or None for axes in old.dims], priority=int(number))
    return specs


def sizes_of(shape: tuple[int, ...]) -> str:
    """A shape as text: 8×64×128, or "a number"."""
    return "×".join(map(str, shape)) or "a number"


def program_table(planned: ShardingPlan, title: str) -> Table:
    """The operations of a rank with their collectives; of equal blocks only the first in full."""
    text = [Column(name, is_text=True) for name in (
        "operation", "shape", "sharding", "local shape", "forward sends", "backward sends")]
    table = Table.of(title, "value", *text)
    for block in folded(rows(planned.program)):
        for row in block.rows:
            table.add(row.name, row.operation, sizes_of(row.shape), show(row.dims),
                      sizes_of(row.local),
                      messages(row.forward), messages(row.backward))
        if block.names[1:]:
            table.add(f"{block.names[1]} … {block.names[-1]}", f"as {block.names[0]}", *[""] * 5)
    return table


def messages(collectives: list[CollectiveTotal]) -> Shown:
    """Collectives as a cell: lines of text, or [kind, axes, of weights, bytes] for scripts."""
    return Shown([list(each) for each in collectives], "\n".join(map(str, collectives)))


def inputs_table(planned: ShardingPlan) -> Table:
    """The inputs and parameters, each with its sharding: given, or found."""
    table = Table.of("inputs", "name", Column("global shape", is_text=True),
                     Column("sharding", is_text=True), Column("from", is_text=True),
                     Column("local shape", is_text=True), Column("local elements"))
    for name, value in planned.graph.inputs.items():
        dims = planned.shardings.of(value)
        local = local_shape(value.shape, dims, planned.shardings.mesh)
        is_given = all(planned.shardings.closed[value]) and bool(value.shape)
        table.add(name, sizes_of(value.shape), show(dims), "annotation" if is_given else "found",
                  sizes_of(local), prod(local))
    return table


def conflicts_table(planned: ShardingPlan) -> Table:
    """The conflicts: two annotations that wanted one axis, the one that won, and why."""
    texts = [Column(name, is_text=True) for name in ("value", "axis", "won", "lost", "since")]
    table = Table.of("conflicts", "at", *texts)
    for each in planned.shardings.conflicts:
        table.add(*each)
    return table


