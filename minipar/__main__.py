"""`python -m minipar`."""

import sys

from .cli import main

sys.exit(main())
