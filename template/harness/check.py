"""``check``: climb the verification ladder. ``source``: show the generated device code."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from harness import project as projects
from harness.compiler.client import CompilerError, Request, find_compiler
from harness.ladder import RUNGS, Ladder, exit_status
from harness.project import Project, ProjectError
from harness.report import print_rungs, to_json
from harness.spec import Case

USAGE = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document (see harness/README.md)")
    parser.add_argument("--require", choices=RUNGS, help="exit with 2 unless this rung ran and passed")
    parser.add_argument("--case", help="only the cases whose name contains this, of any level")
    parser.add_argument("--gate", choices=("current", "legacy"), default="current", help="tolerances")
    parser.add_argument("--format", choices=("text", "json", "github", "sarif"), help="only the rules, in this form")
    parser.add_argument("--fix", action="store_true", help="mend what is safe to mend, then check")


def main(arguments: argparse.Namespace) -> int:
    alone = {"--json": arguments.json, "--require": arguments.require, "--case": arguments.case}
    if arguments.format and (others := [name for name, given in alone.items() if given]):
        print(
            f"--format prints what the rules find and climbs no ladder: leave out {', '.join(others)}", file=sys.stderr
        )
        return USAGE
    project = projects.load()
    if arguments.fix or arguments.format:
        from harness.rules import cli

        status = cli.run(project, fix=arguments.fix, form=arguments.format, told=sys.stderr if arguments.json else None)
        if arguments.format:
            return status
    console = Console(stderr=arguments.json, highlight=False)
    part = arguments.case
    if part and (unknown := _no_case(project, part)):
        print(unknown, file=sys.stderr)
        return USAGE

    def select(case: Case) -> bool:
        return part in case.name if part else case.level == "l0" and not case.nightly

    with console.status("parsed") as line:
        ladder = Ladder(project, select=select, gate=arguments.gate, progress=line.update)
        rungs = list(ladder.climb())
    status = exit_status(rungs, arguments.require)
    if arguments.json:
        json.dump(to_json(project, rungs, arguments.require, status), sys.stdout, indent=1)
        print()
    else:
        print_rungs(console, project, rungs)
        if status == 2:
            console.print(f"[bold yellow]The required rung {arguments.require} could not run.[/]")
    return status


def _no_case(project: Project, part: str) -> str:
    """What to say where no case's name contains ``part``; empty where one does, or where the spec does not load."""
    try:
        names = [case.name for case in project.spec().cases]
    except ProjectError:
        return ""
    if any(part in name for name in names):
        return ""
    return f"tests/spec.py has no case {part}; there are: {', '.join(names)}"


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backend", choices=("ascendc", "pto"), help="compiler target (default: the package's own)")
    parser.add_argument("--case", help="the first case whose name contains this (default: the spec's first)")
    parser.add_argument("--output", type=Path, help="write to this file instead of the terminal")


def source_main(arguments: argparse.Namespace) -> int:
    project = projects.load()
    backend = arguments.backend or project.backend
    if backend not in project.targets:
        print(f"{project.platform} has only the target {project.targets[0]}", file=sys.stderr)
        return USAGE
    if arguments.case and (unknown := _no_case(project, arguments.case)):
        print(unknown, file=sys.stderr)
        return USAGE
    ladder = Ladder(project, select=lambda case: (arguments.case or "") in case.name)
    _, kernel_arguments = ladder.problems[0]
    try:
        with find_compiler() as compiler:
            lowered = compiler.lower(Request(project.kernel, project.name, kernel_arguments, backend, project.platform))
    except CompilerError as error:
        print(error, file=sys.stderr)
        return 2 if error.kind in ("unavailable", "wrong-package") else 1
    if arguments.output:
        arguments.output.write_text(lowered.source, encoding="utf-8")
    else:
        sys.stdout.write(lowered.source)
    return 0
