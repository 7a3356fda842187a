"""Training runs with a purpose beside the loss: pruning and distillation."""
