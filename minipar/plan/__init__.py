"""Costs on paper: formulas for messages, memory and time, independent of the code they predict."""
