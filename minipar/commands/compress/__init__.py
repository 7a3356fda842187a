"""The commands that make a trained model smaller."""
