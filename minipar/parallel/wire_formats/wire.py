"""The base of all wires: messages of numbers as they are.

    DistributedDataParallel(model, comm)                                   float32, 4 bytes a number
    DistributedDataParallel(model, comm, wire=LowPrecisionWire(BFLOAT16))  2 bytes a number

`wire` encodes gradients; FSDP's `gather_wire` encodes the weights that it gathers.  The wires in
the files and folders beside this one send less: 2 bytes a number, 2 to 8 bits, or few of the
numbers.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence

from ...backend import Array
from ...comm.collectives import all_gather, all_reduce, reduce_scatter
from ...nn import Slab


class Wire:
    """Sends numbers as they are: its methods are the collectives.  Base of wires that encode them.

    A strategy calls these methods with the options that are shown here.
    """

    waits_for_all = False       # True: no sum begins before `see_all` has seen all gradients
    sums_pieces = True          # False: it sums whole gradients only, so no ZeRO strategy takes it
    verb = "summed in"          # in a headline, before the wire's name

    all_reduce: Callable[..., Array] = staticmethod(all_reduce)             # out=flat
    reduce_scatter: Callable[..., Array] = staticmethod(reduce_scatter)     # counts=, in_place=True
    all_gather: Callable[..., Array] = staticmethod(all_gather)             # counts=, out=

    def of(self, key: Hashable) -> "Wire":
        """The wire for one array, whose `key` is the same in every step, as error feedback needs.

        The key of a flat's gradient is the Flat.  Its `layout` has the names and shapes of the
        tensors in the array, for wires that need matrices.
        """
        return self

    def start_batch(self, scale: float) -> None:
        """Begin a batch whose gradients are multiplied by `scale`, the loss scale."""

    def see_all(self, slabs: Sequence[Slab], num_ranks: int) -> None:
        """Look at this rank's gradients of a batch, which `num_ranks` will sum.  Collective."""

    def state_dict(self) -> dict[str, Array]:
        """Arrays, by name, that this rank's wire keeps from step to step: here none."""
        return {}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Remember what `state_dict` gave."""


UNCOMPRESSED = Wire()


def key_name(key: Hashable) -> str:
    """A name for a key of `Wire.of`, the same in every run."""
    if isinstance(key, tuple):
        return "/".join(map(key_name, key))
    return str(getattr(key, "name", key))          # a Flat has one
