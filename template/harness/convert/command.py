"""``convert``: rewrite Expert kernels in Developer mode."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from harness import project as projects
from harness.convert.developer import Conversion, convert
from harness.rules import Context, check_source
from harness.rules.cli import context_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", type=Path, help="kernel files (default: this package's kernel.py)")
    parser.add_argument("--dry-run", action="store_true", help="print what would change as a diff, write nothing")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if something would change")
    parser.add_argument("--output", type=Path, help="write here instead of in place (one file only; - is the terminal)")
    parser.add_argument("--parallel", action="store_true", help="also turn T.tile arithmetic into T.Parallel loops")


def main(arguments: argparse.Namespace) -> int:
    """Converts; exit status 0: done, 1: ``--check`` found work, or a file was skipped or unreadable."""
    files: list[Path] = arguments.files or [projects.load().kernel]
    if arguments.output is not None and len(files) != 1:
        print("--output takes one file", file=sys.stderr)
        return 3
    status = 0
    package = _package()
    era = package.compiler_era if package is not None else Context.era
    for path in files:
        try:
            data = path.read_bytes()
            before = data.decode("utf-8-sig")
            result = convert(path, before, parallel=arguments.parallel, era=era)
        except UnicodeDecodeError as error:
            print(f"{path}: not UTF-8 at byte {error.start}: save it as UTF-8", file=sys.stderr)
            status = 1
            continue
        except SyntaxError as error:
            print(f"{path}:{error.lineno or 1}: not valid Python: {error.msg}", file=sys.stderr)
            status = 1
            continue
        except OSError as error:
            print(f"{path}: {error.strerror or error}", file=sys.stderr)
            status = 1
            continue
        _report(path, result, package, arguments.output)
        status |= int(any(note.kind == "skipped" for note in result.notes))
        if arguments.check:
            status |= int(result.changed)
        elif arguments.dry_run:
            sys.stdout.writelines(_diff(path, before, result.text))
        elif arguments.output is not None and str(arguments.output) == "-":
            sys.stdout.write(result.text)
        elif arguments.output is not None or result.changed:
            encoding = "utf-8-sig" if data.startswith(b"\xef\xbb\xbf") else "utf-8"
            (arguments.output or path).write_bytes(result.text.encode(encoding))
    return status


def _package() -> projects.Project | None:
    """The package around this harness; any file can be converted without one."""
    try:
        return projects.load()
    except projects.ProjectError:
        return None


def _report(path: Path, result: Conversion, package: projects.Project | None, output: Path | None) -> None:
    """Say on the error stream what changed, what needs a person, and how to go on."""
    words = {"changed": "converted", "kept": "needs a person", "skipped": "not converted"}
    for note in result.notes:
        print(f"{path}:{note.line}: {words[note.kind]}: {note.text}", file=sys.stderr)
    if not result.notes:
        print(f"{path}: nothing is written by hand here", file=sys.stderr)
    elif result.changed:
        print(_next_step(path, result, package, output), file=sys.stderr)


def _next_step(path: Path, result: Conversion, package: projects.Project | None, output: Path | None) -> str:
    file = output if output is not None and str(output) != "-" else path
    adopt = f"python hooks/adopt.py {file} DESTINATION, in the template (docs/adopting.md)"
    if package is None or not path.resolve().is_relative_to(package.root):
        return f"Check it: same numbers, same shapes. To make a package of it: {adopt}"
    if not any(f.rule == "TLA101" for f in check_source(path, context_of(package), result.text)):
        return "Check it: same numbers, same shapes (python -m harness check)."
    return (
        f"The scenario of this package stays {package.scenario}, and the converted kernel is of another. To go on, make"
        f" a package of its own of it: {adopt}"
    )


def _diff(path: Path, before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"{path}", f"{path} (Developer mode)"
    )
    return [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
