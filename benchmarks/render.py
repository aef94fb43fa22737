"""How long Copier takes to write a package: ``make bench``. Bar: 1 s for any scenario, tasks left out.

Wall time of the best of a few runs, as a user meets it: a process of its own, the template as a git repository.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import repository

RUNS = 3
BAR = 1.0


def main() -> int:
    """Prints a line per operator; exit status 1 where one is above the bar."""
    slow = False
    with tempfile.TemporaryDirectory() as scratch:
        template = repository.copy_working_tree(Path(scratch) / "template")
        repository.commit_all(template, "Working tree", repository.VERSION)
        print(f"{'copier --version':32} {best(['--version']):5.2f} s")
        for scenario, records in repository.catalog()["operators"].items():
            for operator in records:
                destination = Path(scratch) / "package"
                answers = ["-d", f"scenario={scenario}", "-d", f"operator={operator}"]
                options = ["copy", "--quiet", "--defaults", "--skip-tasks", *answers, str(template), str(destination)]
                seconds = best(options, destination)
                slow |= seconds > BAR
                print(f"{scenario + '/' + operator:32} {seconds:5.2f} s{'  above the bar' if seconds > BAR else ''}")
    return int(slow)


def best(arguments: list[str], destination: Path | None = None) -> float:
    """Shortest wall time of a Copier command, in seconds."""
    times = []
    for _ in range(RUNS):
        if destination is not None:
            shutil.rmtree(destination, ignore_errors=True)
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "copier", *arguments], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    sys.exit(main())
