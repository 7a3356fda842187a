"""Distillation: a small model learns to imitate a large one."""
