"""What `minipar simulate` prints."""

from ...plan.models import num_parameters
from ...step_simulation.failures import Failures, failure_rows
from ...step_simulation.report import fullest, parts, speed
from ...step_simulation.step import SimulatedStep
from ...units import time_unit
from ..tables import Column, Output, Shown, Table


def say(output: Output, step: SimulatedStep) -> None:
    """Print the step: its speed, its parts, its memory."""
    c, known = step.cluster, speed(step)
    output.text(f"{num_parameters(step.model) / 1e9:.3g} B parameters on {c.num_gpus:,} GPUs "
                f"({c.title}; {c.software.name}): {step.layout}",
                f"A step takes {seconds(step.seconds).text}.  {len(step.ranks):,} ranks were "
                f"simulated, which stand for {c.num_gpus:,}.")
    if step.model.experts:
        output.text("Routers choose experts in turn: all are used alike.")
    made = Table.of("speed", "what", Column("value"))
    for name, value in {"seconds of a step": step.seconds, **known}.items():
        text = (f"{value:.1%}" if name in ("MFU", "HFU", "bubble") else
                f"{value / 1e12:,.1f} TFLOP/s" if "FLOP" in name else f"{value:,.4g}")
        made.add(name, Shown(value, text))
    output.table(made)
    made = Table.of("seconds of a step, mean over ranks", "part", Column("time", "s"), "share")
    for name, part in sorted(parts(step).items(), key=lambda item: -item[1]):
        if part > 1e-9 * step.seconds:
            made.add(name, seconds(part), Shown(part / step.seconds, f"{part / step.seconds:.1%}"))
    output.table(made)
    number, kinds = fullest(step)
    total = sum(kinds.values()) + c.software.memory_base
    made = Table.of(f"memory of rank {number:,}, the fullest", "kind", Column("size", "B"))
    for name, size in [*kinds.items(), ("all, with the context", total),
                       ("a GPU has", c.usable),
                       ("in the host's memory", step.ranks[number].on_host)]:
        if size:
            made.add(name, Shown(size, gib(size)))
    output.table(made)
    if total > c.usable:
        output.text("It does not fit.")


def failures_table(failures: Failures) -> Table:
    """The goodput of a long run by the interval between checkpoints."""
    made = Table.of(f"goodput with a failure every {failures.mtbf / 3600:.3g} hours", "interval",
                    Column("seconds", "s"), "goodput", "failures")
    for name, interval, goodput, number in failure_rows(failures):
        made.add(name, Shown(interval, f"{interval:,.0f}"), Shown(goodput, f"{goodput:.1%}"),
                 number)
    return made


def seconds(value: float) -> Shown:
    """Seconds, in the unit that reads best."""
    unit, per_second = time_unit(value)
    return Shown(value, f"{value * per_second:.3g} {unit}")


def gib(num_bytes: float) -> str:
    """Bytes as GiB, the unit of GPUs' memory."""
    return f"{num_bytes / 2**30:.3g} GiB"
