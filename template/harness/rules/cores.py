"""Which core an operation runs on."""

from __future__ import annotations

from harness.rules.model import Kernel, Operation

CUBE = ("T.gemm_v0", "T.gemm", "T.mma")


def places(kernel: Kernel, operation: Operation) -> set[str | None]:
    """The on-chip memories that an operation touches."""
    named = (kernel.buffers.get(operand.name) for operand in (*operation.reads, *operation.writes))
    return {buffer.memory for buffer in named if buffer is not None and buffer.memory != "var"}


def core(kernel: Kernel, operation: Operation) -> str | None:
    """``C`` (cube), ``V`` (vector), or None: both, neither, or not known."""
    name = operation.name
    if name in CUBE:
        return "C"
    on_chip = places(kernel, operation)
    if name in ("T.copy", "T.tile.atomic_add", "T.assign"):
        if on_chip == {"UB"}:
            return "V"
        return "C" if on_chip and on_chip <= {"L1", "L0A", "L0B", "L0C"} else None
    return "V" if name.startswith(("T.tile.", "T.reduce_")) else None


def crosses_on_chip(kernel: Kernel) -> bool:
    """Whether a copy joins both kinds of core on the chip; the compiler appends a workspace for it."""
    return any({"UB", "L1"} <= p or {"UB", "L0C"} <= p for p in (places(kernel, c) for c in kernel.named("T.copy")))
