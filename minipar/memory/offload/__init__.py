"""Offloading of activations: they wait on the host, in memory or in a file, until backward.

    activations.py   OffloadActivations: saved-tensor hooks that copy each array out and back
    executor.py      DecisionExecutor: keep, recompute or offload each part of a model as decided
    timeline.py      simulate_step: the time and peak bytes of such decisions, on three lanes
    search.py        best_decisions: the decisions with the shortest step within a limit of bytes

The copies run on streams (`backend/copy_stream.py`), so both classes overlap them with computation.
`OffloadActivations` reacts to what operations save, in any program.  `DecisionExecutor` moves all
arrays of a part together, at times known before the step.  A search needs these times to keep to a
limit of bytes.

`minipar train --offload activations` uses `OffloadActivations`.  Optimizer states and parameters
on the host are not in this package: from the start they lie in a file (`backend/mapped_file.py`).
The optimizer's step pages in a block at a time (`Optimizer.step` in `optim/optimizer.py`).
`train/setup/rank_memory.py` reads --offload and --memory-limit.
"""
