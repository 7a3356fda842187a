"""Training runs with a purpose beside the loss: pruning, distillation, comparing two versions."""
