"""Judges computed against expected numbers and shows where they differ.

Gates are those of the catalog's ``dtypes``: ``current`` asks that at least a share of the elements lies within
``atol + rtol * abs(expected)``, that those outside do not make up most of a row or column, and that no error exceeds
the cap; ``legacy`` asks it of every element. The cap holds
for the error relative to ``max(1, abs(expected))``: a half-precision result of 2000 cannot be right to 0.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from harness.catalog import Catalog
from harness.spec import Array

MAP_ROWS, MAP_COLUMNS = 16, 48
PATTERN_LENGTH = 8  # rows and columns shorter than this may be off by chance


@dataclass(frozen=True)
class Gate:
    """Tolerances of one output type: errors are absolute, in the output's own unit."""

    name: str
    atol: float
    rtol: float
    share: float
    cap: float

    def __str__(self) -> str:
        cap = "" if math.isinf(self.cap) else f", none above {self.cap:g} x max(1, |expected|)"
        return (
            f"{self.name} gate: {self.share:.0%} of elements within {self.atol:.3g} + {self.rtol:.3g}*|expected|{cap}"
        )


def gate(catalog: Catalog, dtype: str, *, name: str = "current", tolerance: str = "default") -> Gate:
    """The gate for an output type; integers are compared exactly.

    Args:
        catalog: Where the figures stand.
        dtype: NumPy (or ml_dtypes) name of the output's element type.
        name: ``current`` or ``legacy``.
        tolerance: Class of the legacy gate.
    """
    gates = catalog.dtypes.get(dtype, {}).get("gates")
    if not gates:
        return Gate("exact", 0.0, 0.0, 1.0, math.inf)
    row = gates["current"] if name == "current" else gates["legacy"].get(tolerance, gates["legacy"]["default"])
    return Gate(
        name, float(row["atol"]), float(row["rtol"]), float(row.get("share", 1.0)), float(row.get("cap", math.inf))
    )


@dataclass(frozen=True)
class Comparison:
    """Result of one output.

    Attributes:
        passed: Whether the gate holds and the NaN, +inf and -inf masks agree.
        max_error: Largest absolute error among elements finite on both sides.
        report: What is wrong, for a person; empty when passed.
    """

    passed: bool
    max_error: float
    report: str


def compare(got: Array, expected: Array, gate: Gate, tile: tuple[int, int] | None = None) -> Comparison:
    """Compares an output with its reference.

    Args:
        got: Output, any real element type.
        expected: Reference of the same shape, float64 or int64. What the output type cannot hold counts as infinite.
        gate: Tolerances.
        tile: Rows and columns of one block of the last two dimensions; gives the report its coordinates.
    """
    if got.shape != expected.shape:
        report = f"shape: got {got.shape}, expected {expected.shape}; does reference() follow the kernel's outputs?"
        return Comparison(False, math.inf, report)
    if got.size == 0:
        return Comparison(True, 0.0, "")
    if gate.name == "exact" and expected.dtype.kind in "iub":
        wrong = got != expected
        # Through Python integers only where it matters: int64 differences may overflow.
        error = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            wide = expected.astype(got.dtype).astype(np.float64)
            reference = np.where(np.isinf(wide), wide, expected.astype(np.float64))
            actual = got.astype(np.float64)
            masks = [(np.isnan(actual), np.isnan(reference)), (actual == np.inf, reference == np.inf)]
            masks.append((actual == -np.inf, reference == -np.inf))
            masked = np.logical_or.reduce([a != b for a, b in masks])
            finite = np.isfinite(actual) & np.isfinite(reference)
            error = np.where(finite, np.abs(actual - reference), 0.0)
            above = finite & (error > gate.atol + gate.rtol * np.abs(reference))
            capped = finite & (error > gate.cap * np.maximum(1.0, np.abs(reference)))
        few = np.count_nonzero(above) <= (1.0 - gate.share) * got.size and not _has_pattern(above)
        wrong = masked | capped | (np.zeros_like(above) if few else above)
    largest = float(error.max())
    if not wrong.any():
        return Comparison(True, largest, "")
    return Comparison(False, largest, _report(got, expected, error, wrong, gate, tile))


