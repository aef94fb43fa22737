"""``python -m harness toolchain install | status | remove``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from harness.toolchain import install as installation
from harness.toolchain import layout, recipe
from harness.toolchain.errors import ToolchainError
from harness.toolchain.layout import megabytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("install", "status", "remove"))
    parser.add_argument("--mirror", default="", help="address of a Debian archive (default: the one this machine uses)")
    parser.add_argument("--keyring", type=Path, help="its keys (default: package debian-archive-keyring)")
    parser.add_argument("--json", action="store_true", help="status as JSON")


def main(arguments: argparse.Namespace) -> int:
    """Exit status 0: done, or installed; 1: not installed, or failed."""
    try:
        if arguments.action == "install":
            prefix = installation.install(mirror=arguments.mirror, keyring=arguments.keyring)
            print(prefix.root)
        elif arguments.action == "remove":
            print(f"removed {layout.home()}: {megabytes(installation.remove())} freed")
        else:
            return _status(arguments.json)
    except ToolchainError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _status(as_json: bool) -> int:
    prefix = layout.installed()
    if as_json:
        others = [str(path) for path in layout.others()]
        facts = {"path": str(prefix.root), "emulated": prefix.processor == "x86_64", **prefix.facts()} if prefix else {}
        print(json.dumps({"installed": prefix is not None, **facts, "others": others}, indent=1))
    elif prefix is None:
        print(
            f"not installed; `python -m harness toolchain install` needs {megabytes(recipe.NEEDED)} in {layout.home()}"
        )
    else:
        facts = prefix.facts()
        how = "emulated" if prefix.processor == "x86_64" else "native"
        print(f"TileLang-Ascend {facts['version']} on Python {facts['python']}, {how}, {megabytes(facts['bytes'])}, "
              f"installed {facts['date']}: {prefix.root}")  # fmt: skip
    if not as_json:
        for other in layout.others():
            print(f"another version, of other packages: {other}")
    return 0 if prefix else 1
