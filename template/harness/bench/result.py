"""The documents of ``bench --json``: rows by case, comparable between versions of a kernel."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.clock import SLACK

SCHEMA = 1
NOISE = 0.02  # of a measurement, where its own spread is smaller
Kind = Literal["measurement", "estimate"]


class BenchError(Exception):
    """A benchmark that cannot be run or compared; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One case.

    Attributes:
        case: Name in ``tests/spec.py``.
        shape: The factory's arguments.
        microseconds: Median device time, or the estimate.
        spread: Half the range of the middle half of the repetitions, relative to the median; 0 for an estimate.
        source: Where the time comes from: ``msprof Task Duration``, ``events`` or ``virtual clock``.
        flops, bytes: Of the problem.
        peak_tflops, memory_tbps: Of the chip; 0 where unknown, and then there is no share.
        host_us: Time of the host call beyond the device time; measurements only.
        baseline_us: The operator that a user would call otherwise; None where there is none or it failed.
        block_dim: Blocks of the grid.
        max_error: Largest absolute difference to the reference.
        notes: What a reader must know.
        details: The estimate's own document.
    """

    case: str
    shape: Mapping[str, Any]
    microseconds: float
    source: str
    flops: int
    bytes: int
    spread: float = 0.0
    peak_tflops: float = 0.0
    memory_tbps: float = 0.0
    host_us: float | None = None
    baseline_us: float | None = None
    block_dim: int | None = None
    max_error: float | None = None
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tflops(self) -> float:
        return self.flops / self.microseconds / 1e6

    @property
    def gbps(self) -> float:
        return self.bytes / self.microseconds / 1e3

    @property
    def intensity(self) -> float:
        """Operations per byte of compulsory traffic."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def bound(self) -> str:
        """The side of the roofline: ``memory`` or ``compute``; empty for an unknown chip."""
        if not self.peak_tflops or not self.memory_tbps:
            return ""
        return "memory" if self.intensity < self.peak_tflops / self.memory_tbps else "compute"

    @property
    def share(self) -> float | None:
        """Of what the roofline allows at this intensity; None for an unknown chip."""
        if not self.bound:
            return None
        if self.bound == "memory":
            return self.gbps / (self.memory_tbps * 1e3)
        return self.tflops / self.peak_tflops


@dataclass(frozen=True, kw_only=True)
class Document:
    """What one run of the benchmark found."""

    kind: Kind
    project: str
    platform: str
    backend: str
    chip: str
    device: str
    rows: tuple[Row, ...]
    accuracy: str = ""
    revision: str = ""

    def to_json(self) -> dict[str, Any]:
        rows = [
            asdict(row) | {"tflops": row.tflops, "gbps": row.gbps, "bound": row.bound, "share": row.share}
            for row in self.rows
        ]
        return {"schema": SCHEMA, **{k: v for k, v in asdict(self).items() if k != "rows"}, "rows": rows}

    @classmethod
    def from_json(cls, data: object) -> Document:
        """Reads a document.

        Raises:
            BenchError: It is of another schema or damaged.
        """
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            raise BenchError(f"not a result of this harness (schema {SCHEMA})")
        try:
            rows = tuple(_row(row) for row in data["rows"])
            return cls(**{k: v for k, v in data.items() if k in cls.__dataclass_fields__ and k != "rows"}, rows=rows)
        except (KeyError, TypeError, AttributeError) as error:
            raise BenchError(f"damaged result: {type(error).__name__}: {error}") from error

    @classmethod
    def load(cls, path: Path) -> Document:
        """Reads a file that ``bench --json`` wrote, or the last line of a history.

        Raises:
            BenchError: There is none, or it is damaged.
        """
        try:
            text = path.read_text(encoding="utf-8").strip()
            lines = text.splitlines()
            return cls.from_json(json.loads(lines[-1] if path.suffix == ".jsonl" and lines else text))
        except (OSError, ValueError) as error:
            raise BenchError(f"{path}: {error}") from error


def _row(data: Mapping[str, Any]) -> Row:
    known: dict[str, Any] = {name: value for name, value in data.items() if name in Row.__dataclass_fields__}
    return Row(**known | {"notes": tuple(known["notes"])})


@dataclass(frozen=True)
class Change:
    """One case in two documents, without ``launch_us``, the launch that both have.

    ``ratio`` is new over old; below ``1 - margin`` the new one is faster.
    """

    case: str
    old_us: float
    new_us: float
    margin: float
    launch_us: float = 0.0

    @property
    def ratio(self) -> float:
        return self.new_us / self.old_us

    @property
    def verdict(self) -> Literal["faster", "slower", "no difference"]:
        if self.ratio < 1 - self.margin:
            return "faster"
        return "slower" if self.ratio > 1 + self.margin else "no difference"


def compare(old: Document, new: Document) -> tuple[Change, ...]:
    """Pairs the cases of equal shape.

    The margin is what the figures themselves leave open: the spread of two measurements, or the differences that the
    virtual clock does not resolve.

    Raises:
        BenchError: The documents cannot be compared.
    """
    if old.kind != new.kind:
        raise BenchError(f"{old.kind} and {new.kind} cannot be compared")
    if (old.platform, old.chip) != (new.platform, new.chip):
        raise BenchError(f"different chips: {old.platform} {old.chip} and {new.platform} {new.chip}")
    by_case = {row.case: row for row in old.rows}
    changes = []
    for row in new.rows:
        before = by_case.get(row.case)
        if before is None or dict(before.shape) != dict(row.shape) or before.microseconds <= 0:
            continue
        margin = SLACK if new.kind == "estimate" else max(NOISE, before.spread + row.spread)
        launch = min(_launch(before), _launch(row))  # the same for both: it would only dilute a difference
        changes.append(Change(row.case, before.microseconds - launch, row.microseconds - launch, margin, launch))
    if not changes:
        raise BenchError("the two results have no case of equal name and shape in common")
    return tuple(changes)


def _launch(row: Row) -> float:
    return float(row.details.get("launch_us", 0.0))


def summary(changes: Sequence[Change]) -> str:
    """One line over all cases."""
    worst, best = max(changes, key=lambda c: c.ratio), min(changes, key=lambda c: c.ratio)
    if worst.verdict == "slower":
        return f"slower: {worst.case} takes {worst.ratio - 1:.0%} longer"
    if best.verdict == "faster":
        return f"faster: {best.case} takes {1 - best.ratio:.0%} less"
    return f"no difference beyond {max(c.margin for c in changes):.0%}"
