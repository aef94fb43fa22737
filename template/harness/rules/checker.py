"""Runs the rules: over one file, a lowered kernel, or a whole package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.rules import configuration, dtypes, memory, pipeline, pitfalls, sync, threads  # noqa: F401  # they register
from harness.rules import lowered as lowered_rules
from harness.rules.model import Kernel, Module
from harness.rules.package import check_folder
from harness.rules.registry import RULES, Context, Finding, Hit, View, declare, finding

if TYPE_CHECKING:
    from harness.compiler.client import Lowered

declare("TLA001", "not-python", "A file that cannot be parsed cannot be judged.")
declare("TLA002", "cannot-tell", "What is decided at run time cannot be read from the text.", severity="warning")
declare("TLA003", "unexplained-ignore", "Whoever reads a silenced rule later needs to know why.")
declare(
    "TLA004", "unused-ignore", "A silencing comment that silences nothing hides the next mistake.", severity="warning"
)

_EMPTY = ast.FunctionDef(
    "", ast.arguments([], [], None, [], [], None, []), [], []
)  # for a factory whose kernel is elsewhere
LOWERED = {"TLA214", "TLA414"}
"""Rules that look at generated code, so that a comment for them may seem unused to the others."""
_IGNORE = re.compile(r"#\s*tla:\s*ignore(?:\[([^\]]*)\])?[ \t:-]*(.*)$")


def check_source(path: Path, context: Context, text: str | None = None) -> list[Finding]:
    """Findings of the source rules in one file, by position.

    Args:
        path: The file, read when ``text`` is None.
        context: Scenario, era, platform and catalog.
        text: Its contents, when they are not (yet) on disk.
    """
    try:
        module = Module(path, text)
    except UnicodeDecodeError as error:
        return [
            finding(
                "TLA001",
                path,
                Hit(1, f"not UTF-8: byte {error.start} is {error.object[error.start]:#04x}", "save the file as UTF-8"),
            )
        ]
    except SyntaxError as error:
        hit = Hit(error.lineno or 1, f"not valid Python: {error.msg}", "correct the syntax")
        return [finding("TLA001", path, hit)]
    except OSError as error:
        return [finding("TLA001", path, Hit(1, f"cannot be read: {error.strerror or error}"))]
    findings = [finding("TLA002", path, hit, module.lines) for hit in _cannot_tell(module, context)]
    views = [
        View(module, context, factory, kernel)
        for factory in module.factories
        for kernel in factory.kernels or [Kernel(_EMPTY, factory.scope, [])]
    ]
    for rule in RULES.values():
        if rule.package and context.scenario is None:
            continue
        hits = [hit for view in views for hit in rule.check(view)] if rule.check is not None else []
        hits += rule.module_check(module, context) if rule.module_check is not None else []
        findings += [finding(rule.id, path, hit, module.lines) for hit in hits]
    return _suppress(module, sorted(set(findings), key=lambda f: (f.line, f.column, f.rule)))


def _cannot_tell(module: Module, context: Context) -> Iterable[Hit]:
    """What the rules could not see, said once."""
    for factory in module.factories:
        if factory.config.switches is None and factory.decorator is not None:
            yield Hit(
                factory.config.node or factory.node,
                f"can't tell which switches {factory.name} uses, because {factory.config.reason}",
                "write pass_configs as a literal dictionary",
            )
        if factory.decorator is not None and not factory.kernels:
            yield Hit(
                factory.node,
                f"can't tell what {factory.name} computes, because its @T.prim_func is not inside it",
                "define the prim_func inside the factory",
            )
    if not module.factories and context.scenario is not None:
        yield Hit(
            1,
            "can't tell anything about the kernel, because the file has no @T.prim_func",
            "define the kernel in this file",
        )


def _ignores(lines: Sequence[bytes]) -> Iterator[tuple[int, int, list[str], str]]:
    """The silencing comments: line, column, ids, reason."""
    for number, line in enumerate(lines, 1):
        match = _IGNORE.search(line.decode(errors="replace")) if b"tla:" in line else None
        if match is not None:
            ids = [part.strip() for part in (match[1] or "").split(",") if part.strip()]
            yield number, match.start() + 1, ids, match[2].strip()


def _suppress(module: Module, findings: list[Finding]) -> list[Finding]:
    """Drop findings whose line carries ``# tla: ignore[ID] reason``; judge the comments themselves."""
    for number, column, ids, why in list(_ignores(module.lines)):
        silenced = [f for f in findings if f.line == number and f.rule in ids]
        if not why or not ids:
            lacks = "a reason" if ids else "the rule's id"
            fix = "write # tla: ignore[TLA203] why"
            message = f"the comment lacks {lacks}: it silences nothing"
            findings.append(Finding("TLA003", message, module.path, number, column, fix))
        elif silenced:
            findings = [f for f in findings if f not in silenced]
        elif not LOWERED & set(ids):
            message = f"{', '.join(ids)} does not occur on this line"
            findings.append(Finding("TLA004", message, module.path, number, column, "remove the comment", "warning"))
    return sorted(findings, key=lambda f: (f.line, f.column, f.rule))


def check_lowered(lowered: Lowered, path: Path, context: Context) -> list[Finding]:
    """Findings of the rules that look at generated code; ``path`` is the kernel's file."""
    findings = lowered_rules.check(lowered, path, context)
    try:
        lines = path.read_bytes().splitlines() if findings else []
    except OSError:
        return findings
    silenced = {(number, id) for number, _, ids, why in _ignores(lines) if why for id in ids}
    return [finding for finding in findings if (finding.line, finding.rule) not in silenced]


def check_project(root: Path, context: Context) -> list[Finding]:
    """Findings in a whole package: its kernel files and its folder."""
    findings = check_folder(root)
    conflicts = {finding.path for finding in findings if finding.rule == "TLA701"}
    if not list((root / "src").glob("*/kernel.py")):
        hit = Hit(1, "no kernel.py in it", "the kernel belongs in src/<package>/kernel.py")
        findings.append(finding("TLA001", root / "src", hit))
    for path in sorted((root / "src").rglob("*.py")):
        if path.name.startswith("kernel") and path not in conflicts:
            findings += check_source(path, context)
    return findings
