"""What a person and a program see of a climb."""

from __future__ import annotations

import platform as machine
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.ladder import Rung
from harness.project import Project

SCHEMA = 1
_STYLE = {"passed": "green", "failed": "bold red", "not run": "yellow"}
_MARK = {"passed": "✓", "failed": "✗", "not run": "–"}


def print_rungs(console: Console, project: Project, rungs: Sequence[Rung]) -> None:
    """Prints the ladder as a table, details below it, and what would make the rest run."""
    operator = f"/{project.operator}" if project.operator else ""
    title = f"{project.name}: {project.scenario}{operator}, {project.dtype}, {project.platform}, {project.backend}"
    console.print(title, markup=False)  # above, not in the table: it would be wrapped to the table's width
    table = Table(pad_edge=False)
    for heading in ("rung", "result", "what"):
        table.add_column(heading, overflow="fold")
    table.add_column("s", justify="right")
    for rung in rungs:
        style = _STYLE[rung.status]
        result = f"[{style}]{_MARK[rung.status]} {rung.status}[/]"
        table.add_row(rung.name, result, escape(rung.summary), f"{rung.seconds:.1f}")
    console.print(table)
    for rung in rungs:
        for line in rung.details:
            console.print(f"  {rung.name}: {line}" if rung.status == "failed" else f"  {line}", markup=False)
    if step := _next_step(rungs):
        console.print(step, markup=False)
    remedies = dict.fromkeys((rung.remedy, rung.name) for rung in rungs if rung.remedy)
    for remedy, name in remedies:
        console.print(f"To run [bold]{name}[/]: {escape(remedy)}")


def _next_step(rungs: Sequence[Rung]) -> str:
    """What to do about broken rules; empty where none is."""
    findings = [finding for rung in rungs for finding in rung.data.get("findings", ())]
    if not findings:
        return ""
    worst = min(findings, key=lambda finding: bool(finding["severity"] != "error"))
    fixable = sum(finding["fixable"] for finding in findings)
    mend = f"python -m harness check --fix mends {fixable} of {len(findings)}; " if fixable else ""
    return f"{mend}python -m harness explain {worst['rule']} says why"


def to_json(project: Project, rungs: Sequence[Rung], required: str | None, status: int) -> dict[str, Any]:
    """The document of ``check --json``; harness/README.md describes it."""
    return {
        "schema": SCHEMA,
        "project": {
            "name": project.name,
            "scenario": project.scenario,
            "operator": project.operator,
            "dtype": project.dtype,
            "platform": project.platform,
            "backend": project.backend,
            "compiler_era": project.compiler_era,
        },
        "machine": {"system": machine.system(), "processor": machine.machine(), "python": machine.python_version()},
        "rungs": [
            {
                "rung": rung.name,
                "status": rung.status,
                "summary": rung.summary,
                "details": list(rung.details),
                "remedy": rung.remedy or None,
                "seconds": round(rung.seconds, 3),
                "data": rung.data,
            }
            for rung in rungs
        ],
        "required": required,
        "exit": status,
    }
