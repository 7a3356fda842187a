"""The state of an optimizer, by the names of parameters: for checkpoints."""

import numpy as np

from ..backend import Array, asarray_like
from ..nn.slab import Buffers


class OptimizerState:
    """Base of Optimizer."""

    slabs: Buffers
    state_names: tuple[str, ...]
    states: list[dict[str, Array]]      # of each slab
    num_steps: int

    def state_dict(self) -> dict[str, np.ndarray]:
        """A host copy of every state of every parameter, as "state/parameter name".

        Collective over the ranks that share the slabs, if these are shards.
        """
        return {f"{name}/{parameter}": array for name in self.state_names
                for parameter, array in
                self.slabs.named([state[name] for state in self.states]).items()}

    def load_state_dict(self, state: dict[str, np.ndarray], num_steps: int) -> None:
        """Load the states of whole parameters after `num_steps` steps; keep this rank's part.

        Raises ValueError, naming it, for a state that is missing or of a different shape.
        """
        for slab, own in zip(self.slabs, self.states):
            for name, values in own.items():
                for segment in slab.segments:
                    key = f"{name}/{segment.name}"
                    if key not in state or state[key].shape != segment.global_shape:
                        raise ValueError(f"the optimizer needs {key} of shape "
                                         f"{segment.global_shape}, which the checkpoint does not "
                                         "have: resume with the optimizer that wrote it")
                    local = segment.local_part(state[key]).astype(values.dtype)
                    values[segment.start:segment.stop] = asarray_like(local, values)
        self.num_steps = num_steps


def no_parameters_error() -> ValueError:
    """The error for an optimizer without slabs."""
    return ValueError("no parameters: call model.initialize(seed) before the optimizer, and where "
                      "a strategy has taken the model give strategy.slabs")
