"""Train once, with some functions replaced: python -m minipar.school.course.milestones.version

    stdin    JSON: root, token, patches (by file: function, block), options of `minipar train`
    stdout   JSON lines with the token: one for each step, then "end"; or the error

Every step has its loss and the virtual time at its end.  For each rank it has the bytes and
messages that were sent in each collective, and the most bytes that were alive.  The run is on four
simulated ranks in float64.  So two correct versions of the same program agree up to rounding, and a
deadlock is found at once.
"""

import sys
import traceback
from pathlib import Path
from typing import Any

from ...exercises.runner import PatchedFinder, begin_job

NUM_RANKS, NUM_STEPS = 4, 6
MODEL = ("--data docs --layers 4 --heads 4 --width 32 --context 32 --batch 16 --dtype float64 "
         f"--steps {NUM_STEPS} --lr 0.003 --clip 0.2 --ranks {NUM_RANKS}")


def main() -> None:
    """Run the job on stdin."""
    job, tell, _ = begin_job()
    sys.meta_path.insert(0, PatchedFinder(Path(job["root"]), job["patches"]))
    try:
        train(job["options"], tell)
        tell(kind="end")
    except BaseException as error:      # of any kind: it is the learner's function that raised
        stacks = getattr(error, "stacks", None) or {}
        frames = [(frame.filename, frame.lineno)
                  for frame in traceback.extract_tb(error.__traceback__)][::-1]
        tell(kind="error", error=type(error).__name__, message=str(error), frames=frames,
             waiting=[frame for stack in stacks.values() for frame in stack])


def train(options: str, tell: Any) -> None:
    """Train on simulated ranks, and tell of each step."""
    # Imported only now: with the functions replaced.
    from ....train.recipes.observed_run import config_of, run_observed
    run_observed(config_of(f"{MODEL} {options}"), NUM_RANKS,
                 lambda step: tell(kind="step", **step._asdict()))


if __name__ == "__main__":
    main()
