"""Where a compiler comes from, and what is remembered about it so that it need not be started to be known."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import io
import json
import os
import shlex
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from harness.compiler.cache import digest, user_cache, write_atomically
from harness.compiler.errors import CompilerError

REMEMBERED = 3600.0  # seconds that a compiler on another machine is taken to be unchanged
HEADERS = ("src", "3rdparty/pto-isa", "VERSION")
TITLES = {
    "TILELANG_PYTHON": "TILELANG_PYTHON",
    "interpreter": "this Python",
    "managed": "the managed toolchain",
}


@dataclass(frozen=True)
class Identity:
    """What a worker said about its compiler. ``key`` changes whenever the compiler does."""

    version: str
    package: str
    python: str
    machine: str
    key: str


@dataclass(frozen=True)
class Origin:
    """A way to start a Python that has the compiler.

    Attributes:
        name: Which of the three ways it is.
        command: Command line; arguments of Python are appended.
        environment: The worker's whole environment.
        stamp: Names the compiler's state where that is known without asking it.
    """

    name: Literal["TILELANG_PYTHON", "interpreter", "managed"]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    stamp: str = ""

    @property
    def title(self) -> str:
        return TITLES[self.name]

    @property
    def _note(self) -> Path:
        return user_cache() / "compilers" / f"{digest(self.command, self.stamp)[:32]}.json"

    def remembered(self) -> Identity | None:
        """The compiler's identity from an earlier start, unless it may have changed since."""
        try:
            note = json.loads(self._note.read_bytes())
            identity = Identity(**note["identity"])
            age = time.time() - float(note["time"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        current = self._key(identity.package, identity.version)
        fresh = self.sees(identity) or 0 <= age < REMEMBERED
        return identity if fresh and identity.key == current else None

    def remember(self, greeting: Mapping[str, Any]) -> Identity:
        """Takes down a worker's greeting."""
        fields = {name: str(greeting[name]) for name in ("version", "package", "python", "machine")}
        identity = Identity(**fields, key=self._key(fields["package"], fields["version"]))
        with contextlib.suppress(OSError):
            note = {"identity": asdict(identity), "time": time.time()}
            write_atomically(self._note, json.dumps(note).encode())
        return identity

    def sees(self, identity: Identity) -> bool:
        """Whether the compiler's package is on this machine's file system."""
        return Path(identity.package, "src").is_dir()

    def _key(self, package: str, version: str) -> str:
        return digest(version, self.stamp or fingerprint(Path(package)))


def fingerprint(package: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of the files that decide what a compiler does: one may be built and edited in place."""
    found = []
    for folder, folders, names in os.walk(package):
        folders[:] = [name for name in folders if name not in ("3rdparty", "__pycache__")]
        for path in (Path(folder, name) for name in names if name.endswith((".py", ".so"))):
            status = path.stat()
            found.append((str(path.relative_to(package)), status.st_size, status.st_mtime_ns))
    return sorted(found)


def candidates(*, install: bool = False) -> Iterator[Origin]:
    """The compilers of this machine in the order in which they are tried.

    Args:
        install: Install the managed toolchain when its turn comes and it is not there.
    """
    if line := os.environ.get("TILELANG_PYTHON", "").strip():
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise CompilerError("unavailable", f"TILELANG_PYTHON={line} is no command line: {error}") from error
        yield Origin("TILELANG_PYTHON", _program(words), _environment())
        return
    if importlib.util.find_spec("tilelang") is not None:
        yield Origin("interpreter", (sys.executable,), _environment())
    from harness.toolchain.layout import installed

    prefix = installed()
    if prefix is None and install:
        from harness.toolchain.install import install as install_toolchain

        prefix = install_toolchain()
    if prefix is not None:
        yield Origin("managed", prefix.command, prefix.environment, stamp=prefix.stamp)


def _program(words: Sequence[str]) -> tuple[str, ...]:
    """The command with its program as a path where it can be found."""
    return (shutil.which(words[0]) or words[0], *words[1:])


def _environment() -> dict[str, str]:
    """This environment, made to start fast and to import nothing from the current folder."""
    return {**os.environ, "PYTHONSAFEPATH": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def fetch_headers(identity: Identity, ask: Callable[[Sequence[str]], Any]) -> Path:
    """Copies the package's device headers from a worker on another machine, once per compiler.

    Args:
        identity: The compiler.
        ask: Fetches the named folders as a base64 .tar.gz.
    """
    folder = user_cache() / "headers" / identity.key[:32]
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(ask(HEADERS)))) as archive:
            safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python >= 3.11.4
            archive.extractall(Path(temporary, "tilelang"), **safe)
        with contextlib.suppress(OSError):  # another process was first
            Path(temporary, "tilelang").rename(folder)
    return folder
