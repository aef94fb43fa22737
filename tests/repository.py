"""The template as its tests see it: its catalog, its starters, and ways to render it."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import copier
import yaml

ROOT = Path(__file__).resolve().parent.parent
VERSION = "99.0.0"  # newer than any release, so that Copier takes the working tree
NAME = "my_kernel"  # long enough to show what a name does to line lengths
Answers = Mapping[str, Any]


@dataclass(frozen=True)
class Starter:
    """One starter in one element type."""

    scenario: str
    operator: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.scenario}-{self.operator}-{self.dtype}"

    @property
    def answers(self) -> dict[str, Any]:
        """Answers that select it; the rest are defaults."""
        return {"kernel_name": NAME, "scenario": self.scenario, "operator": self.operator, "dtype": self.dtype}


def load_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@cache
def catalog() -> dict[str, Any]:
    """All tables of ``catalog/`` in the form of a package's ``harness/catalog.json``."""
    folder = ROOT / "catalog"
    tables = {name: load_yaml(folder / f"{name}.yml") for name in ("scenarios", "hardware", "dtypes")}
    records = {path.stem: load_yaml(path) for path in sorted((folder / "operators").glob("*.yml"))}
    return tables | {"operators": {name: records[name] for name in tables["scenarios"] if name in records}}


@cache
def questions() -> dict[str, dict[str, Any]]:
    """All questions by name, hidden values included, in the order they are asked."""
    found: dict[str, dict[str, Any]] = {}
    for path in question_files():
        found |= load_yaml(path)
    return found


def question_files() -> list[Path]:
    """The files that ``copier.yml`` includes, in its order."""
    prefix = "!include "
    lines = (ROOT / "copier.yml").read_text(encoding="utf-8").splitlines()
    return [ROOT / line.removeprefix(prefix).strip() for line in lines if line.startswith(prefix)]


def starters() -> Iterator[Starter]:
    """Every scenario × operator × element type on offer."""
    for scenario, records in catalog()["operators"].items():
        for operator, record in records.items():
            for dtype in record["dtypes"]:
                yield Starter(scenario, operator, dtype)


def operators() -> list[Starter]:
    """One starter for each operator: in its default element type, which is its first."""
    found: dict[tuple[str, str], Starter] = {}
    for starter in starters():
        found.setdefault((starter.scenario, starter.operator), starter)
    return list(found.values())


def write_catalog(path: Path) -> Path:
    """Writes the whole catalog as a package carries its part of it."""
    path.write_text(json.dumps(catalog()), encoding="utf-8")
    return path


def tracked_files() -> list[Path]:
    """The repository's files, relative to its root: tracked, or new and not ignored."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return [Path(name) for name in names if name and (ROOT / name).is_file()]


def copy_working_tree(destination: Path) -> Path:
    """Copies the working tree, uncommitted changes included, without its history."""
    for name in tracked_files():
        target = destination / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    return destination


def commit_all(repository: Path, message: str, tag: str | None = None) -> None:
    """Commits everything in a folder, which becomes a repository if it is none."""
    if not (repository / ".git").exists():
        git(repository, "init", "--quiet", "--initial-branch=main")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--allow-empty", "--message", message)
    if tag:
        git(repository, "tag", tag)


def git(repository: Path, *arguments: str) -> str:
    """Runs git in a repository; returns what it printed."""
    done = subprocess.run(["git", "-C", str(repository), *arguments], check=True, capture_output=True, text=True)
    return done.stdout


@cache
def default_answers() -> dict[str, Any]:
    """What Copier takes where nothing is answered, hidden values included."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = copy_working_tree(Path(scratch) / "template")
        worker = copier.run_copy(
            str(folder),
            Path(scratch) / "package",
            defaults=True,
            quiet=True,
            skip_tasks=True,
            pretend=True,
            exclude=["*"],
        )
    return dict(worker.answers.user)


def render(template: Path, destination: Path, answers: Answers | None = None, **options: Any) -> Path:
    """Copies the template with defaults for everything else, without tasks."""
    settings = {"defaults": True, "quiet": True, "skip_tasks": True, "overwrite": True} | options
    copier.run_copy(str(template), destination, data=dict(answers or {}), **settings)
    return destination
