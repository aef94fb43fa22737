"""The released versions of the template, kept as archives, so that updates from every one of them can be tested.

    python tests/releases.py FOLDER            builds a git repository in which every release is a tag
    python tests/releases.py --make VERSION    archives the committed template as a release

A clone may come without tags; the archives do not depend on them. An archive never changes once it is released.
"""

from __future__ import annotations

import argparse
import io
import lzma
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parent.parent
RELEASES = Path(__file__).resolve().parent / "releases"
SUFFIX = ".tar.xz"
UNRELEASED = "Unreleased"
# What Copier reads, and what a person reads of it. Tests and development files are not part of a release.
PARTS = ("copier.yml", "questions", "catalog", "kernels", "template", "hooks", "includes", "CHANGELOG.md", "LICENSE")
# Fixed, so that the same archives give the same commits everywhere.
IDENTITY = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "releases"), ("EMAIL", "releases@localhost"), ("DATE", "2026-01-01T00:00:00+0000"))
}


def versions() -> list[str]:
    """Released versions, oldest first."""
    found = [path.name.removesuffix(SUFFIX) for path in RELEASES.glob(f"*{SUFFIX}")]
    return sorted(found, key=Version)


def build(folder: Path, wanted: Sequence[str] | None = None) -> list[str]:
    """Builds a repository whose tags are the releases and whose working tree is the newest of them.

    Args:
        folder: New or empty.
        wanted: Versions to include; all by default.

    Returns:
        The tags, oldest first.

    Raises:
        FileExistsError: The folder holds something.
    """
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty")
    folder.mkdir(parents=True, exist_ok=True)
    _git(folder, "init", "--quiet", "--initial-branch=main")
    tags = [version for version in versions() if wanted is None or version in wanted]
    for version in tags:
        for entry in _git(folder, "ls-files", "-z").split("\0"):
            (folder / entry).unlink() if entry else None
        with tarfile.open(RELEASES / f"{version}{SUFFIX}") as archive:
            archive.extractall(folder, filter="data")
        _git(folder, "add", "--all")
        _git(folder, "commit", "--quiet", "--message", f"Release {version}")
        _git(folder, "tag", version)
    return tags


def make(version: str, commit: str = "HEAD") -> Path:
    """Archives the template as it is committed.

    Raises:
        ValueError: Not a version, released already, not newer than the newest release, or not in the changelog.
    """
    try:
        new = Version(version)
    except InvalidVersion:
        raise ValueError(f"{version} is not a PEP 440 version, for example 0.2.0") from None
    target = RELEASES / f"{version}{SUFFIX}"
    if target.exists():
        raise ValueError(f"{version} is released: archives and tags never change")
    if versions() and new <= Version(versions()[-1]):
        raise ValueError(f"{version} is not newer than {versions()[-1]}")
    packed = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--format=tar", commit, "--", *PARTS], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:  # not a truncated one
        if "copier.yml" not in archive.getnames():
            raise ValueError(f"{commit} holds no copier.yml")
        changelog = archive.extractfile("CHANGELOG.md")
        sections = read_changelog(changelog.read().decode() if changelog else "")
    if not sections.get(version) or sections.get(UNRELEASED):
        raise ValueError(f"CHANGELOG.md needs a section {version}, and nothing under {UNRELEASED}, before the release")
    RELEASES.mkdir(parents=True, exist_ok=True)
    target.write_bytes(lzma.compress(packed, preset=9))
    return target


def read_changelog(text: str) -> dict[str, str]:
    """The sections of the changelog by version."""
    sections = re.split(r"^## (\S+).*$", text, flags=re.MULTILINE)[1:]
    return {version: body.strip() for version, body in zip(sections[::2], sections[1::2], strict=True)}


def _git(folder: Path, *arguments: str) -> str:
    environment = os.environ | IDENTITY | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="where to build the repository")
    parser.add_argument("--make", metavar="VERSION", help="archive the committed template as this version")
    arguments = parser.parse_args()
    if bool(arguments.folder) == bool(arguments.make):
        parser.error("give a folder, or --make VERSION")
    try:
        if arguments.make:
            print(f"{make(arguments.make)}: commit it, then tag the commit {arguments.make}")
        else:
            print(f"{arguments.folder}: {', '.join(build(arguments.folder))}")
    except (ValueError, FileExistsError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
