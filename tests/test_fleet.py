"""hooks/fleet.py: plan, parallel updates, one report, resuming, exit statuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fleet
import fleet_report
import lock
import projects
import repository
from fleet import Package
from projects import ANSWERS, SOFTMAX, Template

pytestmark = pytest.mark.update
COUNT = 6  # python tests/fleet_report.py does the same with 50


def report(folder: Path) -> dict[str, fleet.Record]:
    return {Path(path).name: record for path, record in fleet.read_report(folder / "fleet-report.jsonl").items()}


def test_a_fleet_is_updated_and_nothing_is_lost(released: Template, tmp_path: Path) -> None:
    made = fleet_report.make_fleet(tmp_path / "fleet", released, COUNT)
    before = {package: projects.files(package) for package in made.packages}

    planned = fleet_report.update(made, "--dry-run")
    assert planned.returncode == fleet.EXIT_STUCK  # the package with uncommitted changes
    assert f"Plan: {COUNT} packages" in planned.stdout
    assert f"{COUNT - 1}  behind" in planned.stdout
    assert f"{made.dirty}: uncommitted changes. commit or stash first: 1 files, first" in planned.stdout
    assert {package: projects.files(package) for package in made.packages} == before

    done = fleet_report.update(made, "--no-check", "--commit", "Update the template", "--jobs", "2")
    assert done.returncode == fleet.EXIT_STUCK
    assert f"[{COUNT - 1}/{COUNT - 1}]" in done.stdout
    assert f"{COUNT - 2}  updated" in done.stdout
    assert f"{made.conflict}: conflicts. harness/ladder.py" in done.stdout
    assert "MB a process" in done.stdout
    assert made.lost() == []
    assert projects.files(made.dirty) == before[made.dirty]
    for package in made.packages:
        if package not in (made.dirty, made.conflict):
            assert projects.answers_of(package)["_commit"] == released.newest
            assert repository.git(package, "status", "--porcelain", ".") == ""
            assert repository.git(package, "log", "-1", "--format=%s").strip() == "Update the template"
    shared = repository.git(made.folder / "shared", "log", "--format=%s").splitlines()
    assert shared == ["Update the template"] * fleet_report.MONOREPO + ["Work of the owners"]
    records = report(tmp_path)
    assert records[made.conflict.name]["conflicts"] == ["harness/ladder.py"]
    assert {record["state"] for record in records.values()} == {"updated", "conflicts"}

    # Once the owners have done their part, a second run has only that left.
    repository.git(made.dirty, "commit", "-qam", "Work")
    repository.git(made.conflict, "checkout", "-q", "--theirs", "harness/ladder.py")
    repository.git(made.conflict, "commit", "-qam", "Resolve")
    again = fleet_report.update(made, "--no-check", "--commit", "Update the template")
    assert again.returncode == 0
    assert f"[1/1] {made.dirty}: updated" in again.stdout
    assert made.lost() == []


def test_a_fleet_that_was_killed_goes_on_where_it_stopped(released: Template, tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    packages = [released.project(folder / f"k{number}", released.oldest) for number in range(3)]
    command = [sys.executable, str(repository.ROOT / "hooks/fleet.py"), str(folder), "--no-check", "--jobs", "1"]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert running.stdout
    for line in running.stdout:
        if line.startswith("[1/3]"):
            break
    running.send_signal(signal.SIGTERM)  # what is under way is finished
    rest = running.communicate(timeout=1200)[0]
    assert running.returncode == fleet.EXIT_INTERRUPTED
    states = [record["state"] for record in report(tmp_path).values()]
    assert states == ["updated"] * len(states)
    assert 1 <= len(states) < 3, rest
    again = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert again.returncode == 0, again.stdout
    assert f"{len(states)}  updated" in again.stdout.split("Result")[0]
    assert f"[{3 - len(states)}/{3 - len(states)}]" in again.stdout
    for package in packages:
        assert projects.answers_of(package)["_commit"] == released.newest


@pytest.mark.ladder
@pytest.mark.usefixtures("compiler")
def test_the_check_of_every_package_is_in_the_report(released: Template, tmp_path: Path) -> None:
    good = released.project(tmp_path / "fleet/good", released.oldest)
    bad = released.project(tmp_path / "fleet/bad", released.oldest)
    kernel = bad / "src/my_kernel/kernel.py"
    kernel.write_text(kernel.read_text().replace("import", "imprt", 1))
    projects.commit(bad)
    command = [sys.executable, str(repository.ROOT / "hooks/fleet.py"), str(tmp_path / "fleet"), "--commit", "Update"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == fleet.EXIT_LOOK
    records = report(tmp_path)
    assert records["good"]["state"] == "updated"
    assert "simulated passed" in records["good"]["check"]
    assert records["bad"]["state"] == "check failed"
    assert records["bad"]["detail"].startswith("parsed: ")
    # Mended since: only the check is repeated.
    kernel.write_bytes((good / "src/my_kernel/kernel.py").read_bytes())
    projects.commit(bad)
    again = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert again.returncode == 0, again.stdout


# Looking at packages.


def look(path: Path, wanted: str | None = None, past: fleet.Record | None = None) -> Package:
    package = Package(path)
    fleet.plan([package], wanted, {str(path): past or {}})
    return package


def test_what_a_package_is(released: Template, tmp_path: Path) -> None:
    project = released.project(tmp_path / "k", released.oldest)
    assert look(project).state == fleet.BEHIND
    assert look(project).target == released.newest
    assert look(project, released.oldest).state == fleet.CURRENT
    (project / "README.md").write_text("<<<<<<< before updating\n")
    assert look(project).state == fleet.CONFLICTS
    (project / "README.md").write_text("changed\n")
    assert look(project).state == fleet.DIRTY
    assert look(project, past={"state": "started"}).state == fleet.INTERRUPTED
    repository.git(project, "restore", ".")
    # What the report says counts only for what is there: this one was updated, and then taken back.
    assert look(project, past={"state": "updated", "target": released.newest}).state == fleet.BEHIND


@pytest.mark.parametrize(
    ("old", "new", "state", "words"),
    [
        ("_commit: ", "_was: ", fleet.BROKEN, "_commit"),
        ("_commit: 0.1.0", "_commit: 0.0.9", fleet.FAILED, "no version 0.0.9 any more"),
        ("_src_path: /", "_src_path: /nowhere/", fleet.FAILED, "can't be reached: fatal:"),
        ("_src_path: /", "_src_path: https://127.0.0.1:1/", fleet.FAILED, "can't be reached: fatal: unable to access"),
    ],
)
def test_what_cannot_be_updated_says_why(
    released: Template, tmp_path: Path, old: str, new: str, state: str, words: str
) -> None:
    project = released.project(tmp_path / "k", "0.1.0")
    answers = project / ANSWERS
    answers.write_text(answers.read_text().replace(old, new))
    projects.commit(project)
    package = look(project)
    assert package.state == state
    assert words in package.detail
    shutil.rmtree(project / ".git")
    if state == fleet.FAILED:
        assert look(project).state == fleet.BROKEN


@pytest.mark.parametrize(
    ("version", "target", "expected"),
    [
        ("0.1.0", "0.2.0", True),
        ("0.9.0", "0.10.0", True),
        ("v0.2.0", "0.2.0", False),
        ("0.2.0-3-gabcdef1", "0.2.0", False),
        ("0.2.0-3-gabcdef1", "0.2.1", True),
        ("0.3.0", "0.2.0", False),
        ("1a2b3c4", "0.2.0", True),
        ("0.2.0", "main", True),
    ],
)
def test_order_of_versions(version: str, target: str, expected: bool) -> None:
    assert fleet.older(version, target) is expected


def test_why_an_update_failed_in_one_line() -> None:
    def failed(text: str) -> str:
        return fleet.reason(subprocess.CompletedProcess([], 1, "", text))

    assert failed("\nNot updated: the chip\nis gone.\n\nTask ['python'] returned 1") == "the chip is gone."
    assert failed("Traceback\n  Stderr: | fatal: unable to access\n  more") == "fatal: unable to access"
    assert failed("Traceback\nValueError: Unknown revision: '0.0.9'") == "ValueError: Unknown revision: '0.0.9'"
    assert failed("") == "exit status 1"


def test_lists_clones_and_shards(released: Template, tmp_path: Path) -> None:
    project = released.project(tmp_path / "origin", released.newest)
    listed = tmp_path / "repositories.txt"
    listed.write_text(f"# ours\nfile://{project}  # the kernel\n\nfile://{tmp_path}/gone\n")
    found = list(fleet.find([str(listed)], tmp_path / "clones"))
    assert [package.state for package in found] == [fleet.BEHIND, fleet.FAILED]
    assert "can't be cloned: fatal:" in found[1].detail
    assert next(iter(fleet.find([str(listed)], tmp_path / "clones"))).path == found[0].path  # cloned once
    second = list(fleet.find([str(listed)], tmp_path / "c", 2, 2))
    assert [package.state for package in second] == [fleet.FAILED]
    assert not list((tmp_path / "c").glob("*/"))  # the first is not in this share, so it is not cloned
    packages = [Package(tmp_path / f"p{number}") for number in range(5)]
    for package in packages:
        (package.path / ".git").mkdir(parents=True)
    shards = [fleet.take_shard(packages, index, 3) for index in (1, 2, 3)]
    assert sorted(len(shard) for shard in shards) == [1, 2, 2]
    assert {package.path for shard in shards for package in shard} == {package.path for package in packages}


@pytest.mark.parametrize(
    "arguments", [["nowhere"], [".", "--shard", "3/2"], [".", "--jobs", "0"], [".", "--colour"], [], ["."]]
)
def test_usage(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert fleet.main(arguments) == fleet.EXIT_USAGE


def test_a_report_with_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    path.write_text(json.dumps({"path": "/a", "state": "started"}) + "\n[]\n" + '{"path": "/b", "sta')
    assert list(fleet.read_report(path)) == ["/a"]


# One update at a time.


def test_a_lock_is_of_a_process_not_of_its_number(tmp_path: Path) -> None:
    repository.git(tmp_path, "init", "--quiet")
    lock.acquire(tmp_path, os.getpid())
    holder = lock.holder(lock.path_of(tmp_path))
    assert holder
    assert holder.alive
    assert not lock.Holder(holder.pid, holder.started + 1, "", "").alive
    with pytest.raises(lock.Locked, match=f"process {os.getpid()}"):
        lock.acquire(tmp_path, os.getppid())
    lock.release(tmp_path, os.getppid())
    assert lock.holder(lock.path_of(tmp_path))
    lock.release(tmp_path, os.getpid())
    assert lock.holder(lock.path_of(tmp_path)) is None
    lock.path_of(tmp_path).write_text("{")  # whoever wrote it was cut off
    lock.acquire(tmp_path, os.getppid())


def test_time_is_not_lost_on_what_is_current(released: Template, tmp_path: Path) -> None:
    project = released.project(tmp_path / "fleet/k", released.newest, SOFTMAX)
    start = time.monotonic()
    assert fleet.main([str(project.parent), "--report", str(tmp_path / "report.jsonl")]) == 0
    assert time.monotonic() - start < 10
    assert not (tmp_path / "report.jsonl").exists()
