"""`python -m minipar.exercises`: the same as `python -m minipar exercise`."""

import sys

from .command import main

sys.exit(main(sys.argv[1:]))
