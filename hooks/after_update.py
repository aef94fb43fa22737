"""After `copier update`, once, when the user's edits are back: files that were renamed, then the check.

The update is done by then, so nothing here fails: the exit status is always 0. Standard library only, and `packaging`.
Copier tells the versions in environment variables (VERSION_FROM and others). KERNEL_CHECK=off leaves the check out, for
programs that update many packages and check them themselves.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import lock
from migrations import renamed_files

TEMPLATE = Path(__file__).resolve().parent.parent
CHECK = "python -m harness check"
FAILED = 1


def main() -> int:
    """Runs the hook; see the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", default="auto", help="the answer compile_check; off: do not check")
    arguments = parser.parse_args()
    project = Path.cwd()
    old_version, new_version = os.environ.get("VERSION_PEP440_FROM"), os.environ.get("VERSION_PEP440_TO")
    if old_version and new_version:
        for old, new in renamed_files(old_version, new_version).items():
            try:
                carry_edits(project, old, new, git(TEMPLATE, "show", f"{os.environ['VERSION_FROM']}:template/{old}"))
            except OSError as error:
                print(f"{old} is now {new}. Your edits of it could not be brought along ({error}); git has them:")
                print(f"  git show HEAD:./{old}")
        name_removed(project, os.environ["VERSION_FROM"])
        lock.release(project, os.getppid())
    if arguments.check != "off" and os.environ.get("KERNEL_CHECK") != "off":
        check()
    return 0


def carry_edits(project: Path, old: str, new: str, base: bytes | None) -> None:
    """Brings the user's edits of a file to its new name.

    Copier knows no renames: it writes the new file and removes the old one, edits and all. It cannot be told before,
    because it compares with a copy of its own; afterwards the three versions can be merged as it merges all others.
    What the user had is in the last commit, as an update starts from a clean tree.

    Args:
        project: The package.
        old: Path that the file had.
        new: Path that it has now.
        base: The old file as it was generated; None where that is not known.
    """
    before = git(project, "show", f"HEAD:./{old}")
    target = project / new
    if before is None:
        # Deleted (or moved) by the user: stays so, as with every other file.
        if git(project, "show", f"HEAD:./{new}") is None:
            target.unlink(missing_ok=True)
        return
    if before == base or not target.exists():
        return
    with tempfile.TemporaryDirectory(prefix="renamed-") as folder:
        mine, origin = Path(folder, "mine"), Path(folder, "origin")
        mine.write_bytes(before)
        origin.write_bytes(base or b"")
        labels = [part for label in ("before updating", "last update", "after updating") for part in ("-L", label)]
        merged = subprocess.run(
            ["git", "merge-file", "--stdout", *labels, str(mine), str(origin), str(target)],
            check=False, cwd=project, capture_output=True,
        )  # fmt: skip
    if 0 <= merged.returncode < 128:  # the number of conflicts
        target.write_bytes(merged.stdout)
        for leftover in (old, f"{old}.rej"):
            (project / leftover).unlink(missing_ok=True)
        print(f"{old} is now {new}: your edits came along{', with conflicts' if merged.returncode else ''}")
    else:
        print(f"{old} is now {new}. Your edits of it could not be merged; they are in: git show HEAD:./{old}")


def name_removed(project: Path, version: str) -> None:
    """Says which files are gone with this version although the user had edited them."""
    for line in (git(project, "status", "--porcelain", "-z", "--no-renames", "--", ".") or b"").split(b"\0"):
        code, path = line[:2], line[3:].decode(errors="surrogateescape")
        if code == b" D":  # paths are relative to the top of the work tree
            generated = git(TEMPLATE, "show", f"{version}:template/{Path(top(project), path).relative_to(project)}")
            if generated != git(project, "show", f"HEAD:{path}"):
                print(f"{path} is no longer part of a package. If you had changed it: git show HEAD:{path}")


def top(project: Path) -> str:
    """The work tree that holds the project."""
    return (git(project, "rev-parse", "--show-toplevel") or b"").decode().rstrip("\n")


def git(folder: Path, *arguments: str) -> bytes | None:
    """What git prints; None where it fails."""
    done = subprocess.run(["git", *arguments], cwd=folder, check=False, capture_output=True)
    return None if done.returncode else done.stdout


def check() -> None:
    """Checks the package in the current folder with its own .venv, where there is one, and reports."""
    python = Path(".venv/bin/python")
    if not python.exists():
        print(f"The update is done; there is no .venv here, so nothing was checked: run {CHECK} in your environment.")
        return
    print("==> checking the updated package", flush=True)
    try:
        status = subprocess.run([str(python), "-m", "harness", "check"], check=False).returncode
    except KeyboardInterrupt:
        print(f"\nThe update is done; the check was interrupted: {CHECK}")
        return
    except OSError as error:
        print(f"The update is done; {python} does not start ({error.strerror}), so nothing was checked: {CHECK}")
        return
    if status == FAILED:
        print("\nThe update is done. The check found what is shown above: conflicts to resolve, or conventions that")
        print(f"your kernel does not follow yet ({CHECK} --fix mends what is safe to mend). git diff shows the update.")
    elif status:
        print(f"\nThe update is done; the check could not be carried out (exit status {status}). Does the environment")
        print("have what pyproject.toml now asks for? .venv/bin/pip install -e '.[dev]'")


if __name__ == "__main__":
    sys.exit(main())
