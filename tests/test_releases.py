"""The released versions: archives, tags, changelog."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

import projects
import releases
import repository

pytestmark = pytest.mark.contract
CHANGELOG = repository.ROOT / "CHANGELOG.md"


def test_every_release_is_a_tag(tmp_path: Path) -> None:
    command = [sys.executable, str(repository.ROOT / "tests/releases.py")]
    done = subprocess.run([*command, str(tmp_path / "a")], check=True, capture_output=True, text=True)
    tags = repository.git(tmp_path / "a", "tag", "--sort=version:refname").split()
    assert tags == releases.versions()
    assert ", ".join(tags) in done.stdout
    assert repository.git(tmp_path / "a", "describe", "--tags").strip() == tags[-1]
    assert repository.git(tmp_path / "a", "status", "--porcelain") == ""
    # The same archives give the same commits everywhere.
    releases.build(tmp_path / "b")
    assert repository.git(tmp_path / "b", "rev-parse", "HEAD") == repository.git(tmp_path / "a", "rev-parse", "HEAD")
    again = subprocess.run([*command, str(tmp_path / "a")], check=False, capture_output=True, text=True)
    assert (again.returncode, again.stderr) == (1, f"{tmp_path / 'a'} is not empty\n")


def test_the_newest_release_is_the_template_or_the_changelog_says_what_is_not_released() -> None:
    unreleased = releases.read_changelog(CHANGELOG.read_text(encoding="utf-8")).get(releases.UNRELEASED)
    if unreleased:
        return
    newest = releases.versions()[-1]
    archived = projects.archived(newest)
    names = [str(path) for path in repository.tracked_files() if path.parts[0] in releases.PARTS]
    differing = {name for name in names if archived.get(name) != (repository.ROOT / name).read_bytes()}
    assert differing | (archived.keys() - set(names)) == set(), (
        f"the template is no longer {newest}: say what changed under '## {releases.UNRELEASED}' in CHANGELOG.md"
    )


def test_the_changelog_has_a_section_for_every_release_newest_first() -> None:
    sections = list(releases.read_changelog(CHANGELOG.read_text(encoding="utf-8")))
    assert [name for name in sections if name != releases.UNRELEASED] == releases.versions()[::-1]
    assert releases.UNRELEASED not in sections[1:]


def test_a_changed_question_is_in_the_changelog() -> None:
    changelog = releases.read_changelog(CHANGELOG.read_text(encoding="utf-8"))
    versions = releases.versions()
    for old, new in pairwise(versions):
        for name in asked(old) ^ asked(new):
            assert f"`{name}`" in changelog[new], f"{new} adds or drops the question {name}"
    for name in asked(versions[-1]) ^ {name for name, row in repository.questions().items() if row.get("when", True)}:
        assert f"`{name}`" in changelog.get(releases.UNRELEASED, ""), f"the question {name} is added or dropped"


def asked(version: str) -> set[str]:
    return {name for name, row in questions(version).items() if row.get("when", True) is not False}


def questions(version: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, text in projects.archived(version).items():
        if path.startswith("questions/"):
            found |= yaml.safe_load(text)
    return found


def test_the_releases_differ_in_all_that_updates_have_to_cope_with() -> None:
    first, second = (projects.archived(version) for version in releases.versions()[:2])
    assert first["template/harness/ladder.py"] != second["template/harness/ladder.py"]
    assert asked("0.1.0") ^ asked("0.2.0") == {"chip", "platform", "compiler_era", "cv_exchange"}
    assert "template/tests/test_errors.py" in first
    assert "template/tests/test_l2.py" in second
    assert b"strict-scope" not in first["catalog/scenarios.yml"]
    assert b"strict-scope" in second["catalog/scenarios.yml"]


@pytest.mark.parametrize("version", releases.versions())
def test_an_archive_is_small_and_holds_the_template_only(version: str) -> None:
    assert (releases.RELEASES / f"{version}{releases.SUFFIX}").stat().st_size < 400_000
    names = projects.archived(version)
    assert {name.split("/")[0] for name in names} <= set(releases.PARTS)
    assert next(iter(releases.read_changelog(names["CHANGELOG.md"].decode()))) == version


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A template with two files, ready for its release 1.0."""
    (tmp_path / "copier.yml").write_text("{}\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.0\n\nFirst.\n")
    repository.commit_all(tmp_path, "First")
    monkeypatch.setattr(releases, "ROOT", tmp_path)
    monkeypatch.setattr(releases, "RELEASES", tmp_path / "tests/releases")
    monkeypatch.setattr(releases, "PARTS", ("copier.yml", "CHANGELOG.md"))
    return tmp_path


def test_a_release_is_made_once_and_in_order(small: Path, tmp_path: Path) -> None:
    assert releases.make("1.0").exists()
    assert projects.archived("1.0")["copier.yml"] == b"{}\n"
    for version, message in (
        ("1.0", "never change"),
        ("0.9", "not newer"),
        ("one", "not a PEP 440"),
        ("1.1", "CHANGELOG"),
    ):
        with pytest.raises(ValueError, match=message):
            releases.make(version)
    assert releases.versions() == ["1.0"]


@pytest.mark.parametrize("text", ["## Unreleased\n\n- more\n\n## 1.0\n\nFirst.\n", "## 1.0\n"])
def test_a_release_needs_its_section_in_the_changelog(small: Path, text: str) -> None:
    (small / "CHANGELOG.md").write_text(text)
    repository.commit_all(small, "Changelog")
    with pytest.raises(ValueError, match=r"CHANGELOG\.md needs a section 1\.0"):
        releases.make("1.0")
