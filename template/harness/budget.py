"""On-chip memory of a lowered kernel: what lies where, against what the chip has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.catalog import Catalog
from harness.compiler.lowered import Buffer, Lowered

WARN_SHARE = 0.95


@dataclass(frozen=True)
class Use:
    """What a kernel takes of one memory: the end of its highest buffer, which reuse keeps below the buffers' sum."""

    memory: str
    used: int
    capacity: int
    buffers: tuple[Buffer, ...]

    @property
    def share(self) -> float:
        return self.used / self.capacity


def end(buffer: Buffer) -> int:
    """First byte behind a buffer."""
    return buffer.address + buffer.bytes


def budget(lowered: Lowered, catalog: Catalog, platform: str) -> tuple[Use, ...]:
    """Use of every on-chip memory that the kernel touches."""
    by_memory: dict[str, list[Buffer]] = {}
    for buffer in lowered.buffers:
        by_memory.setdefault(buffer.memory, []).append(buffer)
    return tuple(
        Use(memory, max(map(end, found)), catalog.capacity(platform, memory), tuple(found))
        for memory, found in by_memory.items()
    )


def problems(uses: tuple[Use, ...]) -> tuple[list[str], list[str]]:
    """Overflows and near-overflows, as messages for a person.

    Returns:
        Errors (above the capacity) and warnings (above 95 % of it, where the compiler may need scratch: in UB. A full
        L0C or L1 is what a good GEMM has).
    """
    errors, warnings = [], []
    for use in uses:
        top = max(use.buffers, key=end)
        said = f"{use.memory}: {use.used:,} of {use.capacity:,} bytes ({use.share:.0%})"
        if use.share > 1:
            errors.append(f"{said}; {top.name} ends {use.used - use.capacity:,} bytes beyond it: use smaller blocks")
        elif use.share > WARN_SHARE and use.memory == "UB":
            warnings.append(f"{said}; little is left for the compiler's scratch buffers")
    return errors, warnings


def to_json(uses: tuple[Use, ...]) -> Mapping[str, object]:
    """The table as plain data: bytes used, capacity and buffers of every memory."""
    return {
        use.memory: {
            "used": use.used,
            "capacity": use.capacity,
            "buffers": [{"name": b.name, "address": b.address, "bytes": b.bytes} for b in use.buffers],
        }
        for use in uses
    }
