"""The template's catalog (scenarios, hardware, data types, operators) as this package carries it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("catalog.json")
MEMORIES = ("UB", "L1", "L0A", "L0B", "L0C")


class CatalogError(Exception):
    """The catalog is missing, damaged, or lacks what was asked for."""


@dataclass(frozen=True)
class Catalog:
    """Facts about TileLang-Ascend, keyed as in the template's ``catalog/`` folder."""

    scenarios: Mapping[str, Any]
    hardware: Mapping[str, Any]
    dtypes: Mapping[str, Any]
    operators: Mapping[str, Mapping[str, Any]]

    def capacity(self, platform: str, memory: str) -> int:
        """Usable bytes of one on-chip memory (``UB``, ``L1``, ``L0A``, ``L0B``, ``L0C``) of a platform."""
        return int(self._row(self.hardware, "platform", platform)["memory"][memory]["bytes"])

    def alignment(self, platform: str, memory: str) -> int:
        """Bytes to which a buffer in the memory starts and, for vector tiles, its rows are aligned."""
        return int(self._row(self.hardware, "platform", platform)["memory"][memory]["align"])

    def switches(self, scenario: str, era: str, operator: str = "") -> dict[str, bool]:
        """The compiler switches of a scenario's row, ``{"auto_sync": True, …}``; an operator's own row wins."""
        own = self.operators.get(scenario, {}).get(operator, {}).get("switches")
        rows = self._row(self.scenarios, "scenario", scenario)["switches"]
        return {name: bool(on) for name, on in (own or self._row(rows, "compiler era", era)).items()}

    def operator(self, scenario: str, operator: str) -> Mapping[str, Any]:
        """The record of an operator; empty for a kernel that was adopted."""
        record: Mapping[str, Any] = self.operators.get(scenario, {}).get(operator, {})
        return record

    @staticmethod
    def _row(table: Mapping[str, Any], what: str, name: str) -> Mapping[str, Any]:
        try:
            row: Mapping[str, Any] = table[name]
        except KeyError:
            raise CatalogError(f"unknown {what} {name!r}; known: {', '.join(table)}") from None
        return row


def load(path: Path | None = None) -> Catalog:
    """Reads ``harness/catalog.json``.

    Raises:
        CatalogError: The file is missing or not what the template wrote.
    """
    return _load(path or PATH)


@cache
def _load(path: Path) -> Catalog:
    try:
        return Catalog(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CatalogError(f"{path}: {error}; `copier recopy` restores it") from error
