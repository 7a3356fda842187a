"""`python -m minipar.bench`."""

import sys

from . import main

sys.exit(main(sys.argv[1:]))
