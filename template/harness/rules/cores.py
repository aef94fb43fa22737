"""Which core an operation runs on."""

from __future__ import annotations

from harness.rules.model import Kernel, Operation

CUBE = {"T.gemm_v0", "T.gemm", "T.mma"}


def core(kernel: Kernel, operation: Operation) -> str | None:
    """``C`` (cube), ``V`` (vector), or None: both, neither, or not known."""
    name = operation.name
    if name in CUBE:
        return "C"
    places = [
        kernel.buffers[o.name].memory if o.name in kernel.buffers else "GM"
        for o in (*operation.reads, *operation.writes)
    ]
    on_chip = {place for place in places if place not in ("GM", "var")}
    if name == "T.copy" or name == "T.tile.atomic_add":
        if on_chip == {"UB"}:
            return "V"
        return "C" if on_chip and on_chip <= {"L1", "L0A", "L0B", "L0C"} else None
    if name.startswith(("T.tile.", "T.reduce_")):
        return "V"
    if name == "T.assign" and on_chip == {"UB"}:
        return "V"
    return None
