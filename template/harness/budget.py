"""On-chip memory of a lowered kernel: what lies where, against what the chip has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from harness.catalog import MEMORIES, Catalog
from harness.compiler.client import Lowered

WARN_SHARE = 0.95

# Tile types of the generated `pto` code, by the memory they live in.
_MEMORY = {
    "TileAcc": "L0C",
    "TileMatL1": "L1",
    "TileMatL0A": "L0A",
    "TileMatL0B": "L0B",
    "TileLeft": "L0A",
    "TileRight": "L0B",
    "TileUbDataND": "UB",
    "TileUbDataDN": "UB",
}
_ITEMSIZE = {"half": 2, "bfloat16_t": 2, "float": 4, "double": 8}
_DECLARATION = re.compile(r"(?:\w+::)*(Tile\w+)<(\w+), (\d+), (\d+)[^>]*> (\w+);\s*TASSIGN\(\5, (\d+)\);")


@dataclass(frozen=True)
class Buffer:
    """One on-chip buffer: where it starts and how long it is, in bytes."""

    name: str
    memory: str
    offset: int
    bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.bytes


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


def buffers(lowered: Lowered) -> tuple[Buffer, ...]:
    """The buffers declared by generated ``pto`` code, by memory and address.

    Sizes come from the compiler's own map where it gives one, else from the declared tile.
    """
    head = re.split(r"#if defined\(__DAV", lowered.source, maxsplit=1)[0]
    found = []
    for kind, dtype, rows, columns, name, offset in _DECLARATION.findall(head):
        memory = next((place for prefix, place in _MEMORY.items() if kind.startswith(prefix)), None)
        if memory is None:
            raise ValueError(f"buffer {name}: tile type {kind} is unknown; its memory can't be told")
        declared = int(rows) * int(columns) * _itemsize(dtype)
        size = max(declared, lowered.size_map.get(name, 0))
        found.append(Buffer(name, memory, int(offset), size))
    return tuple(sorted(found, key=lambda buffer: (MEMORIES.index(buffer.memory), buffer.offset, buffer.name)))


def _itemsize(dtype: str) -> int:
    if dtype in _ITEMSIZE:
        return _ITEMSIZE[dtype]
    bits = re.search(r"(\d+)_t$", dtype)
    return max(1, int(bits[1]) // 8) if bits else 1


def budget(lowered: Lowered, catalog: Catalog, platform: str) -> tuple[Use, ...]:
    """Use of every on-chip memory that the kernel touches."""
    by_memory: dict[str, list[Buffer]] = {}
    for buffer in buffers(lowered):
        by_memory.setdefault(buffer.memory, []).append(buffer)
    return tuple(
        Use(memory, max(b.end for b in found), catalog.capacity(platform, memory), tuple(found))
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
        top = max(use.buffers, key=lambda buffer: buffer.end)
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
            "buffers": [{"name": b.name, "offset": b.offset, "bytes": b.bytes} for b in use.buffers],
        }
        for use in uses
    }
