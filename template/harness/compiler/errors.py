"""What can go wrong between a kernel's file and its lowered code."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Kind = Literal["python", "compiler", "crash", "timeout", "unavailable", "wrong-package"]


class CompilerError(Exception):
    """A kernel that could not be lowered, or a compiler that could not be reached.

    Attributes:
        kind: ``python``: the kernel's own Python fails. ``compiler``: the compiler refuses the kernel.
            ``crash``, ``timeout``: the compiler died or did not end. ``unavailable``: there is no usable compiler.
            ``wrong-package``: the ``tilelang`` that was found is not TileLang-Ascend.
        message: The innermost cause, readable on its own.
        file: The kernel's file; None where no kernel is to blame.
        line: Line in that file, from 1.
        cause: The likely cause and what to do, where the message itself cannot say it.
        log: The end of what the compiler printed.
    """

    def __init__(
        self,
        kind: Kind,
        message: str,
        *,
        file: Path | None = None,
        line: int | None = None,
        cause: str = "",
        log: str = "",
    ) -> None:
        self.kind, self.message, self.file, self.line, self.cause, self.log = kind, message, file, line, cause, log
        place = f"{file}:{line}: " if file and line else f"{file}: " if file else ""
        super().__init__(place + message + (f"\n{cause}" if cause else ""))
