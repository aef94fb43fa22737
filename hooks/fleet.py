"""Updates many kernel packages to a version of the template: plan, update in parallel, one report.

    python hooks/fleet.py FOLDER [FOLDER …]                every package below the folders
    python hooks/fleet.py repositories.txt --clones DIR    packages of the git repositories listed, one a line

Says first which packages are behind, which are current and which cannot be touched (uncommitted changes, conflicts left
over, an update that was cut off), then updates those that are behind. What is done is recorded in the report as it is
done; a run that was cut off goes on where it stopped when it is repeated. Nothing is ever reset or deleted.

Exit status: 0 everything is current · 1 conflicts or failed checks to look at (--dry-run: packages are behind) · 2 some
packages could not be updated · 3 usage · 130 interrupted. Standard library only, plus a `copier` command: the current
environment's, the one on the PATH, or through uvx or pipx.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import lock

ANSWERS = ".copier-answers.yml"
MARK = re.compile(rb"^(<{7} before updating|>{7} after updating)", re.MULTILINE)
VERSION = r"v?\d+(?:\.\d+)*"
PRUNED = {".git", ".venv", "node_modules", "__pycache__"}
EXIT_LOOK, EXIT_STUCK, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 3, 130

# What a package can be. LOOK and STUCK are end states that ask for a person.
CURRENT, BEHIND, UPDATED = "current", "behind", "updated"
CONFLICTS, CHECK_FAILED = "conflicts", "check failed"
DIRTY, INTERRUPTED, BROKEN, FAILED = "uncommitted changes", "interrupted update", "unreadable", "failed"
LOOK = {CONFLICTS, CHECK_FAILED}
STUCK = {DIRTY, INTERRUPTED, BROKEN, FAILED}

RESTORE = "`git reset -q && git restore . && git clean -di .` in it takes that back"


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

    def become(self, state: str, detail: str = "") -> Package:
        self.state, self.detail = state, detail
        return self

    def to_json(self) -> dict[str, Any]:
        places = {"path": str(self.path), "repository": str(self.repository) if self.repository else None}
        return asdict(self) | places


Record = Mapping[str, Any]


def run(command: Sequence[str], cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program without a terminal: it never stops to ask, and Ctrl-C reaches the fleet, not the update."""
    return subprocess.run(
        command,
        check=False,
        cwd=cwd,
        env=os.environ | {"GIT_TERMINAL_PROMPT": "0"} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def reason(process: subprocess.CompletedProcess[str]) -> str:
    """Why a program failed, on one line: what our hook says, else git's own error, else the last line."""
    text = process.stderr + "\n" + process.stdout
    if found := re.search(r"Not updated: (.*?)(?:\n\s*\n|\Z)", text, re.DOTALL):
        return " ".join(found[1].split())
    if found := re.search(r"\b(?:fatal|error): .*", text):
        return found[0]
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit status {process.returncode}"


# Finding packages.


def find(places: Iterable[str], clones: Path | None, index: int = 1, count: int = 1) -> Iterator[Package]:
    """Packages below folders, and of the repositories that a list names; one that cannot be had comes as FAILED.

    Args:
        places: Folders, and files that list repositories.
        clones: Where listed addresses are cloned to.
        index: Which share to take, from 1.
        count: How many shares there are. What is not in the share is not cloned.

    Raises:
        SystemExit: A place does not exist, or addresses are listed and there is no place for clones.
    """
    for place in places:
        path = Path(place)
        if path.is_dir():
            yield from take_shard(list(below(path.resolve())), index, count)
        elif path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines()
            entries = [entry for line in lines if (entry := line.partition("#")[0].strip())]
            for entry in entries[index - 1 :: count]:
                yield from checkout(entry, clones)
        else:
            raise SystemExit(usage(f"{place}: no such folder or list"))


def below(folder: Path) -> Iterator[Package]:
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in PRUNED)
        if ANSWERS in files and (Path(here) / "harness").is_dir():
            folders.clear()  # a package holds no packages
            yield Package(Path(here))


