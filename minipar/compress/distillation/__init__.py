"""Distillation: train a small student to imitate a large teacher.

    distill.py            Distillation: a model whose loss asks a teacher; recipes and teachers
    soft_targets.py       the loss on softened logits, at a temperature
    feature_loss.py       the losses on hidden layers and attention scores
    feature_taps.py       run a model and record its hidden layers and attention scores
    teacher_parallel.py   ParallelTeacher: a teacher cut over ranks (tp or pp)
    teacher_messages.py   the messages from such a teacher to its students, as data

`minipar distill` trains with these (`minipar/train/recipes/distillation.py`).
"""
