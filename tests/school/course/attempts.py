"""A student's attempt: some lines in place of a function that sums over the ranks."""

import numpy as np

from minipar.school.course.checker.compare import judge
from minipar.school.course.checker.runner import Job

RAW = "import sys\nraw = sys.modules['checker.ranks.worker']\n"      # what writes to the pipe


def attempt(worker, body, ranks=2):
    """Run a body that should return the sum over all ranks; return (run, failure)."""
    source = "import numpy as np\ndef total(comm, x):\n    " + "\n    ".join(
        body.strip().split("\n")) + "\n"
    arguments = [{"x": np.full(4, r + 1.0)} for r in range(ranks)]
    run = worker.run(Job({"own": source}, "own", "total", arguments))
    wanted = [{"return": np.full(4, ranks * (ranks + 1) / 2)}] * ranks
    return run, judge(run, wanted, {"messages": 2 * (ranks - 1)}, 1e-9)[0]
