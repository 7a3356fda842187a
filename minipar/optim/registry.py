"""Every optimizer by its name: `minipar train --optimizer` and checkpoints read the table.

To add one, write its class and an entry here, a line in the head of its folder's `__init__.py`,
and a row of the table in `docs/pages/running.md`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ..nn.slab import FlatBuffer
from .adam import Adam, AdamW
from .adamw_8bit import AdamW8bit
from .groups import ParameterGroup
from .optimizer import Optimizer
from .sgd import SGD
from .whole_tensors.lamb import LAMB
from .whole_tensors.lars import LARS
from .whole_tensors.muon import Muon


class OptimizerEntry(NamedTuple):
    """An optimizer and its defaults: kind(slabs, lr, weight_decay=…, groups=…) makes it.

    `kind` takes a momentum too, unless `momentum` is None.
    """

    kind: type[Optimizer]
    lr: float = 3e-3                # the peak learning rate that `minipar train` takes by default
    weight_decay: float = 0.0
    momentum: float | None = None   # its default; None: it takes none


OPTIMIZERS = {
    "adamw": OptimizerEntry(AdamW, weight_decay=0.01),
    "adamw_8bit": OptimizerEntry(AdamW8bit, weight_decay=0.01),
    "adam": OptimizerEntry(Adam),
    "muon": OptimizerEntry(Muon, lr=1e-2, weight_decay=0.1, momentum=0.95),
    "lamb": OptimizerEntry(LAMB, lr=1e-2, weight_decay=0.01),
    "lars": OptimizerEntry(LARS, lr=1.0, momentum=0.9),
    "sgd": OptimizerEntry(SGD, lr=0.1, momentum=0.9),
}


def make_optimizer(name: str, slabs: Sequence[FlatBuffer], lr: float, weight_decay: float | None,
                   momentum: float | None, groups: Sequence[ParameterGroup] = ()) -> Optimizer:
    """The optimizer of that name; None as weight decay or momentum means the entry's.

    An optimizer that takes no momentum ignores it.  Raises ValueError for an unknown name.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"unknown optimizer {name!r}: choose from {', '.join(OPTIMIZERS)}")
    entry = OPTIMIZERS[name]
    return entry.kind(slabs, lr, groups=groups, weight_decay=entry.weight_decay
                      if weight_decay is None else weight_decay,
                      **{} if entry.momentum is None else
                      {"momentum": entry.momentum if momentum is None else momentum})
