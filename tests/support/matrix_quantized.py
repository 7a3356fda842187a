"""The composition matrix, integers as messages: gradients, and weights, of every strategy."""

from collections.abc import Iterator
from functools import partial

from tests.support.cases import ONE_PROCESS
from tests.support.cells import Matrix, Proven, Refused
from tests.support.quantized_runs import check_gathers, check_gradients

ROWS = dict.fromkeys([*ONE_PROCESS, "fsdp hybrid",
                      "pp 2 × dp 2", "pp 2 × dp 2 zero1", "pp 2 × dp 2 fsdp", "dp 2 × tp 2",
                      "dp 2 × tp 2 zero1", "dp 2 × tp 2 fsdp"], "")
COLUMNS = {
    "int8 gradients": "summed over two microbatches: off by at most 1/64 of the largest gradient "
                      "for each rank, and the same bits on all ranks",
    "int8 weights": "gathered for every use: gradients within 20 % of those of whole weights",
}
REFUSED = {"dp": "sends no gradients by a wire: leave wire out, or choose ddp"}
QUICK = (*({*ONE_PROCESS} - {"zero2"}), "fsdp hybrid", "dp 2 × tp 2 fsdp")


def cells() -> Iterator[tuple[tuple[str, str], Proven | Refused]]:
    """Every strategy with integers as messages."""
    for name in ROWS:
        slow = name not in QUICK
        gradients = partial(check_gradients, name=name)
        yield (name, "int8 gradients"), (Refused(gradients, REFUSED[name], slow)
                                         if name in REFUSED else Proven(gradients, slow))
        gathers = partial(check_gathers, name=name)
        yield (name, "int8 weights"), (
            Proven(gathers, slow) if "fsdp" in name or name == "zero3" else
            Refused(gathers, "gather_wire goes with zero3 or fsdp, not with", slow))


QUANTIZED = [Matrix("Quantized messages", ROWS, COLUMNS, dict(cells()))]
