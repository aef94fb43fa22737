"""What can go wrong with the managed toolchain."""

from __future__ import annotations

MORE_SPACE = "Free some space or set XDG_CACHE_HOME to a folder on another disk."


class ToolchainError(Exception):
    """The toolchain cannot be installed or removed; nothing is left half done.

    Attributes:
        message: What failed, with the value and the limit.
        fix: What to do.
    """

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message + (f"\n{fix}" if fix else ""))
        self.message, self.fix = message, fix
