"""The state of an optimizer, by the names of parameters: for checkpoints.

Each function takes the optimizer first; `Optimizer` names them as its methods.
"""

from typing import TYPE_CHECKING

import numpy as np

from ..backend import asarray_like

if TYPE_CHECKING:
    from .optimizer import Optimizer


def state_dict(optimizer: "Optimizer") -> dict[str, np.ndarray]:
    """A host copy of every state of every parameter, as "state/parameter name".

    Collective over the ranks that share the slabs, if these are shards.
    """
    return {f"{name}/{parameter}": array
            for slab, state in zip(optimizer.slabs, optimizer.states)
            for name, values in state.items()
            for parameter, array in slab.named(values).items()}


def load_state_dict(optimizer: "Optimizer", state: dict[str, np.ndarray], num_steps: int) -> None:
    """Load the states of whole parameters, cut to what this rank holds, after `num_steps` steps.

    Raises ValueError, naming it, for a state that is missing or of another shape.
    """
    for slab, own in zip(optimizer.slabs, optimizer.states):
        for name, values in own.items():
            for segment in slab.segments:
                key = f"{name}/{segment.name}"
                if key not in state or state[key].shape != segment.global_shape:
                    raise ValueError(f"the optimizer needs {key} of shape {segment.global_shape}, "
                                     "which the checkpoint does not have: resume with the "
                                     "optimizer that wrote it")
                local = segment.local_part(state[key]).astype(values.dtype)
                values[segment.start:segment.stop] = asarray_like(local, values)
    optimizer.num_steps = num_steps
