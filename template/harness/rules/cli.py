"""``check --fix`` and ``check --format``: the rules alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

from harness import catalog
from harness.project import Project
from harness.rules import Context, check_project
from harness.rules.formats import render
from harness.rules.registry import Edit, Finding


def context_of(project: Project) -> Context:
    """What the rules need to know about a package."""
    return Context(
        scenario=project.scenario,
        operator=project.operator,
        era=project.compiler_era,
        platform=project.platform,
        backend=project.backend,
        dtype=project.dtype,
        catalog=catalog.load(),
    )


def run(project: Project, *, fix: bool = False, form: str | None = None, told: TextIO | None = None) -> int:
    """Check the package's rules, mend what is safe to mend, print; ``told`` hears what was mended.

    Returns:
        1 when an error is left, else 0.
    """
    context = context_of(project)
    findings = check_project(project.root, context)
    if fix:
        paths = sorted({f.path for f in findings if f.edits})
        mended = [finding for path in paths for finding in apply(path, findings)]
        if form is None:
            stream = told or sys.stdout
            for f in mended:
                shown = f.path.relative_to(project.root) if f.path.is_relative_to(project.root) else f.path
                print(f"{shown}:{f.line}: {f.rule} mended: {f.fix}", file=stream)
            print(f"{len(mended)} finding{'s' * (len(mended) != 1)} mended", file=stream)
        findings = check_project(project.root, context)
    if form is not None and (text := render(findings, form, project.root)):
        print(text)
    return int(any(finding.severity == "error" for finding in findings))


def apply(path: Path, findings: list[Finding]) -> list[Finding]:
    """Write the automatic fixes of one file; overlapping ones wait for the next run.

    Returns:
        The findings that were mended, their lines as they were before.
    """
    data = path.read_bytes()
    bom = data.startswith(b"\xef\xbb\xbf")
    lines = [line.encode() for line in data.decode("utf-8-sig").splitlines(keepends=True)]
    touched: list[tuple[tuple[int, int], tuple[int, int]]] = []
    edits: list[Edit] = []
    mended: list[Finding] = []
    for finding in findings:
        spans = [((e.line, e.column), (e.end_line, e.end_column)) for e in finding.edits]
        clash = any((a < d and c < b) or a == c for a, b in spans for c, d in touched)
        if finding.path == path and spans and not clash:
            touched += spans
            edits += finding.edits
            mended.append(finding)
    for edit in sorted(edits, key=lambda e: (e.line, e.column), reverse=True):
        head, tail = lines[edit.line - 1][: edit.column], lines[edit.end_line - 1][edit.end_column :]
        lines[edit.line - 1 : edit.end_line] = [head + edit.text.encode() + tail]
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + b"".join(lines))
    return mended
