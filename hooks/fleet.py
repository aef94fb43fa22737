"""Updates many kernel packages to a version of the template: plan, update in parallel, one report.

    python hooks/fleet.py FOLDER [FOLDER …]          every package below the folders
    python hooks/fleet.py repositories.txt --clones DIR    packages of the git repositories listed, a path or address a line

Says first which packages are behind, which are current and which cannot be touched (uncommitted changes, conflicts left
over, an interrupted update), then updates those that are behind. What is done is recorded in the report file as it is
done, so that a run that was interrupted goes on where it stopped when it is repeated. Nothing is ever reset or deleted.

Exit status: 0 everything is current · 1 conflicts or failed checks to look at · 2 some packages could not be updated ·
3 usage · 130 interrupted. Standard library only, plus a `copier` command (uvx, pipx or the current environment).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ANSWERS = ".copier-answers.yml"
MARK = re.compile(r"^(<{7} before updating|>{7} after updating)", re.MULTILINE)
PRUNED = {".git", ".venv", "node_modules", "__pycache__"}
EXIT_LOOK, EXIT_STUCK, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 3, 130

# What a package can be, and whether that is an end state that asks for a person.
CURRENT, BEHIND, UPDATED, CONFLICTS, CHECK_FAILED = (
    "current",
    "behind",
    "updated",
    "conflicts",
    "check failed",
)
DIRTY, INTERRUPTED, BROKEN, FAILED = (
    "uncommitted changes",
    "interrupted update",
    "unreadable",
    "failed",
)
LOOK = {CONFLICTS, CHECK_FAILED}
STUCK = {DIRTY, INTERRUPTED, BROKEN, FAILED}


@dataclass
class Package:
    """One kernel package and what became of it."""

    path: Path
    state: str = BEHIND
    version: str = ""
    target: str = ""
    template: str = ""
    repository: Path | None = None
    detail: str = ""
    conflicts: list[str] = field(default_factory=list)
    check: str = "not run"
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        record = asdict(self)
        return record | {
            "path": str(self.path),
            "repository": str(self.repository) if self.repository else None,
        }


def run(command: Sequence[str], cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program without a terminal, so that it can never stop to ask."""
    return subprocess.run(
        command,
        check=False,
        cwd=cwd,
        env=os.environ | {"GIT_TERMINAL_PROMPT": "0"} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )


def last_line(process: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (process.stderr + "\n" + process.stdout).splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit status {process.returncode}"


# Finding packages.


def find(places: Iterable[str], clones: Path | None) -> Iterator[Path]:
    """Packages below folders, and of the repositories that a list names.

    Raises:
        SystemExit: A place does not exist, or a listed repository can't be had.
    """
    for place in places:
        path = Path(place)
        if path.is_dir():
            yield from below(path.resolve())
        elif path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = line.partition("#")[0].strip()
                if entry:
                    yield from below(checkout(entry, clones))
        else:
            raise SystemExit(usage(f"{place}: no such folder or list"))


def below(folder: Path) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in PRUNED)
        if ANSWERS in files and (Path(here) / "harness").is_dir():
            folders.clear()  # a package holds no packages
            yield Path(here)


def checkout(entry: str, clones: Path | None) -> Path:
    if Path(entry).is_dir():
        return Path(entry).resolve()
    if clones is None:
        raise SystemExit(usage(f"{entry} is not a folder here: say with --clones where to clone it"))
    target = clones / re.sub(r"\W+", "-", entry).strip("-")
    if not target.exists():
        clones.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        done = run(["git", "clone", "--quiet", entry, str(partial)])
        if done.returncode:
            raise SystemExit(usage(f"{entry}: {last_line(done)}"))
        partial.rename(target)
    return target.resolve()


def usage(message: str) -> int:
    print(f"fleet: {message}", file=sys.stderr)
    return EXIT_USAGE


# Planning.


def plan(paths: Sequence[Path], wanted: str | None, history: dict[str, dict[str, Any]]) -> list[Package]:
    """Looks at every package without changing anything."""
    newest: dict[str, str | Exception] = {}
    return [inspect(path, wanted, newest, history.get(str(path), {})) for path in paths]


