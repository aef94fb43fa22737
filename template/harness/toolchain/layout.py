"""Where the managed toolchain is, and how its Python is started."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.compiler.cache import user_cache
from harness.toolchain import recipe

LAYOUT = 1
STAMP = "stamp.json"
# Settings of the caller that must not reach the toolchain's Python.
FOREIGN = ("LD_", "PYTHON", "QEMU_", "TILELANG_", "TL_", "TVM_", "DYLD_")


def home() -> Path:
    """The folder that holds the toolchains of all recipes."""
    return user_cache() / "toolchain"


def machine() -> str:
    """The processor, ``x86_64`` or ``aarch64``."""
    return {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())


def recipe_hash(processor: str | None = None) -> str:
    """Names what is to be installed; a toolchain is up to date when its folder has this name."""
    parts = {name: value for name, value in sorted(vars(recipe).items()) if name.isupper()}
    text = json.dumps([LAYOUT, processor or machine(), parts], default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Prefix:
    """A toolchain's folder.

    Attributes:
        root: Holds ``sysroot`` (the private system), ``site`` (Python packages) and, on x86-64, ``emulator``.
        processor: Of the host.
    """

    root: Path
    processor: str

    @property
    def sysroot(self) -> Path:
        return self.root / "sysroot"

    @property
    def site(self) -> Path:
        return self.root / "site"

    @property
    def emulator(self) -> Path:
        return self.root / "emulator"

    @property
    def package(self) -> Path:
        """The ``tilelang`` package, with the device headers."""
        return self.site / "tilelang"

    @property
    def stamp(self) -> str:
        return self.root.name

    @property
    def command(self) -> tuple[str, ...]:
        """Starts the toolchain's Python: emulated on x86-64, through its own dynamic loader on aarch64."""
        python = str(self.sysroot / "usr/bin" / f"python{recipe.PYTHON}")
        if self.processor == "x86_64":
            return (str(self.emulator), python)
        libraries = self.sysroot / "usr/lib/aarch64-linux-gnu"
        return (str(libraries / "ld-linux-aarch64.so.1"), "--library-path", str(libraries), python)

    @property
    def environment(self) -> dict[str, str]:
        """The caller's environment without what would mislead the toolchain's Python."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        own = {
            "PYTHONHOME": str(self.sysroot / "usr"),
            "PYTHONPATH": str(self.site),
            "PYTHONNOUSERSITE": "1",
            "PYTHONSAFEPATH": "1",
            "PYTHONUTF8": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        if self.processor == "x86_64":
            # Pointer authentication, which newer models have, is slow to emulate.
            own |= {"QEMU_CPU": "cortex-a72", "QEMU_LD_PREFIX": str(self.sysroot)}
        return {**kept, **own}

    def facts(self) -> dict[str, Any]:
        """What was noted at installation: versions, size, date."""
        facts: dict[str, Any] = json.loads((self.root / STAMP).read_text(encoding="utf-8"))
        return facts


def installed() -> Prefix | None:
    """The toolchain of this harness's recipe, if it is completely installed."""
    root = home() / recipe_hash()
    return Prefix(root, machine()) if (root / STAMP).is_file() else None


def others() -> list[Path]:
    """Toolchains of other recipes: those of packages made with other versions of the template."""
    found = (path.parent for path in home().glob(f"*/{STAMP}"))
    return sorted(path for path in found if path.name != recipe_hash())


def size(folder: Path) -> int:
    """Bytes on disk below a folder."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*") if not path.is_symlink())


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"