def checkout(entry: str, clones: Path | None) -> Iterator[Package]:
    if Path(entry).is_dir():
        yield from below(Path(entry).resolve())
        return
    if clones is None:
        raise SystemExit(usage(f"{entry} is not a folder here: say with --clones where to clone it"))
    target = clones / re.sub(r"\W+", "-", entry).strip("-")
    if not target.exists():
        clones.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        done = run(["git", "clone", "--quiet", entry, str(partial)])
        if done.returncode:
            yield Package(target.resolve()).become(FAILED, f"{entry} can't be cloned: {reason(done)}")
            return
        partial.rename(target)
    yield from below(target.resolve())


def usage(message: str) -> int:
    print(f"fleet: {message}", file=sys.stderr)
    return EXIT_USAGE


def repository_of(path: Path) -> Path | None:
    """The git work tree that holds the folder."""
    return next((folder for folder in (path, *path.parents) if (folder / ".git").exists()), None)


def take_shard(packages: Sequence[Package], index: int, count: int) -> list[Package]:
    """Every count-th repository with its packages, from the index-th (counted from 1)."""
    repositories = sorted({str(repository_of(package.path)) for package in packages})[index - 1 :: count]
    return [package for package in packages if str(repository_of(package.path)) in repositories]


# Planning.


def plan(packages: Sequence[Package], wanted: str | None, history: Mapping[str, Record], jobs: int = 1) -> None:
    """Looks at every package without changing anything, and sets what it is."""
    known: dict[str, list[str] | Exception] = {}

    def look(package: Package) -> None:
        if package.state == BEHIND:
            inspect(package, wanted, known, history.get(str(package.path), {}))

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(look, packages))


def inspect(package: Package, wanted: str | None, known: dict[str, list[str] | Exception], past: Record) -> Package:
    """Sets what a package is; ``known`` holds the released versions of templates asked before."""
    path = package.path
    try:
        answers = read_answers(path / ANSWERS)
        package.version, package.template = answers["_commit"], answers["_src_path"]
    except OSError as error:
        return package.become(BROKEN, f"{ANSWERS} can't be read ({error.strerror}); restore it with git, never by hand")
    except (UnicodeDecodeError, KeyError) as error:
        return package.become(BROKEN, f"{ANSWERS} holds no {error}; restore it with git, never by hand")
    package.repository = repository_of(path)
    if package.repository is None:
        return package.become(BROKEN, "not in a git repository: git init, commit, then update")
    if package.template not in known:
        known[package.template] = versions(package.template)
    tags = known[package.template]
    if isinstance(tags, Exception):
        return package.become(FAILED, str(tags))
    if re.fullmatch(VERSION, package.version) and package.version not in tags:
        return package.become(
            FAILED, f"its template has no version {package.version} any more, so nothing can be compared: copier recopy"
        )
    package.target = wanted or max(tags, key=numbers)
    status = run(["git", "status", "--porcelain", "--", "."], path)
    if status.returncode:
        return package.become(BROKEN, reason(status))
    dirty = status.stdout.splitlines()
    if dirty and (past.get("state") == "started" or cut_off(path)):
        return package.become(INTERRUPTED, f"an update was cut off here: {RESTORE}")
    if left := conflicts(path):
        package.conflicts = left
        return package.become(CONFLICTS, "resolve and commit: " + ", ".join(left))
    if not older(package.version, package.target):
        if past.get("target") == package.target and past.get("state") in (UPDATED, CHECK_FAILED):
            package.check = str(past.get("check", "not run"))
            return package.become(str(past["state"]), str(past.get("detail", "")))
        return package.become(CURRENT)
    if dirty:
        return package.become(DIRTY, f"commit or stash first: {len(dirty)} files, first {dirty[0][3:]}")
    return package


def read_answers(path: Path) -> dict[str, str]:
    """Copier's own two values of an answers file; they are plain scalars on lines of their own."""
    text = path.read_text(encoding="utf-8")
    found = dict(re.findall(r"^(_commit|_src_path): *(.*?) *$", text, re.MULTILINE))
    return {key: value.strip("'\"") for key, value in found.items()}


def numbers(version: str) -> list[int]:
    """A released version as numbers."""
    return [int(part) for part in version.removeprefix("v").split(".")]


def older(version: str, target: str) -> bool:
    """Whether a version comes before the target; what is no version (an untagged commit) always does."""

    def key(text: str) -> tuple[list[int], int]:
        # As git describes it: 0.2.0, or 0.2.0-3-gabc1234 where that is three commits on.
        found = re.fullmatch(rf"({VERSION})(?:-(\d+)-g[0-9a-f]+)?", text)
        return (numbers(found[1]), int(found[2] or 0)) if found else ([-1], 0)

    return key(version) < key(target) if key(target)[0] != [-1] else version != target


