"""The C++ compiler of this machine and a cache of what it made.

Reusable by every tool that builds the generated code in its own way: a `Profile` says what is included and defined,
`library` and `program` return built files, from the user's cache where nothing changed. Steps that take long are
announced to the logger of this module.
"""

from __future__ import annotations

import fcntl
import functools
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from harness.compiler.cache import digest, user_cache

log = logging.getLogger(__name__)

LIMIT = 512 * 1024 * 1024  # bytes of built files kept; a precompiled header has about 17 MB, a kernel 0.2 MB
TIME_LIMIT = 900.0  # seconds for one compilation; the first use of ziglang builds a C++ library, which takes a minute

# The least a kernel needs: both 16-bit floats in C++, concepts, atomic references.
PROBE = """
#include <atomic>
#include <bit>
#include <cmath>
#include <vector>
template <typename T> concept Small = sizeof(T) == 2;
template <Small T> float half_of(T value) { return static_cast<float>(value) / 2; }
extern "C" float probe(float x, unsigned *y) {
    std::atomic_ref<unsigned>(*y).fetch_add(1);
    std::vector<float> v{half_of(static_cast<_Float16>(x)), half_of(static_cast<__bf16>(x))};
    return std::exp(v[0]) + v[1] + std::bit_cast<float>(*y);
}
"""
# Each operation of a kernel rounds by itself, as an instruction does: no excess precision, no fused multiply-add.
BASE_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-w", "-ffp-contract=off", "-fno-math-errno", "-fdiagnostics-color=never")
FAMILY_FLAGS = {
    "clang": ("-Xclang", "-ffloat16-excess-precision=none", "-fno-caret-diagnostics", "-ferror-limit=8"),
    "gcc": ("-fexcess-precision=16", "-fno-gnu-unique", "-fmax-errors=8", "-fno-diagnostics-show-caret"),
}
X86_64_V3 = {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}  # of /proc/cpuinfo; f16c is what matters most


class CompilerNotFound(Exception):
    """No C++ compiler that can build kernels; the message says what to install."""


class CompileError(Exception):
    """The C++ compiler refused a source.

    Attributes:
        log: Its output.
    """

    def __init__(self, log: str) -> None:
        super().__init__(log.strip() or "the C++ compiler failed without a message")
        self.log = log


@dataclass(frozen=True)
class Cxx:
    """A C++ compiler.

    Attributes:
        command: How it is started.
        family: ``clang`` or ``gcc``: whose options it takes.
        version: First line of ``--version``.
        flags: Options for every compilation, the machine's instruction set included.
    """

    command: tuple[str, ...]
    family: str
    version: str
    flags: tuple[str, ...]

    @property
    def zig(self) -> bool:
        return "ziglang" in self.command


@dataclass(frozen=True)
class Profile:
    """How a family of sources is built.

    Attributes:
        prelude: Header included before the source; precompiled.
        include: Folders on the include path.
        defines: Macros, as ``NAME=value``.
        stamp: Whatever else decides the result, such as the identity of the headers; part of the cache's key.
    """

    prelude: Path
    include: tuple[Path, ...] = ()
    defines: tuple[str, ...] = ()
    stamp: str = ""

    def relocated(self) -> Profile:
        """The same with the prelude's folder copied to the cache: packages with equal harnesses share what is built."""
        folder = self.prelude.parent
        files = sorted(path for path in folder.rglob("*") if path.suffix in (".hpp", ".h", ".inc"))
        texts = {str(path.relative_to(folder)): path.read_text() for path in files}
        copy = _folder("source") / digest(texts)[:32]
        if not copy.is_dir():
            with tempfile.TemporaryDirectory(dir=copy.parent) as scratch:
                for name, text in texts.items():
                    path = Path(scratch, "new", name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text)
                with suppress(OSError):  # another process was faster
                    Path(scratch, "new").rename(copy)
        own = (copy / path.relative_to(folder) if path.is_relative_to(folder) else path for path in self.include)
        return replace(self, prelude=copy / self.prelude.name, include=tuple(own))

    def options(self) -> list[str]:
        return [*(f"-D{define}" for define in self.defines), *(f"-I{folder}" for folder in self.include)]


def cpu_flags() -> set[str]:
    """Instruction set extensions of this machine's first processor, by their names in ``/proc/cpuinfo``."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return set(line.split(":", 1)[1].split())
    return set()


def machine_flags(*, zig: bool) -> tuple[str, ...]:
    """Options for the machine's instruction set: the level x86-64-v3 where it has that, else the base."""
    if platform.machine() in ("x86_64", "AMD64") and cpu_flags() >= X86_64_V3:
        return ("-march=x86_64_v3",) if zig else ("-march=x86-64-v3",)
    return ()


@functools.cache
def find_cxx() -> Cxx:
    """The first that works of: ``CXX``, clang++ (plain, 22 to 16), g++ (plain, 16 to 13), ``python -m ziglang c++``.

    Raises:
        CompilerNotFound: None of them compiles the probe.
    """
    names = [os.environ["CXX"]] if os.environ.get("CXX") else []
    names += ["clang++", *(f"clang++-{n}" for n in range(22, 15, -1)), "g++", *(f"g++-{n}" for n in range(16, 12, -1))]
    commands = [(path,) for name in names if (path := shutil.which(name))]
    tried = []
    for command in [*commands, (sys.executable, "-m", "ziglang", "c++")]:
        try:
            return _examine(command)
        except (CompileError, OSError, subprocess.SubprocessError) as error:
            tried.append(f"{' '.join(command)}: {str(error).splitlines()[0]}")
    raise CompilerNotFound(
        "no C++ compiler for the virtual NPU. Needed is one of: clang++ 16 or newer, g++ 13 or newer, or the Python "
        f"package ziglang (`{sys.executable} -m pip install ziglang`). Tried: {'; '.join(tried)}"
    )


