"""The commands of ``python -m harness``."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from harness.catalog import CatalogError
from harness.project import ProjectError

# command: (help, module, argument function, main function); modules load only when their command runs
COMMANDS = {
    "check": ("climb the verification ladder", "harness.check", "add_arguments", "main"),
    "source": ("show the generated device code", "harness.check", "add_source_arguments", "source_main"),
    "bench": ("measure on an NPU, or estimate without one", "harness.bench.command", "add_arguments", "main"),
    "convert": ("rewrite an Expert kernel in Developer mode", "harness.convert.command", "add_arguments", "main"),
    "explain": ("say why a rule exists", "harness.rules.explain", "add_arguments", "main"),
    "doctor": ("what is on this machine, what is missing", "harness.doctor", "add_arguments", "main"),
    "toolchain": ("install, inspect or remove the compiler", "harness.toolchain.command", "add_arguments", "main"),
}
USAGE_ERROR = 3


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]  # argparse exits with 2, which means "could not run"
        self.print_usage(sys.stderr)
        self.exit(USAGE_ERROR, f"{self.prog}: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status (3: usage, 130: interrupted)."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = _Parser(prog="python -m harness", description="Checks, tests and measures this package's kernel.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (help_text, module, add_arguments, _) in COMMANDS.items():
        sub = commands.add_parser(name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}.")
        if name in argv[:1]:
            getattr(importlib.import_module(module), add_arguments)(sub)
    arguments = parser.parse_args(argv)
    _, module, _, function = COMMANDS[arguments.command]
    try:
        return int(getattr(importlib.import_module(module), function)(arguments))
    except (ProjectError, CatalogError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing is left half done, run the command again", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader (head, less) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
