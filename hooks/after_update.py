"""After `copier update`, once, when the user's edits are back: checks the package and reports.

The update is done by then, so nothing here fails: the exit status is always 0. Standard library only.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHECK = "python -m harness check"
FAILED = 1


def main() -> int:
    """Checks the package in the current folder with its own .venv, where there is one."""
    python = Path(".venv/bin/python")
    if not python.exists():
        print(f"The update is done; there is no .venv here, so nothing was checked: run {CHECK} in your environment.")
        return 0
    print("==> checking the updated package", flush=True)
    try:
        status = subprocess.run([str(python), "-m", "harness", "check"], check=False).returncode
    except KeyboardInterrupt:
        print(f"\nThe update is done; the check was interrupted: {CHECK}")
        return 0
    except OSError as error:
        print(f"The update is done; {python} does not start ({error.strerror}), so nothing was checked: {CHECK}")
        return 0
    if status == FAILED:
        print("\nThe update is done. The check found what the table shows: conflicts to resolve, or conventions that")
        print(f"your kernel does not follow yet ({CHECK} --fix mends what is safe to mend). git diff shows the update.")
    elif status:
        print(f"\nThe update is done; the check could not be carried out (exit status {status}). Does the environment")
        print("have what pyproject.toml now asks for? .venv/bin/pip install -e '.[dev]'")
    return 0


if __name__ == "__main__":
    sys.exit(main())
