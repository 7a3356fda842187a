"""The state of each rank alone in a checkpoint: parameters that differ, and residuals.

    ranks/0/PowerSGD/0.weight/error     of rank 0     a run that goes on with as many ranks gives
    ranks/1/PowerSGD/0.weight/error     of rank 1     each its own; with another number it begins
    …                                                 without them

Local SGD, DiLoCo and others keep parameters and optimizer states of their own on every rank;
error feedback keeps a residual.  Without these a resumed run would be another run.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ...backend import Array, to_host
from ...comm import Communicator
from ...comm.collectives import gather_object

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


def gather_rank_states(comm: Communicator, arrays: Mapping[str, Array]) -> dict[str, np.ndarray]:
    """Collective.  On rank 0 the arrays of all ranks, as "ranks/rank/name"; {} elsewhere."""
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
                found[f"{KIND}/{rank}/{name}"] = array
    return found


def rank_state_of(comm: Communicator, others: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """This rank's arrays by name; {} if they were those of another number of ranks."""
    states: dict[str, dict[str, np.ndarray]] = {}
    for key, array in others.items():
        kind, _, place = key.partition("/")
        if kind == KIND:
            rank, _, name = place.partition("/")
            states.setdefault(rank, {})[name] = array
    return states.get(str(comm.rank), {}) if len(states) == comm.size else {}
