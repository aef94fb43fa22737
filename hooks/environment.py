"""Makes a virtual environment and installs a project's dependencies into it, on machines with as little as Python.

Standard library only. Used by the hooks, which run in Copier's own interpreter, and by this repository's Makefile:

    python3 hooks/environment.py PROJECT [--venv FOLDER] [--extra NAME]... [--cxx FOLDER]

Tools, the first that is there: uv; venv with pip; venv without pip, driven by another interpreter's pip; and where
Debian and Ubuntu have split these off, the packages that hold them, from the machine's own package sources.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

OLDEST = (3, 11)
NPU_PACKAGES = ("torch_npu", "tilelang")


class EnvironmentProblem(Exception):
    """The environment could not be made; the message says why and what to do."""


def say(text: str) -> None:
    """Prints a progress line at once, also where output is piped."""
    print(text, flush=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Announces a step and says how long it took."""
    say(f"==> {what}")
    start = time.monotonic()
    yield
    say(f"    done in {time.monotonic() - start:.0f} s")


def python_of(venv: Path) -> Path:
    """The interpreter of a virtual environment."""
    return venv / "bin" / "python"


def make_environment(project: Path, venv: Path, extras: Sequence[str]) -> Path:
    """Makes (or completes) a virtual environment with the dependencies that a project's ``pyproject.toml`` lists.

    The project itself is not installed: building it would need a network, and nothing here imports it from there.

    Args:
        project: Folder with the ``pyproject.toml``.
        venv: Folder of the environment.
        extras: Names of optional dependencies.

    Returns:
        Its interpreter.

    Raises:
        EnvironmentProblem: No fitting Python, no tool to make an environment, or the packages cannot be had.
    """
    uv = shutil.which("uv")
    python = python_of(venv)
    if _version(python) is None:
        _create(venv, uv)
    wanted = dependencies(project, python, extras)
    if not wanted:
        return python
    with step(f"installing {len(wanted)} packages and what they need"):
        _install(python, wanted, uv)
    return python


def add_cxx(project: Path, python: Path, harness: Path) -> None:
    """Adds a C++ compiler (the extra ``cxx``) where the harness finds none for the virtual NPU.

    Args:
        project: Folder with the ``pyproject.toml``.
        python: The environment's interpreter.
        harness: Folder that holds the package ``harness``.

    Raises:
        EnvironmentProblem: There is none, and it could not be installed.
    """
    python = python.absolute()  # the command runs in another folder
    found = _run([str(python), "-c", "from harness.vnpu.build import find_cxx; find_cxx()"], cwd=harness)
    if found.returncode:
        with step("installing a C++ compiler for the virtual NPU (no clang++ here)"):
            _install(python, dependencies(project, python, ["cxx"]), shutil.which("uv"))


def dependencies(project: Path, python: Path, extras: Sequence[str]) -> list[str]:
    """The requirements of a ``pyproject.toml``, read by the environment's interpreter (Copier's may lack tomllib)."""
    code = (
        "import json, sys, tomllib; project = tomllib.load(open(sys.argv[1], 'rb'))['project'];"
        "extra = project.get('optional-dependencies', {});"
        "print(json.dumps(project.get('dependencies', []) + [r for name in sys.argv[2:] for r in extra[name]]))"
    )
    done = _run([str(python), "-c", code, str(project / "pyproject.toml"), *extras])
    if done.returncode:
        raise EnvironmentProblem(f"{project / 'pyproject.toml'} cannot be read: {_last_line(done.stderr)}")
    return list(json.loads(done.stdout))


def has_modules(python: Path | str, modules: Sequence[str]) -> bool:
    """Whether an interpreter can find all the modules."""
    code = "import sys, importlib.util as u; sys.exit(any(u.find_spec(m) is None for m in sys.argv[1:]))"
    return _run([str(python), "-c", code, *modules]).returncode == 0


def _create(venv: Path, uv: str | None) -> None:
    if venv.exists() and not (venv / "pyvenv.cfg").exists() and any(venv.iterdir()):
        raise EnvironmentProblem(f"{venv} exists and is not a virtual environment: move it away and try again")
    base, see_site = _base_python(uv)
    shared = ["--system-site-packages"] if see_site else []
    note = f" (sees the Ascend packages of {base})" if see_site else ""
    with step(f"creating {venv.name} with {'uv' if uv else 'venv'}{note}"):
        if uv:
            # Seeded: people expect .venv/bin/pip to be there.
            done = _run([uv, "venv", "--quiet", "--seed", "--clear", "--python", base, *shared, str(venv)])
            if done.returncode == 0:
                return
            say(f"    uv could not: {_last_line(done.stderr)}; trying venv")
        if not _has_ensurepip(base):
            _install_ensurepip(base)
        pip = [] if _has_ensurepip(base) else ["--without-pip"]
        done = _run([base, "-m", "venv", "--clear", *pip, *shared, str(venv)])
        if done.returncode:
            raise EnvironmentProblem(
                f"{base} -m venv failed: {_last_line(done.stderr or done.stdout)}\n"
                "On Debian and Ubuntu: sudo apt install python3-venv. Or install uv."
            )