def _has_pattern(above: Array) -> bool:
    """Whether most of a row or column is off: a fault of the kernel, however small its share; rounding scatters."""
    flat = above.reshape(-1, above.shape[-1]) if above.ndim else above.reshape(1, 1)
    lines = [flat.mean(axis=axis) for axis in (0, 1) if flat.shape[axis] >= PATTERN_LENGTH]
    return any((shares > 0.5).any() for shares in lines)


def _report(got: Array, expected: Array, error: Array, wrong: Array, gate: Gate, tile: tuple[int, int] | None) -> str:
    count = int(np.count_nonzero(wrong))
    nan = int(np.count_nonzero(wrong & np.isnan(got.astype(np.float64))))
    lines = [f"{count} of {wrong.size} elements wrong ({count / wrong.size:.1%}); {gate}"]
    if nan:
        lines.append(f"{nan} of them are NaN: never written, read outside a tensor, or computed from such data")
    first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    worst = np.unravel_index(int(np.argmax(np.where(wrong, np.nan_to_num(error), -1.0))), wrong.shape)
    for label, index in [("first", first)] + ([("worst", worst)] if worst != first else []):
        place = ", ".join(str(int(i)) for i in index)
        where = ""
        if tile and len(index) >= 1:
            row, column = (0, int(index[0])) if len(index) == 1 else (int(index[-2]), int(index[-1]))
            where = f" (tile row {row // tile[0]}, column {column // tile[1]})"
        lines.append(
            f"{label}: [{place}]{where} got {got[index]}, expected {expected[index]:.9g}, error {error[index]:.3g}"
        )
    lines.extend(_rows(wrong))
    lines.extend(error_map(wrong, tile))
    return "\n".join(lines)


def _rows(wrong: Array) -> list[str]:
    """Names the rows and columns that hold all errors, where that says something."""
    flat = wrong.reshape(-1, wrong.shape[-1])
    rows, columns = np.flatnonzero(flat.any(axis=1)), np.flatnonzero(flat.any(axis=0))
    said = []
    for what, found, total in (("row", rows, flat.shape[0]), ("column", columns, flat.shape[1])):
        if len(found) < total:
            said.append(f"{what}s {_ranges(found)} of 0-{total - 1}")
    return ["only in " + ", ".join(said)] if said else []


def _ranges(values: Array, most: int = 6) -> str:
    parts = [part for part in np.split(values, np.flatnonzero(np.diff(values) != 1) + 1) if len(part)]
    text = [f"{part[0]}" if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts[:most]]
    return ", ".join(text) + (f", … ({len(parts) - most} more)" if len(parts) > most else "")


def error_map(wrong: Array, tile: tuple[int, int] | None) -> list[str]:
    """A picture of the wrong elements: a character a tile, ``#`` all, ``+`` some, ``.`` none.

    Leading dimensions are stacked. Tiles are merged where the picture would be larger than 16 by 48.
    """
    flat = wrong.reshape(-1, wrong.shape[-1]) if wrong.ndim > 1 else wrong.reshape(1, -1)
    height, width = flat.shape
    if wrong.ndim > 2 and tile and wrong.shape[-2] % tile[0]:
        tile = None  # stacked matrices would put tile borders at the wrong rows
    rows, columns = tile or (1, 1)
    rows *= _ceildiv(_ceildiv(height, rows), MAP_ROWS)
    columns *= _ceildiv(_ceildiv(width, columns), MAP_COLUMNS)
    lines = [
        f"map, a character for {min(rows, height)} x {min(columns, width)} elements (# all wrong, + some, . none):"
    ]
    for top in range(0, height, rows):
        line = ""
        for left in range(0, width, columns):
            part = flat[top : top + rows, left : left + columns]
            line += "#" if part.all() else "+" if part.any() else "."
        lines.append("  " + line)
    return lines


def _ceildiv(a: int, b: int) -> int:
    return -(-a // b)
