"""The oldest versions that setup.cfg allows, as constraints for pip; `make test-oldest` uses them.

    python tests/support/oldest_versions.py > build/oldest.txt      numpy==2.0, mpi4py==4.1, …

Only the standard library: it runs before anything is installed.
"""

import re
import sys
from configparser import ConfigParser
from pathlib import Path

SETUP = Path(__file__).parent.parent.parent / "setup.cfg"
EXTRAS = ("mpi", "dev")


def oldest_versions(setup: Path = SETUP) -> list[str]:
    """Each requirement "name>=version" as "name==version".  Raises ValueError for other forms."""
    parser = ConfigParser()
    parser.read(setup, encoding="utf-8")
    lines = [parser["options"]["install_requires"],
             *(parser["options.extras_require"][extra] for extra in EXTRAS)]
    requirements = [line for line in "\n".join(lines).split("\n") if line]
    for line in requirements:
        if not re.fullmatch(r"[\w-]+>=[\w.]+(;.*)?", line):
            raise ValueError(f"{setup.name}: {line!r} has no minimum: write name>=version")
    return [line.replace(">=", "==", 1) for line in requirements]


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in oldest_versions())
