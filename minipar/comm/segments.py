"""Shared memory that MPICH leaves in /dev/shm when a job is ended by force.

MPICH removes its segments when a job ends by itself; a job that is killed or aborted leaves
them, some megabytes each, until the machine restarts. (Open MPI cleans up after itself.)
"""

import os
from pathlib import Path

_FOLDER = Path("/dev/shm")
_PREFIX = "mpich_shm_"


def segments() -> set[Path]:
    """MPICH's segments of this user that exist now."""
    found = set()
    for path in _FOLDER.glob(_PREFIX + "*"):        # nothing where there is no such folder
        try:
            if path.stat().st_uid == os.getuid():
                found.add(path)
        except FileNotFoundError:
            pass                                    # its job has just ended
    return found


def remove_own() -> None:
    """Remove the names of the segments that this process uses; they stay usable until it ends."""
    for path in segments():
        if str(path) in _memory_map("self"):
            path.unlink(missing_ok=True)


def remove_orphans(before: set[Path]) -> bool:
    """Remove the segments that are newer than `before` and that no process uses.

    False if there were newer ones in use: by a process that is still dying, or by another job.
    """
    newer = segments() - before
    if not newer:
        return True
    in_use = "".join(_memory_map(pid) for pid in os.listdir("/proc") if pid.isdigit())
    used = {path for path in newer if str(path) in in_use}
    for path in newer - used:
        path.unlink(missing_ok=True)
    return not used


def _memory_map(pid: str) -> str:
    try:
        return Path("/proc", pid, "maps").read_text()
    except OSError:
        return ""                                   # the process has ended, or is not ours
