"""After `copier copy` or `copier recopy`: makes the package's environment and checks the package.

Runs in the new package's folder, in Copier's own interpreter: standard library only. Exit status: 0 when nothing
failed, 1 when a check failed, 2 when something that was asked for by name (compile_check=install) could not be had,
130 when interrupted. Copier removes a folder that it has just created when this is not 0, unless told --no-cleanup.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parent))

from environment import EnvironmentProblem, add_cxx, has_modules, make_environment, python_of, say, step

FAILED, IMPOSSIBLE, INTERRUPTED = 1, 2, 130
NEEDED = ("numpy", "ml_dtypes", "rich")
BY_HAND = "python3 -m venv .venv && .venv/bin/pip install -e '.[dev]'"


class Outcome(Exception):
    """The hook ends early: status and what to tell the user."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def main() -> int:
    """Runs the hook; see the module."""
    arguments = _arguments()
    package = Path.cwd()
    signal.signal(signal.SIGINT, _interrupted)
    try:
        python = _environment(package, arguments)
        if arguments.compile_check != "off":
            _check(python, arguments)
    except Outcome as outcome:
        say("")
        say(str(outcome))
        if outcome.status:
            say(_fate_of_files(package, arguments))
        return outcome.status
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Ctrl-C: says at once where things stand, since Copier gives its tasks a quarter of a second to end."""
    package = Path.cwd()
    say(f"\nInterrupted. {package} is complete, only its environment or check is not. Go on with:")
    say(f"  cd {package} && {BY_HAND} && .venv/bin/python -m harness check")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--create-venv", type=_yes_or_no, required=True)
    parser.add_argument("--compile-check", choices=("auto", "install", "off"), required=True)
    parser.add_argument("--cleanup", type=_yes_or_no, required=True, help="whether Copier removes files on failure")
    return parser.parse_args()


def _yes_or_no(text: str) -> bool:
    return text.lower() in ("true", "yes", "1")


def _environment(package: Path, arguments: argparse.Namespace) -> Path:
    """The interpreter that runs the package's harness."""
    if not arguments.create_venv:
        return _active_python(arguments)
    venv = package / ".venv"
    try:
        add_cxx(package, make_environment(package, venv, ["dev"]), package)
    except EnvironmentProblem as problem:
        raise _not_checked(arguments, f"No .venv was made: {problem}") from problem
    return python_of(venv)


def _active_python(arguments: argparse.Namespace) -> Path:
    """The user's own environment, where there is no .venv: the active one, else the first Python on the PATH."""
    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    python = Path(active) / "bin" / "python" if active else Path("python3")
    if arguments.compile_check != "off" and not has_modules(python, NEEDED):
        raise _not_checked(arguments, f"create_venv=no, and {python} lacks some of {', '.join(NEEDED)}.")
    return python


def _not_checked(arguments: argparse.Namespace, why: str) -> Outcome:
    """Nothing failed, but nothing was checked either: an error only where the check was asked for by name."""
    message = f"{why}\n\nThe kernel is written but NOT checked. In its folder:\n  {BY_HAND}\n"
    return Outcome(
        IMPOSSIBLE if arguments.compile_check == "install" else 0, message + "  .venv/bin/python -m harness check"
    )


def _check(python: Path, arguments: argparse.Namespace) -> None:
    harness = [str(python), "-m", "harness"]
    required: list[str] = []
    if arguments.compile_check == "install":
        with step("installing the compiler"):
            status = subprocess.run([*harness, "toolchain", "install"], check=False).returncode
        if status:
            raise Outcome(
                INTERRUPTED if status in (INTERRUPTED, -2) else IMPOSSIBLE,
                "The compiler could not be installed (see above). Once that is mended:\n"
                "  .venv/bin/python -m harness toolchain install && .venv/bin/python -m harness check\n"
                "compile_check=auto checks as far as this machine allows without it.",
            )
        required = ["--require", "budget"]
    say("==> checking the kernel")
    status = subprocess.run([*harness, "check", *required], check=False).returncode
    if status in (INTERRUPTED, -2):
        raise KeyboardInterrupt
    if status == FAILED:
        raise Outcome(FAILED, "The check FAILED (see above).")
    if status:
        raise Outcome(IMPOSSIBLE, f"The check could not be carried out (exit status {status}; see above).")


def _fate_of_files(package: Path, arguments: argparse.Namespace) -> str:
    if arguments.cleanup:
        return (
            "Copier now removes the folder if it has just created it. To keep the files and look into it, repeat with\n"
            "--no-cleanup (copier copy --trust --no-cleanup ...), or copy without the check: -d compile_check=off"
        )
    return f"The files are kept in {package}. After a change, repeat: .venv/bin/python -m harness check"


if __name__ == "__main__":
    sys.exit(main())
