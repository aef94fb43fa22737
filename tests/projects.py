"""Projects of released versions of the template, and how they are updated in tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import copier
import yaml

import releases
import repository

ANSWERS = ".copier-answers.yml"
OWNED = ("src/", "tests/spec.py", "design.md")  # written once, never touched by an update
SOFTMAX = {"kernel_name": "my_kernel", "scenario": "vector", "operator": "softmax"}
MATMUL = {"kernel_name": "my_kernel", "scenario": "gemm", "operator": "matmul"}


class Template:
    """All releases as one repository, and the working tree as its newest version where that differs."""

    def __init__(self, folder: Path, working_tree: Path) -> None:
        self.path = folder / "template"
        self.versions = releases.build(self.path)
        for name in repository.git(self.path, "ls-files", "-z").split("\0"):
            if name:
                (self.path / name).unlink()
        for name in map(str, repository.tracked_files()):
            if name.split("/")[0] in releases.PARTS:
                target = self.path / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(working_tree / name, target)
        if repository.git(self.path, "status", "--porcelain"):
            repository.commit_all(self.path, "Working tree", repository.VERSION)
            self.versions.append(repository.VERSION)
        self._cache = folder / "packages"
        self._fresh: dict[tuple[str, str], Path] = {}

    @property
    def oldest(self) -> str:
        return self.versions[0]

    @property
    def newest(self) -> str:
        return self.versions[-1]

    def fresh(self, version: str, answers: Mapping[str, Any]) -> Path:
        """A package as this version generates it, committed; do not change it."""
        key = (version, str(sorted(answers.items())))
        if key not in self._fresh:
            package = self._cache / str(len(self._fresh))
            repository.render(self.path, package, answers, vcs_ref=version, unsafe=True)
            repository.commit_all(package, "Generated")
            self._fresh[key] = package
        return self._fresh[key]

    def project(self, folder: Path, version: str, answers: Mapping[str, Any] = SOFTMAX) -> Path:
        """A project of its own, as this version generates it, committed."""
        return Path(shutil.copytree(self.fresh(version, answers), folder))


def update(project: Path, version: str | None = None, **options: Any) -> None:
    """Updates a project as `copier update --trust --defaults` does, in this process."""
    settings = {"defaults": True, "overwrite": True, "unsafe": True, "quiet": True, "vcs_ref": version} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copier.run_update(project, **settings)


def run_copier(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs the command line; stdin is no terminal."""
    command = [sys.executable, "-m", "copier", *map(str, arguments)]
    settings = {"capture_output": True, "text": True, "check": False, "timeout": 1200, "stdin": subprocess.DEVNULL}
    return subprocess.run(command, **(settings | options))


def files(project: Path) -> dict[str, bytes]:
    """Everything in a project but git's own, by path."""
    found = (path for path in project.rglob("*") if path.is_file())
    return {
        str(path.relative_to(project)): path.read_bytes()
        for path in found
        if ".git" not in path.relative_to(project).parts and "__pycache__" not in path.parts
    }


def answers_of(project: Path) -> dict[str, Any]:
    stored: dict[str, Any] = yaml.safe_load((project / ANSWERS).read_text(encoding="utf-8"))
    return stored


def commit(project: Path, message: str = "Change") -> None:
    repository.commit_all(project, message)


def is_owned(path: str) -> bool:
    return path.startswith(OWNED)


def archived(version: str) -> dict[str, bytes]:
    """The files of a released version."""
    found = {}
    with tarfile.open(releases.RELEASES / f"{version}{releases.SUFFIX}") as archive:
        for member in archive:
            if member.isfile() and (file := archive.extractfile(member)):
                found[member.name] = file.read()
    return found


def assert_current(project: Path, template: Template, version: str, answers: Mapping[str, Any], made_with: str) -> None:
    """An untouched project equals a fresh one; its owned files are those it was made with."""
    expected = files(template.fresh(version, answers))
    owned = {path: text for path, text in files(template.fresh(made_with, answers)).items() if is_owned(path)}
    expected = {path: text for path, text in expected.items() if not is_owned(path)} | owned
    found = files(project)
    assert sorted(found) == sorted(expected)
    different = [path for path in found if found[path] != expected[path] and path != ANSWERS]
    assert different == []
    assert answers_of(project) == answers_of(template.fresh(version, answers))


def harness_rules(project: Path, *extra: str) -> subprocess.CompletedProcess[str]:
    """What the package's own rules find, without climbing the ladder."""
    return subprocess.run(
        [sys.executable, "-m", "harness", "check", "--format", "json", *extra],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
