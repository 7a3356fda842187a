"""Training runs with a purpose beside the loss: pruning, distillation, comparing two versions.

    pruning                             train, prune, train on
    distillation, distill_plan, teacher     a student, the plan of its run, its teacher
    observed_run                        a short run, told step by step, for milestones
    verify                              --verify: the first steps beside those of one rank

Each uses the loop of `train/loop.py`.
"""
