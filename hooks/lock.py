"""One update at a time in a git work tree: a file in its git folder, from the before hook to the after hook.

Copier lays its old copy, the new one and the user's edits over each other with git; two updates at once would take each
other's half-written files for the user's edits. The file names the Copier process that works here; once that process is
gone, the file only tells that an update was cut off.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

NAME = "copier-update.json"


class Locked(Exception):
    """Another update is at work."""


@dataclass(frozen=True)
class Holder:
    """Who works here: process id, when the process started (ticks since boot, 0: unknown), package, wall time."""

    pid: int
    started: int
    package: str
    since: str

    @property
    def alive(self) -> bool:
        """Whether that very process still runs; a process that got the same id later does not count."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return not self.started or self.started == start_of(self.pid)


def path_of(project: Path) -> Path:
    """The lock file of the work tree that holds the project."""
    command = ["git", "rev-parse", "--absolute-git-dir"]
    done = subprocess.run(command, cwd=project, check=True, capture_output=True, text=True)
    return Path(done.stdout.strip()) / NAME


def start_of(pid: int) -> int:
    """When a process started, in ticks since boot; 0 where the system does not tell."""
    try:
        # Behind the command name, which may hold anything, in parentheses.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def holder(path: Path) -> Holder | None:
    """Who holds or held the lock; None where nobody does."""
    try:
        return Holder(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        return Holder(0, -1, "", "")  # half-written: whoever wrote it was cut off


def acquire(project: Path, pid: int) -> None:
    """Takes the lock for a Copier process.

    Raises:
        Locked: Another process that is still alive holds it.
    """
    path = path_of(project)
    other = holder(path)
    if other and other.pid not in (0, pid) and other.alive:
        raise Locked(
            f"another update is at work in this repository (process {other.pid}, package {other.package}, since "
            f"{other.since}): nothing was changed. Repeat when it is done."
        )
    path.unlink(missing_ok=True)  # left by an update that was cut off
    me = Holder(pid, start_of(pid), str(project), time.strftime("%H:%M:%S"))
    try:
        with path.open("x", encoding="utf-8") as file:
            json.dump(asdict(me), file)
    except FileExistsError:
        raise Locked("another update has just begun in this repository: nothing was changed.") from None


def release(project: Path, pid: int) -> None:
    """Gives the lock back, if the process holds it."""
    path = path_of(project)
    other = holder(path)
    if other and other.pid == pid:
        path.unlink(missing_ok=True)