def _base_python(uv: str | None) -> tuple[str, bool]:
    """The interpreter to build on, and whether its packages should be seen: those of CANN come no other way."""
    own = getattr(sys, "_base_executable", "") or sys.executable
    path = [found for name in ("python3", "python3.11", "python3.12", "python3.13") if (found := shutil.which(name))]
    fitting = [python for python in dict.fromkeys([*path, own]) if (_version(python) or (0,)) >= OLDEST]
    for python in fitting:
        if any(has_modules(python, [package]) for package in NPU_PACKAGES):
            return python, True
    # Copier's interpreter was chosen for Copier; still, it is known to work.
    if own in fitting:
        return own, False
    if fitting:
        return fitting[0], False
    if uv:
        return f">={OLDEST[0]}.{OLDEST[1]}", False
    raise EnvironmentProblem(
        f"Python {OLDEST[0]}.{OLDEST[1]} or newer is needed, and this machine has none on its PATH. "
        "Install one, or uv, which brings its own."
    )


def _version(python: Path | str) -> tuple[int, int] | None:
    done = _run([str(python), "-c", "import sys; print(*sys.version_info[:2])"])
    parts = done.stdout.split()
    return (int(parts[0]), int(parts[1])) if done.returncode == 0 and len(parts) == 2 else None


def _has_ensurepip(python: str) -> bool:
    return has_modules(python, ["venv", "ensurepip"])


def _install_ensurepip(base: str) -> None:
    """Debian and Ubuntu keep ensurepip in a package of its own; root may install it."""
    if os.geteuid() != 0 or not shutil.which("apt-get") or not base.startswith("/usr/bin/"):
        return
    say("    installing python3-venv (apt)")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "python3-venv"]
    if _run(install, quiet).returncode:
        _run(["apt-get", "update", "-q"], quiet)
        _run(install, quiet)


def _install(python: Path, wanted: Sequence[str], uv: str | None) -> None:
    if uv:
        done = subprocess.run([uv, "pip", "install", "--python", str(python), *wanted], check=False)
        if done.returncode == 0:
            return
        say("    uv could not install; trying pip")
    with _pip(python) as (command, environment):
        quiet = ["--disable-pip-version-check", "--no-input", "--quiet"]
        done = subprocess.run(
            [*command, "install", *quiet, *wanted], check=False, env=os.environ | environment, stdin=subprocess.DEVNULL
        )
    if done.returncode:
        raise EnvironmentProblem(
            "the packages could not be installed (see above).\n"
            "Without a network: point pip at a mirror or at a folder of wheels (PIP_INDEX_URL, PIP_FIND_LINKS), then\n"
            f"  {python} -m pip install {' '.join(map(_quoted, wanted))}"
        )


@contextmanager
def _pip(python: Path) -> Iterator[tuple[list[str], dict[str, str]]]:
    """A command that runs pip for an environment, and what to add to its own environment variables."""
    if has_modules(python, ["pip"]):
        yield [str(python), "-m", "pip"], {}
        return
    for other in ("python3", sys.executable):
        if has_modules(other, ["pip"]):
            yield [other, "-m", "pip", "--python", str(python)], {}
            return
    with tempfile.TemporaryDirectory() as folder:
        wheel = _pip_from_apt(Path(folder))
        yield [str(python), "-m", "pip"], {"PYTHONPATH": str(wheel)}


def _pip_from_apt(folder: Path) -> Path:
    """Debian's and Ubuntu's own pip, unpacked and not installed: for users without root. apt checks its signature."""
    if shutil.which("apt-get") and shutil.which("dpkg-deb"):
        say("    fetching pip (apt, not installed)")
        _run(["apt-get", "download", "-q", "python3-pip-whl"], cwd=folder)
        for package in folder.glob("*.deb"):
            _run(["dpkg-deb", "-x", str(package), str(folder)])
        for wheel in folder.glob("usr/share/python-wheels/pip-*.whl"):
            return wheel
    raise EnvironmentProblem(
        "this machine has neither uv nor pip. On Debian and Ubuntu: sudo apt install python3-venv. Or install uv."
    )


def _run(
    command: Sequence[str], extra: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            cwd=cwd,
            env=os.environ | (extra or {}),
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", f"{command[0]}: {error.strerror}")


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "no message"


def _quoted(requirement: str) -> str:
    return requirement if re.fullmatch(r"[\w.=-]+", requirement) else f"'{requirement}'"


def main() -> int:
    """Makes the environment of a project from the command line."""
    parser = argparse.ArgumentParser(description="Make a virtual environment with a project's dependencies.")
    parser.add_argument("project", type=Path)
    parser.add_argument("--venv", type=Path, help="default: PROJECT/.venv")
    parser.add_argument("--extra", action="append", default=[], help="optional dependencies to add")
    parser.add_argument("--cxx", type=Path, metavar="FOLDER", help="see to a C++ compiler for the harness in FOLDER")
    arguments = parser.parse_args()
    try:
        python = make_environment(arguments.project, arguments.venv or arguments.project / ".venv", arguments.extra)
        if arguments.cxx:
            add_cxx(arguments.project, python, arguments.cxx)
    except EnvironmentProblem as problem:
        print(f"No environment: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; run the same command again, it goes on from here.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