def inspect(
    path: Path,
    wanted: str | None,
    newest: dict[str, str | Exception],
    past: dict[str, Any],
) -> Package:
    package = Package(path)
    try:
        answers = read_answers(path / ANSWERS)
        package.version, package.template = answers["_commit"], answers["_src_path"]
    except (OSError, UnicodeDecodeError, KeyError) as error:
        package.state, package.detail = (
            BROKEN,
            f"{ANSWERS}: {error!r}; restore it with git, never by hand",
        )
        return package
    top = run(["git", "rev-parse", "--show-toplevel"], path)
    if top.returncode:
        package.state, package.detail = (
            BROKEN,
            "not in a git repository: git init, commit, then update",
        )
        return package
    package.repository = Path(top.stdout.strip())
    if package.template not in newest:
        newest[package.template] = latest(package.template)
    found = newest[package.template]
    if isinstance(found, Exception) and not wanted:
        package.state, package.detail = FAILED, str(found)
        return package
    package.target = wanted or str(found)
    dirty = run(["git", "status", "--porcelain", "--", "."], path).stdout.splitlines()
    if past.get("target") == package.target and past.get("state") not in (
        None,
        "started",
        FAILED,
        DIRTY,
        INTERRUPTED,
    ):
        package.conflicts = conflicts(path)
        package.state = CONFLICTS if package.conflicts else str(past["state"]).replace(CONFLICTS, UPDATED)
        package.check, package.detail = past.get("check", "not run"), "done before"
    elif found_conflicts := conflicts(path):
        package.state, package.conflicts = CONFLICTS, found_conflicts
        package.detail = "conflicts of an earlier update: resolve and commit them first"
    elif dirty and past.get("state") == "started":
        package.state = INTERRUPTED
        package.detail = "an update was cut off here: `git restore . && git clean -d -i .` in it takes that back"
    elif dirty:
        package.state, package.detail = (
            DIRTY,
            f"commit or stash first: {len(dirty)} files, first {dirty[0][3:]}",
        )
    elif package.version == package.target:
        package.state = CURRENT
    return package


def repository_of(path: Path) -> Path | None:
    """The git work tree that holds the folder."""
    return next((folder for folder in (path, *path.parents) if (folder / ".git").exists()), None)


