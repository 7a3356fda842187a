"""A rank's parameters in a pipeline: a slab that knows where the others are.

    rank 0   [ wte | wpe | h.0 … h.3 ]                 rank 0 counts wte in the gradient norm:
    rank 1   [ h.4 … h.7 | ln_f ┊ wte ]                rank 1's is a copy, behind what it owns
"""

import numpy as np

from ...backend import Array, to_host
from ...comm import Communicator, collectives
from ...nn import Parameter, Slab

Named = list[tuple[str, Parameter]]


class StageSlab(Slab):
    """Of `layout`, what the ranks of `comm` have, this rank's part.

    `layout[rank]` lists (name, Parameter); the first `num_own` elements are this rank's to count,
    the others are copies of what an earlier rank has.
    """

    def __init__(self, layout: list[Named], num_own: int, like: Array, comm: Communicator):
        super().__init__(layout[comm.rank], like)
        self.num_own, self.comm = num_own, comm
        self.shapes = [[(name, parameter.shape) for name, parameter in row] for row in layout]
        self.counts = [sum(parameter.size for _, parameter in row) for row in layout]

    def own_grad(self) -> Array:
        """The flat gradient without that of copies."""
        return self.complete_grad()[:self.num_own]

    def named(self, values: Array) -> dict[str, np.ndarray]:
        """`values`, an array beside `data`, of all ranks, by parameter; all must call it."""
        with self.comm.labelled("state"):
            whole = to_host(collectives.all_gather(self.comm, values, counts=self.counts))
        found: dict[str, np.ndarray] = {}
        start = 0
        for name, shape in sum(self.shapes, []):
            stop = start + int(np.prod(shape))
            found[name] = np.array(whole[start:stop]).reshape(shape)
            start = stop
        return found
