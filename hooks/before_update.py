"""Before `copier update` writes anything: refuses what cannot go well, and brings stored answers up to date.

Runs in the project's folder, in Copier's own interpreter, from a checkout of the new version; Copier tells the versions
in environment variables (VERSION_PEP440_FROM and others). Exit status 1 stops the
update with the project as it was. In order:

1. one update at a time (lock.py), and nothing has changed since Copier looked whether the project is clean;
2. answers of older releases are renamed and replaced as migrations.py says;
3. every stored answer is one that the new version accepts. Copier itself would pass over an answer that it does not
   understand and take the default, and a mistyped chip would silently become another one;
4. where the stored answers are rewritten, the answers given on the command line are tried first, because Copier looks
   at them only after this.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from copier import run_copy

sys.path.insert(0, str(Path(__file__).resolve().parent))

import lock
from migrations import migrate

HEADER = (
    "# Written by Copier; `copier update` needs it as it is. To change an answer: copier update --trust -d NAME=VALUE\n"
)
Answers = Mapping[str, Any]


class Refused(Exception):
    """The update cannot go on; the message says why and what to do."""


class Template:
    """The new version, asked what it makes of answers."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.questions: set[str] = set()

    def try_answers(self, given: Answers, stored: Answers | None = None) -> None:
        """Answers all questions as Copier would, and writes nothing.

        Args:
            given: Answers that are taken as they are.
            stored: Answers of the project, which Copier takes for the rest.

        Raises:
            ValueError: An answer in ``given`` is refused.
        """
        with tempfile.TemporaryDirectory(prefix="answers-") as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if stored is not None:
                write(Path(folder) / ".copier-answers.yml", stored)
            worker = run_copy(
                str(self._path), folder, dict(given), vcs_ref="HEAD", exclude=["*"], defaults=True, overwrite=True,
                pretend=True, quiet=True, skip_tasks=True, unsafe=True,
            )  # fmt: skip
        self.questions = set(worker.template.questions_data)


def main() -> int:
    """Runs the hook; see the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers-file", type=Path, required=True)
    parser.add_argument("--data", type=json.loads, required=True, help="answers from the command line, as JSON")
    arguments = parser.parse_args()
    project = Path.cwd()
    try:
        lock.acquire(project, os.getppid())
        try:
            prepare(project, arguments)
        except BaseException:
            lock.release(project, os.getppid())
            raise
    except (Refused, lock.Locked) as reason:
        print(f"\nNot updated: {reason}\n", file=sys.stderr)
        return 1
    return 0


def prepare(project: Path, arguments: argparse.Namespace) -> None:
    """Checks and migrates the project's stored answers.

    Raises:
        Refused: The project changed meanwhile, or an answer is not accepted.
    """
    dirty = subprocess.run(["git", "status", "--porcelain", "--", "."], check=True, capture_output=True, text=True)
    if dirty.stdout.strip():
        raise Refused(
            "files changed while the update was being prepared, first"
            f" {dirty.stdout.splitlines()[0][3:]}. Commit or stash them, then repeat."
        )
    path = project / arguments.answers_file
    stored = yaml.safe_load(path.read_text(encoding="utf-8"))
    migrated = migrate(stored, os.environ["VERSION_PEP440_FROM"], os.environ["VERSION_PEP440_TO"])
    template = Template(Path(__file__).resolve().parent.parent)
    check_stored(template, migrated, arguments.data, path)
    if migrated != stored:
        try:
            template.try_answers(arguments.data, migrated)
        except ValueError as error:
            raise Refused(str(error)) from error
        write(path, migrated)


def check_stored(template: Template, answers: Answers, data: Answers, path: Path) -> None:
    """Refuses stored answers that the version does not accept, unless the command line replaces them."""
    kept = {name: value for name, value in answers.items() if not name.startswith("_")}
    while True:
        try:
            template.try_answers(kept)
            break
        except ValueError as error:
            named = re.search(r"(?:choice for|question) '(\w+)'", str(error))
            if named and named[1] in data and kept.get(named[1]) != data[named[1]]:
                kept[named[1]] = data[named[1]]
                continue
            instead = f", or give another: copier update --trust -d {named[1]}=VALUE" if named else ""
            raise Refused(
                f"{path.name} holds an answer that this version does not accept.\n{error}\n"
                f"If the file was edited by hand, restore it (git log -p {path.name}){instead}."
            ) from error
    if strangers := sorted(kept.keys() - template.questions):
        raise Refused(
            f"{path.name} holds answers to questions that the template never asked: {', '.join(strangers)}.\n"
            f"The file is Copier's: restore it (git log -p {path.name}), commit, and repeat."
        )


def write(path: Path, answers: Answers) -> None:
    """Writes an answers file as a whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    text = yaml.safe_dump(dict(answers), allow_unicode=True, sort_keys=False)
    partial.write_text(HEADER + text, encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main())