def versions(template: str) -> list[str] | Exception:
    """The template's released versions, or why they can't be had."""
    address = re.sub(r"^git\+", "", template)
    for short, host in (("gh:", "https://github.com/"), ("gl:", "https://gitlab.com/")):
        address = host + address.removeprefix(short) if address.startswith(short) else address
    done = run(["git", "ls-remote", "--tags", "--refs", os.path.expanduser(address)])  # noqa: PTH111  # may be a URL
    if done.returncode:
        return RuntimeError(f"the template {template} can't be reached: {reason(done)}")
    tags = re.findall(rf"refs/tags/({VERSION})$", done.stdout, re.MULTILINE)
    return tags or RuntimeError(f"the template {template} has no released version")


def cut_off(path: Path) -> bool:
    """Whether an update of this package began and its process is gone."""
    try:
        holder = lock.holder(lock.path_of(path))
    except subprocess.CalledProcessError:
        return False
    return holder is not None and not holder.alive and holder.package in ("", str(path))


def conflicts(path: Path) -> list[str]:
    """Files with conflict markers or reject files of a Copier update, relative to the package."""
    found = []
    for here, folders, files in os.walk(path):
        folders[:] = [name for name in folders if name not in PRUNED]
        for name in files:
            file = Path(here) / name
            try:
                bad = name.endswith(".rej") or MARK.search(file.read_bytes())
            except OSError:
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

    def update(self, packages: Sequence[Package], progress: Callable[[Package], None]) -> None:
        """Updates the packages.

        Raises:
            KeyboardInterrupt: Once the updates that were under way are done and recorded.
        """
        by_repository: dict[Path | None, list[Package]] = {}
        for package in packages:
            by_repository.setdefault(package.repository, []).append(package)
        with ThreadPoolExecutor(self.jobs) as pool:
            futures = [pool.submit(self._update_all, group, progress) for group in by_repository.values()]
            try:
                for future in as_completed(futures):
                    future.result()
            except KeyboardInterrupt:
                self._stop.set()
                print("finishing the updates that are under way …", file=sys.stderr, flush=True)
                for future in futures:
                    future.cancel()
                raise

    def _update_all(self, group: list[Package], progress: Callable[[Package], None]) -> None:
        blocked = ""
        for package in group:
            if self._stop.is_set():
                return
            if blocked:
                package.become(DIRTY, f"waits until the conflicts in {blocked}, in the same repository, are resolved")
            else:
                self._update(package)
            if package.state == CONFLICTS:
                blocked = str(package.path)
            self._record(package.to_json())
            progress(package)

    def _update(self, package: Package) -> None:
        start = time.monotonic()
        if package.state != CHECK_FAILED:  # else it is updated already and only to be checked again
            self._record(package.to_json() | {"state": "started"})
            command = [*self.copier, "update", "--defaults", "--trust", "--quiet", "--vcs-ref", package.target]
            done = run([*command, str(package.path)], KERNEL_CHECK="off")
            if done.returncode:
                package.become(FAILED, reason(done))
                if cut_off(package.path) and run(["git", "status", "--porcelain", "."], package.path).stdout:
                    package.become(INTERRUPTED, f"{package.detail}; {RESTORE}")
                return
        package.conflicts = conflicts(package.path)
        if package.conflicts:
            package.become(CONFLICTS, ", ".join(package.conflicts))
        else:
            package.become(UPDATED)
            if self.check:
                self._check(package)
            if self.commit:
                self._commit(package)
        package.seconds = round(time.monotonic() - start, 2)

    def _check(self, package: Package) -> None:
        own = package.path / ".venv/bin/python"
        python = str(own) if own.exists() else sys.executable
        done = run([python, "-m", "harness", "check", "--json"], package.path)
        try:
            rungs = json.loads(done.stdout)["rungs"]
        except (ValueError, KeyError):
            package.check = f"could not run: {reason(done)}"
            return
        ran = [f"{rung['rung']} {rung['status']}" for rung in rungs if rung["status"] != "not run"]
        package.check = ", ".join(ran)
        failed = [f"{rung['rung']}: {rung['summary']}" for rung in rungs if rung["status"] == "failed"]
        if failed:
            package.become(CHECK_FAILED, failed[0])

    def _commit(self, package: Package) -> None:
        if not run(["git", "status", "--porcelain", "--", "."], package.path).stdout:
            return  # only the check was repeated
        for command in (["add", "--all", "."], ["commit", "--quiet", "-m", self.commit, "--", "."]):
            done = run(["git", *command], package.path)
            if done.returncode:
                package.become(FAILED, f"updated, but not committed: {reason(done)}")
                return

    def _record(self, record: Record) -> None:
        with self._lock, self.report.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def read_report(path: Path) -> dict[str, Record]:
    """The last record of every package; a half-written last line is passed over."""
    records: dict[str, Record] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
            records[record["path"]] = record
        except (ValueError, KeyError, TypeError):
            continue
    return records


