"""``python -m harness doctor``: what this machine has, what it lacks, and the one command that brings it."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

from harness import device
from harness.compiler.cache import user_cache
from harness.compiler.client import INSTALL, CompilerError, find_compiler
from harness.toolchain import layout
from harness.toolchain.layout import megabytes

NAMES = ("python", "compiler", "toolchain", "emulator", "cxx", "cann", "npu", "cache")


@dataclass(frozen=True)
class Entry:
    """One thing a kernel package can use.

    Attributes:
        name: Key, also of ``--require``.
        title: For people.
        found: It is there and works.
        detail: What it is, or why it is missing.
        unlocks: What it is for.
        where: Its path or command.
        fix: The command that brings it, where one does.
    """

    name: str
    title: str
    found: bool
    detail: str
    unlocks: str
    where: str = ""
    fix: str = ""


def examine() -> list[Entry]:
    """Looks at the machine. Installs nothing; starts the compiler only where nothing is known about it yet."""
    checks: tuple[Callable[[], Entry], ...] = (_python, _compiler, _toolchain, _emulator, _cxx, _cann, _npu, _cache)
    return [check() for check in checks]


def _python() -> Entry:
    good = sys.version_info >= (3, 11)
    detail = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    fix = "" if good else "install Python 3.11 or newer"
    return Entry("python", "Python", good, detail, "everything", sys.executable, fix)


def _compiler() -> Entry:
    title, unlocks = "TileLang-Ascend", "lowered, budget"
    try:
        with find_compiler() as compiler:
            facts = compiler.describe()
    except CompilerError as error:
        fix = error.cause if os.environ.get("TILELANG_PYTHON") else INSTALL
        return Entry("compiler", title, False, error.message, unlocks, fix=fix)
    notes = "".join(f"\nnot used: {text}" for text in facts["passed_over"])
    detail = f"{facts['version']}, {compiler.origin.title}, Python {facts['python']}{notes}"
    return Entry("compiler", title, True, detail, unlocks, facts["package"])


def _toolchain() -> Entry:
    prefix, title, unlocks = layout.installed(), "managed toolchain", "lowered, budget"
    if prefix is None:
        return Entry("toolchain", title, False, "not installed", unlocks, fix=INSTALL)
    facts = prefix.facts()
    return Entry(
        "toolchain", title, True, f"{facts['version']}, {megabytes(facts['bytes'])}", unlocks, str(prefix.root)
    )


def _emulator() -> Entry:
    title, unlocks = "arm64 emulator", "managed toolchain"
    prefix = layout.installed()
    if layout.machine() == "aarch64":
        return Entry("emulator", title, True, "not needed here", unlocks)
    if prefix is not None and prefix.emulator.exists():
        return Entry("emulator", title, True, "of the managed toolchain", unlocks, str(prefix.emulator.resolve()))
    return Entry("emulator", title, False, "comes with the managed toolchain", unlocks, fix=INSTALL)


def _cxx() -> Entry:
    title, unlocks = "C++ compiler", "simulated"
    from harness.vnpu.build import CompilerNotFound, find_cxx

    try:
        cxx = find_cxx()
    except CompilerNotFound as error:
        fix = f"{sys.executable} -m pip install ziglang"
        return Entry("cxx", title, False, str(error).split(". ")[0], unlocks, fix=fix)
    return Entry("cxx", title, True, cxx.version, unlocks, " ".join(cxx.command))


def _cann() -> Entry:
    title, unlocks = "CANN toolkit", "compiled"
    if (why := device.missing_cann()) is not None:
        return Entry("cann", title, False, why, unlocks, fix="source <CANN folder>/set_env.sh")
    return Entry("cann", title, True, "bisheng found", unlocks, os.environ["ASCEND_HOME_PATH"])


def _npu() -> Entry:
    title, unlocks = "Ascend NPU", "device"
    if (why := device.missing_npu()) is not None:
        return Entry(
            "npu", title, False, why, unlocks, fix="a machine with an NPU and its driver, PyTorch and torch_npu"
        )
    return Entry("npu", title, True, f"torch_npu {importlib.metadata.version('torch_npu')}", unlocks)


def _cache() -> Entry:
    folder = user_cache()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    good = os.access(existing, os.W_OK)
    detail = f"{megabytes(shutil.disk_usage(existing).free)} free{'' if good else ', not writable'}"
    fix = "" if good else "set XDG_CACHE_HOME to a folder that can be written"
    return Entry("cache", "cache folder", good, detail, "all of these", str(folder), fix)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--require", choices=NAMES, action="append", default=[], help="exit with 2 unless it is there")


def main(arguments: argparse.Namespace) -> int:
    """Exit status 0; 2 where something required is missing."""
    entries = examine()
    if arguments.json:
        print(json.dumps({"schema": 1, "entries": [asdict(entry) for entry in entries]}, indent=1))
    else:
        _print(entries)
    return 2 if any(not entry.found for entry in entries if entry.name in arguments.require) else 0


def _print(entries: list[Entry]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table(pad_edge=False)
    for heading in ("what", "found", "for"):
        table.add_column(heading, overflow="fold")
    for entry in entries:
        mark, style = ("✓", "green") if entry.found else ("–", "yellow")
        table.add_row(Text(f"{mark} {entry.title}", style), Text(entry.detail), Text(entry.unlocks))
    console.print(table)
    for entry in entries:
        if entry.where:
            console.print(Text(f"{entry.title}: {entry.where}", "dim"), soft_wrap=True)
    fixes: dict[str, list[str]] = {}
    for entry in entries:
        if not entry.found and entry.fix:
            fixes.setdefault(entry.fix, []).append(entry.title)
    for fix, titles in fixes.items():
        console.print(Text.assemble("To get ", (", ".join(titles), "bold"), f": {fix}"), soft_wrap=True)
