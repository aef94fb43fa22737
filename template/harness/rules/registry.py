"""What a rule is, what it finds, and what it may know about the package."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.catalog import Catalog
from harness.rules.model import ITEMSIZE, Buffer, Evaluator, Factory, Kernel, Module, Operand, Operation

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Edit:
    """Replace text: lines count from 1, columns from 0 in bytes of UTF-8, as ``ast`` has them; the end is exclusive."""

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


@dataclass(frozen=True)
class View:
    """One kernel as a rule sees it. A factory whose kernel is elsewhere is seen with an empty kernel."""

    module: Module
    context: Context
    factory: Factory
    kernel: Kernel

    def value(self, node: ast.expr | None) -> Any:
        """The constant ``node`` stands for, taking the factory's defaults for its parameters; None when not known."""
        return Evaluator(self.module, self.kernel.scope)(node)

    def exact(self, node: ast.expr | None) -> Any:
        """As ``value``, but only what holds whatever arguments the factory is given."""
        return Evaluator(self.module, self.kernel.scope, defaults=False)(node)

    def live(self, *names: str) -> Iterator[Operation]:
        """The operations reached with the factory's defaults; with names, only those."""
        return (op for op in self.kernel.operations if op.live and (not names or op.name in names))

    def on(self, switch: str) -> bool | None:
        """Whether a compiler switch is on; None when that is not known."""
        return self.factory.config.on(switch)

    def place(self, operand: Operand) -> str | None:
        """The memory an operand lies in: ``GM``, ``UB``, …; None when not known."""
        return self.kernel.buffers[operand.name].memory if operand.name in self.kernel.buffers else "GM"

    def whole(self, node: ast.expr | None) -> Buffer | None:
        """The buffer, when ``node`` names all of it."""
        name = node.id if isinstance(node, ast.Name) else ""
        return self.kernel.buffers.get(self.kernel.aliases.get(name, name))

    def row_bytes(self, buffer: Buffer) -> int | None:
        """Bytes of a buffer's last dimension."""
        size = ITEMSIZE.get(buffer.dtype or "")
        return buffer.shape[-1] * size if size and buffer.shape and buffer.shape[-1] is not None else None

    def note(self, *nodes: ast.expr) -> str:
        """`` (with the default block_M=64)``: the factory's defaults that the expressions rest on."""
        pending = [n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)]
        seen: set[str] = set()
        used: dict[str, str] = {}
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            bound, _, is_default = self.kernel.scope.lookup(name)
            if bound is not None and is_default:
                used[name] = ast.unparse(bound)
            elif bound is not None:
                pending += [n.id for n in ast.walk(bound) if isinstance(n, ast.Name)]
        listed = ", ".join(f"{name}={used[name]}" for name in sorted(used))
        return f" (with the default{'s' * (len(used) > 1)} {listed})" if used else ""


def replace(node: ast.expr | ast.stmt, text: str) -> Edit:
    """The edit that puts ``text`` in a node's place."""
    return Edit(node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0, text)


def insert_after(node: ast.expr, text: str) -> Edit:
    """The edit that puts ``text`` behind a node."""
    line, column = node.end_lineno or node.lineno, node.end_col_offset or 0
    return Edit(line, column, line, column, text)


Check = Callable[[View], Iterator[Hit]]
ModuleCheck = Callable[[Module, Context], Iterator[Hit]]


@dataclass(frozen=True)
class Rule:
    """A rule.

    Attributes:
        id: Stable, ``TLA`` and three digits; the first digit is the group.
        name: Kebab case.
        reason: One line, why it exists.
        severity: Default severity of its findings.
        package: It is a convention of packages: not applied to a file that belongs to none.
        check: Looks at one kernel.
        module_check: Looks at a parsed file. Rules without either look at bytes, generated code or the folder.
    """

    id: str
    name: str
    reason: str
    severity: Severity = "error"
    package: bool = False
    check: Check | None = field(default=None, compare=False)
    module_check: ModuleCheck | None = field(default=None, compare=False)


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


def declare(
    id: str,
    name: str,
    reason: str,
    *,
    severity: Severity = "error",
    package: bool = False,
    check: Check | None = None,
    module_check: ModuleCheck | None = None,
) -> None:
    """Register a rule.

    Raises:
        ValueError: The id is taken.
    """
    if id in RULES:
        raise ValueError(f"rule id {id} is used twice")
    RULES[id] = Rule(id, name, reason, severity, package, check, module_check)


def rule(
    id: str, name: str, reason: str, *, severity: Severity = "error", package: bool = False
) -> Callable[[Check], Check]:
    """Register a rule that looks at one kernel at a time."""

    def register(check: Check) -> Check:
        declare(id, name, reason, severity=severity, package=package, check=check)
        return check

    return register


def module_rule(
    id: str, name: str, reason: str, *, severity: Severity = "error", package: bool = False
) -> Callable[[ModuleCheck], ModuleCheck]:
    """Register a rule that looks at a file as a whole."""

    def register(check: ModuleCheck) -> ModuleCheck:
        declare(id, name, reason, severity=severity, package=package, module_check=check)
        return check

    return register


def finding(rule_id: str, path: Path, hit: Hit, lines: list[bytes] | None = None) -> Finding:
    """Turn a hit into a finding; ``lines`` turn byte columns into characters."""
    if isinstance(hit.at, int):
        line, column = hit.at, 0
    else:
        line, column = getattr(hit.at, "lineno", 1), getattr(hit.at, "col_offset", 0)
    if lines is not None and column and line <= len(lines):
        column = len(lines[line - 1][:column].decode(errors="replace"))
    return Finding(
        rule_id, hit.message, path, line, column + 1, hit.fix, hit.severity or RULES[rule_id].severity, hit.edits
    )
