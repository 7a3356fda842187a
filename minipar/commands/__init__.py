"""The command line: `main.py`, and one file for each `minipar COMMAND`."""
