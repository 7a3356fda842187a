"""The state of each rank alone in a checkpoint: parameters that differ, and residuals.

    ranks/dp=0/PowerSGD/0.weight/error     a run that goes on with the same mesh gives each rank
    ranks/dp=1/PowerSGD/0.weight/error     its own; with another mesh it begins without them:
    …                                      ranks of cp must not get parameters of ranks of dp

Local SGD, DiLoCo and others keep parameters and optimizer states of their own on every rank;
error feedback keeps a residual.  Without these a resumed run would be another run.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ...backend import Array, to_host
from ...comm.collectives import gather_object
from ...comm.mesh import DeviceMesh

if TYPE_CHECKING:
    from ..loop import TrainState

KIND = "ranks"


def rank_state(state: "TrainState") -> dict[str, Array]:
    """The arrays that this rank's next step needs, and no other rank has, by name.  Collective."""
    return state.strategy.rank_state(state.optimizer) | state.strategy.wire.state_dict()


def load_rank_state(state: "TrainState", own: Mapping[str, np.ndarray]) -> None:
    """Take what `rank_state` gave, as far as strategy, wire and shapes are the same."""
    state.strategy.load_rank_state(state.optimizer, own)
    state.strategy.wire.load_state_dict(own)


def place_of(mesh: DeviceMesh, rank: int) -> str:
    """The coordinates of a rank, as dp=1,tp=0."""
    return ",".join(f"{axis}={i}" for axis, i in mesh.coordinates_of(rank).items())


def gather_rank_states(mesh: DeviceMesh, arrays: Mapping[str, Array]) -> dict[str, np.ndarray]:
    """Collective.  On rank 0 the arrays of all ranks, as "ranks/place/name"; {} elsewhere."""
    comm = mesh.comm
    own = {name: np.asarray(to_host(array), order="C") for name, array in arrays.items()}
    forms = gather_object(comm, [[name, str(a.dtype), a.shape] for name, a in own.items()])
    found: dict[str, np.ndarray] = {}
    with comm.labelled("state"):
        if forms is None:
            for array in own.values():
                comm.send(array, 0)
            return found
        for rank, form in enumerate(forms):
            for name, dtype, shape in form:
                array = own[name] if rank == 0 else np.empty(shape, dtype)
                if rank:
                    comm.recv(array, rank)
                found[f"{KIND}/{place_of(mesh, rank)}/{name}"] = array
    return found


def rank_state_of(mesh: DeviceMesh, others: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """This rank's arrays by name; {} if they were saved on another mesh."""
    saved = {key.split("/")[1] for key in others if key.startswith(f"{KIND}/")}
    if saved != {place_of(mesh, rank) for rank in range(mesh.comm.size)}:
        return {}
    own = f"{KIND}/{place_of(mesh, mesh.comm.rank)}/"
    return {key.removeprefix(own): array for key, array in others.items() if key.startswith(own)}
