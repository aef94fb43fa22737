"""What a rule is, what it finds, and what it may know about the package."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.catalog import Catalog
from harness.rules.model import Module

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Edit:
    """Replace characters: lines count from 1, columns from 0 in characters; the end is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str


@dataclass(frozen=True)
class Finding:
    """A rule broken at a place.

    Attributes:
        rule: Id, ``TLA101``.
        message: What is wrong, with the values.
        path: The file.
        line: Counted from 1.
        column: Counted from 1.
        fix: What to do, or None.
        severity: An error fails the ``conventions`` rung, a warning is shown.
        edits: The safe automatic fix; empty when there is none.
    """

    rule: str
    message: str
    path: Path
    line: int = 1
    column: int = 1
    fix: str | None = None
    severity: Severity = "error"
    edits: tuple[Edit, ...] = ()

    def to_json(self, root: Path | None = None) -> dict[str, Any]:
        """Plain data; the path is relative to ``root`` where it lies below it."""
        path = self.path.relative_to(root) if root is not None and self.path.is_relative_to(root) else self.path
        return {
            "rule": self.rule,
            "name": RULES[self.rule].name,
            "severity": self.severity,
            "message": self.message,
            "path": path.as_posix(),
            "line": self.line,
            "column": self.column,
            "fix": self.fix,
            "fixable": bool(self.edits),
        }


@dataclass(frozen=True)
class Context:
    """What is known beyond the file.

    Attributes:
        scenario: Row of the scenario table, or None for a file that belongs to no package: the package's own
            conventions are then not applied, only what is wrong for any kernel.
        operator: The starter the package came from, or "".
        era: Compiler era, a column of the scenario table.
        platform: ``A2``, ``A3`` or ``A5``.
        backend: ``ascendc`` or ``pto``.
        dtype: The package's element type, or "".
        catalog: Scenarios and hardware; without it rules that need figures are silent.
    """

    scenario: str | None = None
    operator: str = ""
    era: str = "0.1.4"
    platform: str = "A2"
    backend: str = "ascendc"
    dtype: str = ""
    catalog: Catalog | None = None

    def switches(self) -> dict[str, bool] | None:
        """The scenario's switches, or None when there is no scenario."""
        if self.catalog is None or self.scenario is None:
            return None
        return self.catalog.switches(self.scenario, self.era, self.operator)


@dataclass(frozen=True)
class Hit:
    """What a rule yields: a place (a node, or a line) and a message; the registry adds the rest."""

    at: ast.AST | int
    message: str
    fix: str | None = None
    edits: tuple[Edit, ...] = ()
    severity: Severity | None = None


Check = Callable[[Module, Context], Iterator[Hit]]


@dataclass(frozen=True)
class Rule:
    """A rule.

    Attributes:
        id: Stable, ``TLA`` and three digits; the first digit is the group.
        name: Kebab case.
        reason: One line, why it exists.
        severity: Default severity of its findings.
        package: It is a convention of packages: not applied to a file that belongs to none.
        check: Looks at a parsed file; None for rules that look at the lowered kernel or at the folder.
        needs: ``source``, ``lowered`` or ``package``.
    """

    id: str
    name: str
    reason: str
    severity: Severity = "error"
    package: bool = False
    check: Check | None = field(default=None, compare=False)
    needs: Literal["source", "lowered", "package"] = "source"


RULES: dict[str, Rule] = {}
GROUPS = {
    "0": "Files",
    "1": "Configuration",
    "2": "Scopes and synchronisation",
    "3": "Pipelines",
    "4": "Memory and alignment",
    "5": "Data types",
    "6": "Python in kernels",
    "7": "Packages",
}


def rule(
    id: str, name: str, reason: str, *, severity: Severity = "error", package: bool = False
) -> Callable[[Check], Check]:
    """Register a rule that looks at a parsed file."""

    def register(check: Check) -> Check:
        declare(id, name, reason, severity=severity, package=package, check=check)
        return check

    return register


def declare(
    id: str,
    name: str,
    reason: str,
    *,
    severity: Severity = "error",
    package: bool = False,
    check: Check | None = None,
    needs: Literal["source", "lowered", "package"] = "source",
) -> Rule:
    """Register a rule; ``check`` is None when something other than a parsed file is looked at."""
    if id in RULES:
        raise ValueError(f"rule id {id} is used twice")
    RULES[id] = Rule(id, name, reason, severity, package, check, needs)
    return RULES[id]


def finding(rule_id: str, path: Path, hit: Hit) -> Finding:
    """Turn a hit into a finding."""
    line, column = (
        (hit.at, 1) if isinstance(hit.at, int) else (getattr(hit.at, "lineno", 1), getattr(hit.at, "col_offset", 0) + 1)
    )
    severity = hit.severity or RULES[rule_id].severity
    return Finding(rule_id, hit.message, path, line, column, hit.fix, severity, hit.edits)
