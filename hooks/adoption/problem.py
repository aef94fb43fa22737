"""Why a kernel cannot be adopted."""

from __future__ import annotations

from pathlib import Path


class CannotAdopt(Exception):
    """The file does not say enough, or says something that a package cannot hold.

    Args:
        path: The file.
        line: Where in it; 0 where no line is to blame.
        why: What is in the way.
        remedy: What to do.
    """

    def __init__(self, path: Path, line: int, why: str, remedy: str) -> None:
        place = f"{path}:{line}" if line else str(path)
        super().__init__(f"{place}: {why}\n  What to do: {remedy}")
