"""Makes a fleet of packages, updates it and prints the report.

    python tests/fleet_report.py [--packages 50] [--folder DIR]

The packages are of several releases and starters; they are edited, one has a conflict in the making, one uncommitted
changes, and some share a repository. Afterwards every line that an owner has written is looked for.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import projects
import repository
from projects import MATMUL, SOFTMAX, Template

NOTE = "a line of the owner of package"
MONOREPO = 4  # packages that share one repository


@dataclass
class MadeFleet:
    """A fleet: its packages and what their owners wrote, by package and file."""

    folder: Path
    packages: list[Path] = field(default_factory=list)
    notes: dict[Path, dict[str, str]] = field(default_factory=dict)
    conflict: Path = Path()
    dirty: Path = Path()

    def lost(self) -> list[str]:
        """Lines of owners that are nowhere in their package any more."""
        return [
            f"{package}: {note}"
            for package, notes in self.notes.items()
            for path, note in notes.items()
            if not any(note.encode() in text for name, text in projects.files(package).items() if name.startswith(path))
        ]


def make_fleet(folder: Path, template: Template, count: int) -> MadeFleet:
    """Generates the packages: a few with Copier, the rest as copies of them."""
    fleet = MadeFleet(folder)
    kinds = [(version, answers) for version in template.versions[:2] for answers in (SOFTMAX, MATMUL)]
    shared = folder / "shared"
    for number in range(count):
        version, answers = kinds[number % len(kinds)]
        in_shared = number >= count - MONOREPO
        package = template.project((shared if in_shared else folder) / f"kernel_{number:03}", version, answers)
        fleet.packages.append(package)
        fleet.notes[package] = edit(package, number)
        if in_shared:
            shutil.rmtree(package / ".git")
        else:
            projects.commit(package, "Work of the owner")
    projects.commit(shared, "Work of the owners")
    fleet.conflict, fleet.dirty = fleet.packages[:2]
    ladder = fleet.conflict / "harness/ladder.py"
    ladder.write_text("".join(f"{line}  # {NOTE} 0\n" for line in ladder.read_text().splitlines()))
    projects.commit(fleet.conflict, "In the way of the update")
    kernel = fleet.dirty / "src/my_kernel/kernel.py"
    kernel.write_text(f"{kernel.read_text()}# {NOTE} 1, not committed\n")
    return fleet


def edit(package: Path, number: int) -> dict[str, str]:
    """Lines in files owned, shared, managed and the owner's alone, as many as owners may have."""
    places = ["src/my_kernel/kernel.py", "tests/spec.py", "README.md", "tests/test_l1.py", "notes.md"]
    notes = {}
    for path in [*places[: 1 + number % len(places)], "notes.md"]:
        note = f"# {NOTE} {number}, in {path}\n"
        file = package / path
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        # At the top of the README: its last lines change from release to release, and would conflict.
        file.write_text(note + text if path == "README.md" else text + note, encoding="utf-8")
        notes[path] = note
    return notes


def update(fleet: MadeFleet, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs hooks/fleet.py on the fleet."""
    command = [sys.executable, str(repository.ROOT / "hooks/fleet.py"), str(fleet.folder), *arguments]
    return subprocess.run(command, cwd=fleet.folder.parent, check=False, capture_output=True, text=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=int, default=50)
    parser.add_argument("--folder", type=Path, help="keep the fleet here (default: a temporary folder)")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="fleet-") as scratch:
        home = Path(scratch)
        start = time.monotonic()
        template = Template(home / "released", repository.ROOT)
        fleet = make_fleet(arguments.folder or home / "fleet", template, arguments.packages)
        print(f"made {len(fleet.packages)} packages in {time.monotonic() - start:.0f} s", flush=True)
        done = update(fleet, "--no-check", "--commit", "Update the template")
        print(done.stdout + done.stderr)
        lost = fleet.lost()
        print(f"exit status {done.returncode}; lines of owners lost: {len(lost)}", *lost, sep="\n")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