def find_copier() -> list[str]:
    """How to start Copier: this environment's, the one on the PATH, or through uvx or pipx."""
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
            print(f"  {package.path}: {package.state}. {package.detail}".rstrip(". "))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fleet.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("places", nargs="+", help="folders, or files that list repositories")
    add("--to", metavar="TAG", help="version of the template (default: its newest release)")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="repositories updated at once (default: %(default)s)")
    add("--dry-run", action="store_true", help="only the plan")
    add("--commit", metavar="MESSAGE", default="", help="commit every update that has no conflicts")
    add("--no-check", dest="check", action="store_false", help="do not climb the ladder afterwards")
    add("--clones", type=Path, metavar="DIR", help="where listed addresses are cloned to")
    add("--report", type=Path, default=Path("fleet-report.jsonl"), help="a JSON line a package (default: %(default)s)")
    add("--shard", metavar="I/N", default="1/1", help="only every N-th repository, from the I-th")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Plans, updates and reports; returns the exit status."""
    try:
        arguments = parse(argv)
    except SystemExit as stop:
        return EXIT_USAGE if stop.code else 0
    shard = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", arguments.shard)
    if shard is None or int(shard[1]) > int(shard[2]) or arguments.jobs < 1:
        return usage("--shard is I/N with 1 <= I <= N; --jobs is at least 1")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a cancelled CI job
    try:
        return update_all(arguments, int(shard[1]), int(shard[2]))
    except SystemExit as stop:
        return int(stop.code or 0)
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        return EXIT_INTERRUPTED


def update_all(arguments: argparse.Namespace, index: int, count: int) -> int:
    found = {package.path: package for package in find(arguments.places, arguments.clones, index, count)}
    if not found:
        places = ", ".join(arguments.places)
        if count > 1:
            print(f"nothing to do for share {index} of {count}")
            return 0
        raise SystemExit(usage(f"no kernel package (a folder with {ANSWERS} and harness/) in {places}"))
    packages = [found[path] for path in sorted(found)]
    plan(packages, arguments.to, read_report(arguments.report), arguments.jobs)
    show(packages, "Plan")
    todo = [package for package in packages if package.state == BEHIND]
    if arguments.check:
        todo += [package for package in packages if package.state == CHECK_FAILED]
    states = {package.state for package in packages}
    if arguments.dry_run:
        return EXIT_STUCK if states & STUCK else EXIT_LOOK if todo or states & LOOK else 0
    if todo:
        update(todo, arguments)
        show(packages, "Result")
        states = {package.state for package in packages}
    return EXIT_STUCK if states & STUCK else EXIT_LOOK if states & LOOK else 0


def update(todo: Sequence[Package], arguments: argparse.Namespace) -> None:
    fleet = Fleet(find_copier(), arguments.report, arguments.commit, arguments.check, arguments.jobs)
    start, done = time.monotonic(), 0
    lines = threading.Lock()

    def progress(package: Package) -> None:
        nonlocal done
        with lines:
            done += 1
            step = f"[{done}/{len(todo)}] {package.path}: {package.state}, {package.version} -> {package.target}"
            print(f"{step}. {package.detail}".rstrip(". "), flush=True)

    fleet.update(todo, progress)
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024  # kilobytes on Linux
    seconds = time.monotonic() - start
    print(
        f"{done} packages in {seconds:.0f} s ({seconds / done:.1f} s each, {arguments.jobs} at once), "
        f"at most {memory:.0f} MB a process"
    )


if __name__ == "__main__":
    sys.exit(main())
