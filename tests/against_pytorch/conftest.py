"""PyTorch as oracle: `make test-peers` installs it and runs these tests, in float64.

They are asked for by name (`pytest tests/against_pytorch`): an oracle is not needed to use minipar.
"""

import importlib.util

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]     # they compare with PyTorch: there is nothing to run
