"""The commands that use a trained model, or only the scheduler of its requests."""
