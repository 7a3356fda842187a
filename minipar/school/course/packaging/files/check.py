"""Check your functions: python check.py --help."""

import sys
from pathlib import Path

from checker.check import main

sys.exit(main(Path(__file__).parent))