def _examine(command: tuple[str, ...]) -> Cxx:
    if command[-1] == "c++":
        version = "zig " + _output([*command[:-1], "version"])
    else:
        version = _output([*command, "--version"]).splitlines()[0]
    family = "clang" if command[-1] == "c++" or "clang" in version else "gcc"
    machine = machine_flags(zig=command[-1] == "c++")
    cxx = Cxx(command, family, version, (*BASE_FLAGS, *FAMILY_FLAGS[family], *machine))

    def probe(target: Path) -> None:
        if cxx.zig:
            log.info("ziglang builds its C++ library (once, about a minute)")
        with tempfile.TemporaryDirectory(prefix="vnpu-") as scratch:
            source = Path(scratch, "probe.cpp")
            source.write_text(PROBE)
            _call(cxx, ["-shared", str(source), "-o", str(target)])

    cached("probe", digest(command, version, cxx.flags, PROBE), ".so", probe)
    return cxx


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIME_LIMIT).stdout.strip()


def _call(cxx: Cxx, options: Sequence[str]) -> None:
    environment = os.environ | ({"ZIG_GLOBAL_CACHE_DIR": str(_folder("zig"))} if cxx.zig else {})
    command = [*cxx.command, *cxx.flags, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT, env=environment, check=False)
    if done.returncode:
        raise CompileError(done.stderr or done.stdout)


def library(source: str, profile: Profile, cxx: Cxx, *, name: str = "kernel.cpp") -> Path:
    """Builds a shared library from a source text.

    Args:
        name: What diagnostics call the source.

    Raises:
        CompileError: The source was refused.
    """
    profile = profile.relocated()

    def make(target: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="vnpu-") as scratch:
            path = Path(scratch, name)
            path.write_text(source)
            options = [*_include_prelude(profile, cxx), *profile.options(), "-fvisibility=hidden", "-shared"]
            _call(cxx, [*options, str(path), "-o", str(target)])

    return cached("library", digest(source, _key(profile, cxx)), ".so", make)


def program(sources: Sequence[Path], cxx: Cxx, *, stamp: str = "") -> Path:
    """Builds an executable from source files.

    Args:
        stamp: Content of headers that they include; part of the cache's key.
    """

    def make(target: Path) -> None:
        _call(cxx, [*map(str, sources), "-o", str(target), "-pthread", *(() if cxx.zig else ("-ldl",))])

    texts = [path.read_text() for path in sources]
    return cached("program", digest(texts, stamp, cxx.command, cxx.version, cxx.flags), "", make)


def _key(profile: Profile, cxx: Cxx) -> str:
    return digest(cxx.command, cxx.version, cxx.flags, str(profile.prelude), profile.options(), profile.stamp)


def _include_prelude(profile: Profile, cxx: Cxx) -> list[str]:
    """Options that include the prelude, precompiled where the compiler can."""
    plain = ["-include", str(profile.prelude)]
    if cxx.family == "gcc":
        return plain

    def make(target: Path) -> None:
        precompile = ["-x", "c++-header", "-fpch-instantiate-templates", "-Xclang", "-fno-pch-timestamp"]
        log.info("precompiling the device headers (once)")
        options = [*precompile, *profile.options(), "-fvisibility=hidden", str(profile.prelude), "-o", str(target)]
        try:
            _call(cxx, options)
        except CompileError:
            target.touch()  # empty: do without; what is wrong shows when a kernel is compiled

    header = cached("header", _key(profile, cxx), ".pch", make)
    return ["-include-pch", str(header)] if header.stat().st_size else plain


# --- cache -----------------------------------------------------------------------------------------------------------


def _folder(name: str) -> Path:
    path = user_cache() / "vnpu" / name
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a lock between processes for as long as a file is being made."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cached(folder: str, key: str, suffix: str, make: Callable[[Path], None]) -> Path:
    """A file by the content of what it is made from.

    Made once even when several processes ask at the same time; appears whole or not at all.

    Args:
        make: Writes the file to the path it is given; whatever it raises is passed on and nothing is kept.
    """
    target = _folder(folder) / (key[:32] + suffix)
    if not target.exists():
        with _locked(_folder("lock") / (key[:32] + ".lock")):
            if not target.exists():
                new = target.with_name(f"new-{os.getpid()}-{target.name}")
                try:
                    make(new)
                    new.replace(target)
                finally:
                    new.unlink(missing_ok=True)
                _trim()
    with suppress(OSError):
        os.utime(target)  # used: among the last to be dropped
    return target


def _trim() -> None:
    """Drops the files that were used longest ago until three quarters of the limit are left."""
    files = []
    for folder in ("library", "program", "header", "lock"):
        for path in _folder(folder).iterdir():
            with suppress(OSError):
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in files)
    if total <= LIMIT:
        return
    for _, size, path in sorted(files):
        if total <= LIMIT * 3 // 4:
            break
        path.unlink(missing_ok=True)
        total -= size
