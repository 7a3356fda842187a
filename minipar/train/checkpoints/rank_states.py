"""The arrays in a checkpoint that differ from rank to rank, such as residuals.

    ranks/dp=0/PowerSGD/0.weight/error     named by the rank's coordinates in the mesh
    ranks/dp=1/PowerSGD/0.weight/error

Local SGD, DiLoCo and others keep parameters and optimizer states of their own on every rank;
error feedback keeps a residual.  Without these arrays a resumed run would compute something else.
A run on the same mesh gives each rank its arrays back.  On another mesh the run begins without
them, since a rank of cp must not get the parameters of a rank of dp.
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
    """Collective.  Arrays of this rank alone that its next step needs, by name."""
    return state.strategy.rank_state(state.optimizer) | state.strategy.wire.state_dict()


def load_rank_state(state: "TrainState", own: Mapping[str, np.ndarray]) -> None:
    """Load what `rank_state` returned, but no arrays of another strategy, wire or shape."""
    state.strategy.load_rank_state(state.optimizer, own)
    state.strategy.wire.load_state_dict(own)


def place_of(mesh: DeviceMesh, rank: int) -> str:
    """The coordinates of a rank in the mesh, as "dp=1,tp=0"."""
    return ",".join(f"{axis}={i}" for axis, i in mesh.coordinates_of(rank).items())


def gather_rank_states(mesh: DeviceMesh, arrays: Mapping[str, Array]) -> dict[str, np.ndarray]:
    """Collective.  The arrays of all ranks, as {"ranks/dp=0/NAME": …}, on rank 0; {} elsewhere."""
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
