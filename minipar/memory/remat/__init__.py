"""Rematerialization, also called activation checkpointing or recomputation.

Forward keeps only the input of a segment of the model; backward recomputes the segment from it.
(Checkpoints in the sense of files are in `minipar/checkpoint_file`.)

    recompute.py   checkpoint(function, x): drop what `function` saves, recompute it in backward
    selective.py   recompute only attention's probabilities, inside each block
    plans.py       plans: the segments of a model's parts; uniform and √L segments; run a plan
    policies.py    policies by name, as --remat gives them: none, full, every:2, sqrt, optimal:64MB
    profile.py     profile_parts: the bytes and FLOPs of each part of a model
    predict.py     what a plan costs, from the profile: peak bytes, recomputed FLOPs, every step
    optimal.py     the plan with the fewest FLOPs within a budget of bytes; the Pareto front
    revolve.py     the optimal plan for a chain of equal steps, in closed form

`parallel/cost/rematerialization.py` predicts the messages that the same plans repeat under a
parallel strategy.  The files here predict the bytes and FLOPs of one process.
"""
