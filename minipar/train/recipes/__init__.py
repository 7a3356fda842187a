"""Training runs with a purpose beside the loss: pruning, distillation, comparing two versions.

    pruning                             train, prune, train on
    distillation, distill_plan, teacher     a student, the plan of its run, its teacher
    observed_run                        a short run, told step by step, for milestones
    side_by_side                        --verify, compare: a run beside the same one on one rank

Each uses the loop of `train/loop.py`.
"""
