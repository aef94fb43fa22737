"""What releases renamed, removed or changed, so that projects of every older release can be updated.

A release that renames a question or a managed file, or takes a choice away, adds a line here and a test. Read by
before_update.py (answers) and after_update.py (files).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version  # Copier's own dependency: always there in its interpreter


@dataclass(frozen=True, kw_only=True)
class Release:
    """What one release changed in names and values.

    Attributes:
        version: The release that made the changes.
        questions: Old names of questions, to their new ones.
        removed_questions: Questions that are no longer asked.
        choices: For a question (by its new name) the values that it no longer accepts, to what they became.
        files: Old paths of managed files in a package, to their new ones. Owned files are never renamed.
    """

    version: str
    questions: Mapping[str, str] = field(default_factory=dict)
    removed_questions: tuple[str, ...] = ()
    choices: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


RELEASES = (
    Release(
        version="0.2.0",
        questions={"chip": "platform"},
        choices={"compile_check": {"full": "install"}},
        files={"tests/test_errors.py": "tests/test_l2.py"},
    ),
)


def between(old: str, new: str) -> Iterator[Release]:
    """The releases that an update from one version to another passes, oldest first."""
    for release in RELEASES:
        if Version(old) < Version(release.version) <= Version(new):
            yield release


def migrate(answers: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    """Answers of one version as a newer version names and accepts them."""
    migrated = dict(answers)
    for release in between(old, new):
        for before, after in release.questions.items():
            if before in migrated:
                value = migrated.pop(before)
                migrated.setdefault(after, value)
        for question in release.removed_questions:
            migrated.pop(question, None)
        for question, values in release.choices.items():
            if question in migrated:
                migrated[question] = values.get(migrated[question], migrated[question])
    return migrated


def renamed_files(old: str, new: str) -> dict[str, str]:
    """Managed files by the path that the older version has, to the path that the newer one has."""
    paths: dict[str, str] = {}
    for release in between(old, new):
        for before, after in release.files.items():
            origin = next((first for first, last in paths.items() if last == before), before)
            paths[origin] = after
    return paths
