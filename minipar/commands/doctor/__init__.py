"""`minipar doctor`: `report.py` says what is installed, `ranks.py` tries two real ranks."""

from .report import add_arguments, main

__all__ = ["add_arguments", "main"]
