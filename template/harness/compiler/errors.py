"""What can go wrong between a kernel's file and its lowered code."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

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


OVERFLOW = (
    "Likely cause: the buffers do not fit the on-chip memory. With MEMORY_PLANNING on the compiler does not report an "
    "overflow, it crashes. Make the blocks smaller."
)
# What the compiler says in its own terms, and what it means for a kernel.
MEANINGS = {
    r"Unresolved call Op\(tir\.(?:f(?=abs))?(\w+)\)": (
        "Likely cause: in T.Parallel, T.{0} takes an element of a tile and no expression, and constants stand on the "
        "right. Write it in steps: y[i, j] = x[i, j] * -1.0, then y[i, j] = T.{0}(y[i, j]). Not every function exists "
        "there; T.tile.* has more."
    ),
}
ENDLESS = "Likely cause: an endless loop in the kernel's Python."
# Storage scopes of a traced kernel. Which of UB and L1 an alloc_shared becomes is decided later.
SCOPES = {
    "shared": ("UB", "alloc_ub"),
    "shared.dyn": ("L1 or UB", "alloc_L1, alloc_shared"),
    "wmma.accumulator": ("L0C", "alloc_L0C, alloc_fragment"),
    "wmma.matrix_a": ("L0A", "alloc_L0A"),
    "wmma.matrix_b": ("L0B", "alloc_L0B"),
}


def explained(answer: Mapping[str, Any], job: Mapping[str, Any], path: Path | None) -> CompilerError:
    """The error that a worker's answer tells of.

    Args:
        answer: With ``error``; see `worker` for its fields.
        job: The request.
        path: The kernel's file, if it is about one.
    """
    error, log, lowering = answer["error"], answer.get("log", ""), answer.get("stage") == "lower"
    kind, message, cause, what = error["kind"], error["message"], "", "the file"
    doing = "lowering" if lowering else "reading"
    if "factory" in job:
        arguments = ", ".join(f"{name}={value!r}" for name, value in job["arguments"].items())
        what = f"{job['factory']}({arguments}) for {job['target']} on {job['platform']}"
        doing = "lowering" if lowering else "tracing"
    if kind in ("python", "compiler"):
        cause = _meaning(message)
        message = f"{error['exception']}: {message}" if error.get("exception") else message
    elif kind == "timeout":
        message = f"{doing} {what} did not end within {job['time_limit']:g} s"
        cause = "" if lowering else ENDLESS
    else:
        number = error.get("signal")
        how = f"crashed with {signal.Signals(number).name}" if number else f"ended with status {error.get('status')}"
        message = f"the compiler {how} while {doing} {what}"
        cause = OVERFLOW + _demand(answer.get("allocations", ()), job["platform"]) if lowering and number else ""
    return CompilerError(kind, message, file=path, line=error.get("line"), cause=cause, log=log)


def _meaning(message: str) -> str:
    for pattern, meaning in MEANINGS.items():
        if found := re.search(pattern, message):
            return meaning.format(*found.groups())
    return ""


def _demand(allocations: Iterable[Mapping[str, Any]], platform: str) -> str:
    """What a traced kernel asks for, a line per memory: sum, what the platform has, the largest buffers."""
    text, allocations = "", list(allocations)
    known, alias = dict(SCOPES), {}
    if not any(buffer["scope"].startswith("wmma.") for buffer in allocations):  # no cube core: alloc_shared is UB
        known["shared"], alias = ("UB", "alloc_ub, alloc_shared"), {"shared.dyn": "shared"}
    for scope, (memory, functions) in known.items():
        mine = (b for b in allocations if alias.get(b["scope"], b["scope"]) == scope)
        found = sorted(mine, key=lambda buffer: -buffer["bytes"])
        if found:
            listed = ", ".join(f"{buffer['name']} {buffer['bytes']:,}" for buffer in found[:6])
            more = f" and {len(found) - 6} more" if len(found) > 6 else ""
            total = sum(buffer["bytes"] for buffer in found)
            text += (
                f"\n  {memory} ({functions}): {total:,} bytes asked for{_capacity(platform, memory)}: {listed}{more}"
            )
    return text


def _capacity(platform: str, memory: str) -> str:
    from harness import catalog

    with contextlib.suppress(catalog.CatalogError, KeyError, TypeError):
        return f", {catalog.load().capacity(platform, memory):,} there"
    return ""
