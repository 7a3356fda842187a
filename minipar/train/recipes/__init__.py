"""Training runs with a purpose beside the loss: pruning, distillation, comparing two versions.

    pruning                             train, prune, train on
    distillation, distill_plan, teacher     a student, the plan of its run, its teacher
    observed_run                        a short run, told step by step, for milestones
    side_by_side                        --verify, compare, run.record: a run in two layouts

All take their steps with the functions of `train/loop.py`.
"""
