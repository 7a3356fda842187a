"""Versions: the weights of a stage after each of some steps, as long as a backward needs them."""

from collections.abc import Sequence

from ....backend import Array, record_allocation
from ....nn import Slab


class Versions(dict[int, list[Array]]):
    """The values of `slabs`, by the number of steps after which they hold."""

    def __init__(self, slabs: Sequence[Slab]):
        super().__init__({0: [slab.data for slab in slabs]})
        self.slabs = slabs

    newest = property(max)

    def use(self, version: int) -> None:
        """Let the parameters have the values of a version."""
        for slab, data in zip(self.slabs, self[version]):
            slab.use_values(data)

    def add(self, oldest: int) -> None:
        """Make a new version, for a step to change; forget the versions before `oldest`.

        It begins as a copy of the newest version, or takes over its arrays if that is forgotten.
        """
        number, arrays = self.newest + 1, self[self.newest]
        self.use(self.newest)               # slabs keep no version that is forgotten
        for version in [version for version in self if version < oldest]:
            del self[version]
        self[number] = [record_allocation("parameters", data.copy()) for data in arrays] \
            if self else arrays
        self.use(number)