def read_answers(path: Path) -> dict[str, str]:
    """Copier's own two values of an answers file; they are plain scalars on lines of their own."""
    found = dict(
        re.findall(
            r"^(_commit|_src_path): *(.*?) *$",
            path.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    )
    return {key: value.strip("'\"") for key, value in found.items()}


def latest(template: str) -> str | Exception:
    """The template's newest released tag, asked once for all packages that share the address."""
    address = re.sub(r"^git\+", "", template)
    for short, host in (("gh:", "https://github.com/"), ("gl:", "https://gitlab.com/")):
        address = host + address.removeprefix(short) if address.startswith(short) else address
    done = run(["git", "ls-remote", "--tags", "--refs", address])
    tags = re.findall(r"refs/tags/(v?\d+(?:\.\d+)*)$", done.stdout, re.MULTILINE)
    if done.returncode:
        return RuntimeError(f"template {template} can't be reached: {last_line(done)}")
    if not tags:
        return RuntimeError(f"template {template} has no released version")
    return str(max(tags, key=lambda tag: [int(part) for part in tag.removeprefix("v").split(".")]))


def conflicts(path: Path) -> list[str]:
    """Files with conflict markers or reject files of a Copier update, relative to the package."""
    found = []
    for here, folders, files in os.walk(path):
        folders[:] = [name for name in folders if name not in PRUNED]
        for name in files:
            file = Path(here) / name
            try:
                bad = name.endswith(".rej") or MARK.search(file.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError):
                continue
            if bad:
                found.append(str(file.relative_to(path)))
    return sorted(found)


# Updating.


@dataclass
class Fleet:
    """Updates packages in parallel; those of one repository in turn, as git has one index."""

    copier: list[str]
    report: Path
    commit: str = ""
    check: bool = True
    jobs: int = 2
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)

    def update(self, packages: Sequence[Package]) -> None:
        by_repository: dict[Path | None, list[Package]] = {}
        for package in packages:
            by_repository.setdefault(package.repository, []).append(package)
        done = 0
        with ThreadPoolExecutor(self.jobs) as pool:
            futures = [pool.submit(self._update_all, group) for group in by_repository.values()]
            try:
                for future in as_completed(futures):
                    for package in future.result():
                        done += 1
                        said = package.detail or ", ".join(package.conflicts)
                        versions = f"{package.version} -> {package.target}"
                        print(
                            f"[{done}/{len(packages)}] {package.path}: {package.state}, {versions}. {said}".rstrip(". ")
                        )
            except KeyboardInterrupt:
                self._stop.set()
                for future in futures:
                    future.cancel()
                raise

    def _update_all(self, group: list[Package]) -> list[Package]:
        for position, package in enumerate(group):
            if self._stop.is_set():
                return group[:position]
            if position and not self.commit:
                package.state = DIRTY
                package.detail = "shares its repository with a package updated just now: commit that, or give --commit"
            else:
                self._update(package)
            self._record(package.to_json())
        return group

    def _update(self, package: Package) -> None:
        start = time.monotonic()
        self._record(package.to_json() | {"state": "started"})
        command = [
            *self.copier,
            "update",
            "--defaults",
            "--trust",
            "--quiet",
            "--vcs-ref",
            package.target,
        ]
        done = run([*command, str(package.path)], KERNEL_CHECK="off")
        if done.returncode:
            package.state, package.detail = FAILED, last_line(done)
        else:
            package.conflicts = conflicts(package.path)
            package.state = CONFLICTS if package.conflicts else UPDATED
            if not package.conflicts and self.check:
                self._check(package)
            if not package.conflicts and self.commit:
                self._commit(package)
        package.seconds = round(time.monotonic() - start, 2)

    def _check(self, package: Package) -> None:
        own = package.path / ".venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
        python = str(own) if own.exists() else sys.executable
        done = run([python, "-m", "harness", "check", "--json"], package.path)
        try:
            rungs = json.loads(done.stdout)["rungs"]
            package.check = ", ".join(
                f"{rung['rung']} {rung['status']}" for rung in rungs if rung["status"] != "not run"
            )
        except (ValueError, KeyError):
            package.check = f"could not run: {last_line(done)}"
            return
        failed = [f"{rung['rung']}: {rung['summary']}" for rung in rungs if rung["status"] == "failed"]
        if failed:
            package.state, package.detail = CHECK_FAILED, failed[0]

    def _commit(self, package: Package) -> None:
        for command in (
            ["git", "add", "--all", "."],
            ["git", "commit", "--quiet", "-m", self.commit, "--", "."],
        ):
            done = run(command, package.path)
            if done.returncode:
                package.state, package.detail = (
                    FAILED,
                    f"updated, but not committed: {last_line(done)}",
                )
                return

    def _record(self, record: dict[str, Any]) -> None:
        with self._lock, self.report.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def read_report(path: Path) -> dict[str, dict[str, Any]]:
    """The last record of every package; a half-written last line is passed over."""
    records: dict[str, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        records[record["path"]] = record
    return records


def find_copier() -> list[str]:
    """How to start Copier: this environment's, the one on PATH, or through uvx."""
    if run([sys.executable, "-m", "copier", "--version"]).returncode == 0:
        return [sys.executable, "-m", "copier"]
    for command in (["copier"], ["uvx", "copier"], ["pipx", "run", "copier"]):
        if shutil.which(command[0]):
            return command
    raise SystemExit(usage("no copier command: install it with `pipx install copier` or `uv tool install copier`"))


def show(packages: Sequence[Package], title: str) -> None:
    print(f"{title}: {len(packages)} packages")
    for state, count in Counter(package.state for package in packages).most_common():
        print(f"  {count:5}  {state}")
    for package in packages:
        if package.state in LOOK | STUCK:
            print(f"  {package.path}: {package.state}. {package.detail or ', '.join(package.conflicts)}".rstrip(". "))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="fleet.py",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("places", nargs="+", help="folders, or files that list repositories")
    parser.add_argument(
        "--to",
        metavar="TAG",
        help="version of the template (default: its newest release)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="repositories updated at once",
    )
    parser.add_argument("--dry-run", action="store_true", help="only the plan")
    parser.add_argument(
        "--commit",
        metavar="MESSAGE",
        default="",
        help="commit every update that has no conflicts",
    )
    parser.add_argument(
        "--no-check",
        dest="check",
        action="store_false",
        help="do not climb the ladder afterwards",
    )
    parser.add_argument("--clones", type=Path, help="where listed addresses are cloned to")
    parser.add_argument(
        "--report",
        type=Path,
        default=Path("fleet-report.jsonl"),
        help="a JSON line a package",
    )
    parser.add_argument(
        "--shard",
        metavar="I/N",
        default="1/1",
        help="only every N-th repository, from the I-th",
    )
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as stop:
        return EXIT_USAGE if stop.code else 0
    shard = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", arguments.shard)
    if shard is None or int(shard[1]) > int(shard[2]) or arguments.jobs < 1:
        return usage("--shard is I/N with 1 <= I <= N; --jobs is at least 1")
    try:
        paths = sorted(set(find(arguments.places, arguments.clones)))
    except SystemExit as stop:
        return int(stop.code or 0)
    repositories = sorted({str(repository_of(path)) for path in paths})[int(shard[1]) - 1 :: int(shard[2])]
    paths = [path for path in paths if str(repository_of(path)) in repositories]
    if not paths:
        return usage(f"no kernel package (a folder with {ANSWERS} and harness/) in {', '.join(arguments.places)}")
    packages = plan(paths, arguments.to, read_report(arguments.report))
    show(packages, "Plan")
    behind = [package for package in packages if package.state == BEHIND]
    if arguments.dry_run:
        return EXIT_LOOK if behind else EXIT_STUCK if any(package.state in STUCK for package in packages) else 0
    try:
        if behind:
            fleet = Fleet(
                find_copier(),
                arguments.report,
                arguments.commit,
                arguments.check,
                arguments.jobs,
            )
            fleet.update(behind)
            show(packages, "Result")
    except SystemExit as stop:
        return int(stop.code or 0)
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        return EXIT_INTERRUPTED
    states = {package.state for package in packages}
    return EXIT_STUCK if states & STUCK else EXIT_LOOK if states & LOOK else 0


if __name__ == "__main__":
    sys.exit(main())
