"""`copier update` on projects of released versions: what is the user's survives, what is managed is current."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from copier.errors import UnsafeTemplateError, UserMessageError

import fleet
import lock
import migrations
import projects
import releases
import repository
from projects import ANSWERS, MATMUL, SOFTMAX, Template

pytestmark = pytest.mark.update
NOTE = "a line of the owner"


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_CHECK", "off")


def status(project: Path) -> list[str]:
    return repository.git(project, "status", "--porcelain", "--untracked-files=all").splitlines()


# Untouched projects.


def test_step_by_step_and_the_newest_twice(released: Template, tmp_path: Path) -> None:
    project = released.project(tmp_path / "k", released.oldest)
    for version in released.versions[1:]:
        projects.update(project, version)
        projects.assert_current(project, released, version, SOFTMAX, made_with=released.oldest)
        projects.commit(project)
    projects.update(project)
    assert status(project) == []


@pytest.mark.parametrize("answers", [SOFTMAX, MATMUL], ids=lambda answers: answers["operator"])
@pytest.mark.parametrize("version", releases.versions()[:1])
def test_from_the_oldest_to_the_newest(
    released: Template, tmp_path: Path, version: str, answers: dict[str, str]
) -> None:
    project = released.project(tmp_path / "k", version, answers)
    projects.update(project)
    projects.assert_current(project, released, released.newest, answers, made_with=version)


@pytest.mark.parametrize("version", releases.versions()[1:-1])
def test_from_every_tag_to_the_newest(released: Template, tmp_path: Path, version: str) -> None:
    project = released.project(tmp_path / "k", version)
    projects.update(project)
    projects.assert_current(project, released, released.newest, SOFTMAX, made_with=version)


@pytest.mark.ladder
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("answers", [SOFTMAX, MATMUL], ids=lambda answers: answers["operator"])
def test_an_updated_project_climbs_the_ladder(released: Template, tmp_path: Path, answers: dict[str, str]) -> None:
    project = released.project(tmp_path / "k", released.oldest, answers)
    projects.update(project)
    command = [sys.executable, "-m", "harness", "check", "--require", "simulated"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


# Edits.


def test_edits_of_every_file_survive_or_conflict_visibly(released: Template, tmp_path: Path) -> None:
    """Every file gets a line at its start and one at its end; the template changed many of them, too."""
    project = released.project(tmp_path / "k", released.oldest)
    edited = [path for path in projects.files(project) if path != ANSWERS]
    for path in edited:
        file = project / path
        file.write_text(f"# first, {NOTE}\n{file.read_text()}# last, {NOTE}\n")
    projects.commit(project, "Edits")
    before = projects.files(project)
    projects.update(project)
    after = projects.files(project)
    renamed = migrations.renamed_files(released.oldest, released.newest)
    for path in edited:
        text = after[renamed.get(path, path)].decode()
        assert text.count(NOTE) == 2, path
        if projects.is_owned(path):
            assert after[path] == before[path]
    # At the start of a line: the rule that looks for them holds the words, too.
    conflicts = [path for path, text in after.items() if b"\n<<<<<<< before updating" in b"\n" + text]
    assert conflicts
    assert fleet.conflicts(project) == sorted(conflicts)
    # What conflicts is settled by the owner; what does not is as the newest version has it, with the two lines.
    fresh = projects.files(released.fresh(released.newest, SOFTMAX))
    for path in set(edited) - set(renamed) - set(conflicts):
        if not projects.is_owned(path):
            assert after[path].decode() == f"# first, {NOTE}\n{fresh[path].decode()}# last, {NOTE}\n", path
    for old, new in renamed.items():
        assert old not in after
        assert after[new].decode() == f"# first, {NOTE}\n{fresh[new].decode()}# last, {NOTE}\n"


@pytest.mark.parametrize("style", ["inline", "rej"])
def test_a_conflict_is_found_by_the_rules_and_by_the_workflow(released: Template, tmp_path: Path, style: str) -> None:
    project = released.project(tmp_path / "k", released.oldest)
    places = ["README.md", "harness/ladder.py"]
    old = projects.files(project)
    new = projects.files(released.fresh(released.newest, SOFTMAX))
    for place in places:  # change the very lines that the newer version changes
        lines = old[place].decode().splitlines(keepends=True)
        kept = new[place].decode().splitlines(keepends=True)
        (project / place).write_text("".join(line if line in kept else f"{line.rstrip()} {NOTE}\n" for line in lines))
    projects.commit(project)
    projects.update(project, conflict=style)
    expected = places if style == "inline" else [f"{place}.rej" for place in places]
    assert fleet.conflicts(project) == expected
    for place in places:
        held = (project / place).read_text() + "".join(rej.read_text() for rej in project.glob(f"{place}.rej"))
        assert NOTE in held
    found = projects.harness_rules(project)
    assert found.returncode == 1
    if style == "rej":
        assert all(place in found.stdout for place in expected), found.stdout
    else:  # with markers in harness/ itself the harness cannot be loaded; it still says which they are
        assert "harness/ladder.py:" in found.stderr
        assert "<<<<<<< before updating" in found.stderr
        assert "Traceback" not in found.stderr
    step = workflow_step(project, "Look for conflicts left by an update")
    done = subprocess.run(["bash", "-e", "-c", step], cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert all(place in done.stdout for place in expected), done.stdout


def test_markers_are_found_by_the_rules_and_by_the_workflow(released: Template, tmp_path: Path) -> None:
    project = released.project(tmp_path / "k", released.newest)
    step = workflow_step(project, "Look for conflicts left by an update")
    assert subprocess.run(["bash", "-e", "-c", step], cwd=project, check=False).returncode == 0
    edited = ["README.md", ".gitignore", "harness/rules/pages/7-packages.md", "src/my_kernel/kernel.py"]
    for place in edited:
        text = (project / place).read_text()
        (project / place).write_text(f"{text}<<<<<<< before updating\na\n=======\nb\n>>>>>>> after updating\n")
    found = projects.harness_rules(project)
    assert found.returncode == 1
    assert [place for place in edited if place not in found.stdout] == []


def workflow_step(project: Path, name: str) -> str:
    workflow = yaml.safe_load((project / ".github/workflows/check.yml").read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    return str(next(step["run"] for step in steps if step.get("name") == name))


def test_what_was_deleted_or_moved_stays_so(released: Template, tmp_path: Path) -> None:
    project = released.project(tmp_path / "k", released.oldest)
    deleted = ["design.md", "tests/test_l0.py", "tests/test_errors.py", "src/my_kernel/reference.py"]
    for path in deleted:
        (project / path).unlink()
    moved = {"harness/report.py": "harness/my_report.py", "src/my_kernel/kernel.py": "src/my_kernel/fast.py"}
    for old, new in moved.items():
        (project / old).rename(project / new)
    (project / "tests/test_l1.py").write_text("# mine\n")
    projects.commit(project)
    before = projects.files(project)
    projects.update(project)
    after = projects.files(project)
    assert [path for path in (*deleted, *moved, "tests/test_l2.py") if path in after] == []
    for path in moved.values():
        assert after[path] == before[path]
    projects.commit(project)

    # Recopy is the way to have them back; what the owner has is left as it is.
    kernel = project / "src/my_kernel/fast.py"
    kernel.rename(project / "src/my_kernel/kernel.py")
    projects.commit(project)
    done = projects.run_copier("recopy", "--trust", "--skip-tasks", "--overwrite", "--defaults", project)
    assert done.returncode == 0, done.stderr
    back = projects.files(project)
    fresh = projects.files(released.fresh(released.newest, SOFTMAX))
    assert back["src/my_kernel/kernel.py"] == before["src/my_kernel/fast.py"]
    for path in ("design.md", "tests/test_l0.py", "tests/test_l2.py", "tests/test_l1.py", "harness/report.py"):
        assert back[path] == fresh[path]


def test_edits_of_a_file_that_is_no_longer_part_are_named(released: Template, tmp_path: Path) -> None:
    template = clone_of(released, tmp_path)
    (template / "template/tests/test_boundary.py").unlink()
    repository.commit_all(template, "Without boundary tests", "100.0.0")
    project = project_from(template, tmp_path / "k", released.newest)
    (project / "tests/test_boundary.py").write_text(f"# {NOTE}\n")
    projects.commit(project)
    done = projects.run_copier("update", "--trust", "--defaults", "--quiet", project)
    assert done.returncode == 0, done.stderr
    assert not (project / "tests/test_boundary.py").exists()
    assert "tests/test_boundary.py is no longer part of a package" in done.stdout
    assert "harness/" not in done.stdout  # what the owner had not changed goes without saying


# Where the project is, and where the template is.


def test_a_project_in_a_folder_of_a_larger_repository(released: Template, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    project = released.project(whole / "kernels/softmax", released.oldest)
    shutil.rmtree(project / ".git")
    (whole / "README.md").write_text("the whole\n")
    projects.commit(whole)
    (whole / "README.md").write_text("the whole, being edited\n")
    (project / "tests/test_errors.py").open("a").write(f"# {NOTE}\n")
    repository.git(whole, "commit", "-qm", "Edit", "--", "kernels")
    projects.update(project)
    shutil.rmtree(whole / ".git")
    assert (whole / "README.md").read_text() == "the whole, being edited\n"
    assert (project / "tests/test_l2.py").read_text().endswith(f"# {NOTE}\n")
    (project / "tests/test_l2.py").write_bytes(
        (released.fresh(released.newest, SOFTMAX) / "tests/test_l2.py").read_bytes()
    )
    projects.assert_current(project, released, released.newest, SOFTMAX, made_with=released.oldest)


def test_the_template_has_moved(released: Template, tmp_path: Path) -> None:
    template = clone_of(released, tmp_path)
    project = project_from(template, tmp_path / "k", released.oldest)
    template = template.rename(tmp_path / "elsewhere")
    before = projects.files(project)
    with pytest.raises(UserMessageError, match="git-tracked templates"):
        projects.update(project)
    assert projects.files(project) == before
    text = (project / ANSWERS).read_text()
    (project / ANSWERS).write_text(text.replace(f"_src_path: {tmp_path / 'template'}", f"_src_path: {template}"))
    projects.commit(project, "The template has moved")
    projects.update(project)
    assert answers(project) == answers(released.fresh(released.newest, SOFTMAX)) | {"_src_path": str(template)}


def answers(project: Path) -> dict[str, object]:
    return projects.answers_of(project)


def clone_of(released: Template, folder: Path) -> Path:
    """The releases as a repository of its own, which the test may change."""
    target = folder / "template"
    subprocess.run(["git", "clone", "--quiet", str(released.path), str(target)], check=True)
    return target


def project_from(template: Path, folder: Path, version: str) -> Path:
    repository.render(template, folder, SOFTMAX, vcs_ref=version, unsafe=True)
    projects.commit(folder)
    return folder


# Changed answers.


def test_era_and_chip_can_be_changed(released: Template, tmp_path: Path) -> None:
    project = released.project(tmp_path / "k", released.oldest)
    before = projects.files(project)
    projects.update(project, data={"compiler_era": "strict-scope", "platform": "A5"})
    after = projects.files(project)
    fresh = projects.files(
        released.fresh(released.newest, SOFTMAX | {"compiler_era": "strict-scope", "platform": "A5", **sizes(project)})
    )
    assert {path: text for path, text in after.items() if projects.is_owned(path)} == {
        path: text for path, text in before.items() if projects.is_owned(path)
    }
    assert [path for path in fresh if not projects.is_owned(path) and after[path] != fresh[path]] == []
    assert answers(project)["backend"] == "pto"  # the only one that generates code for A5


def sizes(project: Path) -> dict[str, object]:
    return {name: value for name, value in answers(project).items() if name in ("m", "n", "block_m", "block_n")}


def test_a_new_era_reaches_the_kernel_as_advice(released: Template, tmp_path: Path) -> None:
    """The update leaves the kernel alone; the rules say what it lacks, and mend it when asked to."""
    project = released.project(tmp_path / "k", released.newest)
    kernel = project / "src/my_kernel/kernel.py"
    before = kernel.read_text()
    assert projects.harness_rules(project).returncode == 0
    projects.update(project, data={"compiler_era": "strict-scope"})
    assert kernel.read_text() == before
    found = projects.harness_rules(project)
    assert found.returncode == 1
    assert "AUTO_CV_COMBINE" in found.stdout
    mended = projects.harness_rules(project, "--fix")
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert "TL_ASCEND_AUTO_CV_COMBINE: True" in kernel.read_text()
    assert "+" in repository.git(project, "diff", "--stat", "--", "src")


@pytest.mark.parametrize(
    ("question", "answer"),
    [("scenario", "gemm"), ("operator", "add"), ("dtype", "float32"), ("kernel_name", "other")],
)
@pytest.mark.parametrize("version", ["oldest", "newest"])
def test_what_the_kernel_was_written_from_cannot_be_changed(
    released: Template, tmp_path: Path, question: str, answer: str, version: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if version == "oldest" and question != "scenario":
        pytest.skip("the same code as for the newest")
    project = released.project(tmp_path / "k", getattr(released, version))
    with pytest.raises((UserMessageError, ValueError)) as caught:
        projects.update(project, data={question: answer})
    said = str(caught.value) + capfd.readouterr().err
    assert f"{question}={SOFTMAX.get(question, 'float16')}" in said
    assert "copier copy" in said
    assert status(project) == []


# Bad input: a clear message, and the project as it was.


def edit_answers(old: str, new: str) -> Callable[[Path], None]:
    def edit(project: Path) -> None:
        text = (project / ANSWERS).read_text()
        assert old in text
        (project / ANSWERS).write_text(text.replace(old, new))

    return edit


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "a chip that does not exist": (edit_answers("platform: A2", "platform: A9"), "'A9' is not in"),
    "a number that is none": (edit_answers("m: 1024", "m: many"), "many"),
    "an answer to no question": (edit_answers("m: 1024", "m: 1024\ncolour: red"), "never asked: colour"),
    "no YAML": (edit_answers("m: 1024", "m: [1024"), ANSWERS),
    "a list": (lambda project: (project / ANSWERS).write_text("- a\n"), "list"),
    "no answers file": (lambda project: (project / ANSWERS).unlink(), "cannot obtain old template references"),
    "no version": (edit_answers("_commit: ", "_was: "), "cannot obtain old template references"),
    "a tag that vanished": (lambda project: replace_commit(project, "0.0.9"), "Unknown revision: '0.0.9'"),
    "a history rewritten": (lambda project: replace_commit(project, "0.1.0-2-gabcdef1"), "0.1.0-2-gabcdef1"),
    "a version to come": (lambda project: replace_commit(project, "900.0.0"), "900.0.0"),
    "no template there": (lambda project: replace_source(project, "/nowhere"), "git-tracked templates"),
    "no network": (lambda project: replace_source(project, "https://127.0.0.1:1/t.git"), "unable to access"),
    "no git repository": (lambda project: shutil.rmtree(project / ".git"), "git-tracked subprojects"),
}


def replace_commit(project: Path, version: str) -> None:
    edit_answers(f"_commit: {answers(project)['_commit']}", f"_commit: {version}")(project)


def replace_source(project: Path, address: str) -> None:
    edit_answers(f"_src_path: {answers(project)['_src_path']}", f"_src_path: {address}")(project)


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_and_changes_nothing(released: Template, tmp_path: Path, case: str) -> None:
    damage, message = BAD[case]
    project = released.project(tmp_path / "k", released.newest)
    damage(project)
    if (project / ".git").exists():
        projects.commit(project)
    before = projects.files(project)
    done = projects.run_copier("update", "--trust", "--defaults", "--quiet", project)
    assert done.returncode != 0
    assert message in done.stderr
    assert projects.files(project) == before


def test_without_git(released: Template, tmp_path: Path) -> None:
    project = released.project(tmp_path / "k", released.newest)
    before = projects.files(project)
    done = projects.run_copier("update", "--trust", "--defaults", project, env=os.environ | {"PATH": str(tmp_path)})
    assert done.returncode != 0
    assert "git" in done.stderr.lower()
    assert projects.files(project) == before


def test_an_answer_that_a_new_version_refuses_is_named(released: Template, tmp_path: Path) -> None:
    """Copier would take the default without a word."""
    template = clone_of(released, tmp_path)
    hardware = template / "catalog/hardware.yml"
    (template / "includes/choices.jinja").write_text(
        (template / "includes/choices.jinja")
        .read_text()
        .replace("in catalog.hardware.items()", "in {'A3': catalog.hardware.A3}.items()")
    )
    assert hardware.exists()
    repository.commit_all(template, "No more A2", "100.0.0")
    project = project_from(template, tmp_path / "k", released.newest)
    done = projects.run_copier("update", "--trust", "--defaults", project)
    assert done.returncode == 1
    assert "holds an answer that this version does not accept" in done.stderr
    assert "'A2' is not in ['A3']" in done.stderr
    assert status(project) == []
    projects.update(project, data={"platform": "A3"})
    assert answers(project)["platform"] == "A3"


def test_a_bad_answer_on_the_command_line_leaves_old_answers_as_they_are(released: Template, tmp_path: Path) -> None:
    """Stored answers are migrated before Copier looks at the new ones."""
    project = released.project(tmp_path / "k", released.oldest)
    done = projects.run_copier("update", "--trust", "--defaults", "-d", "platform=A9", project)
    assert done.returncode == 1
    assert "'A9' is not in" in done.stderr
    assert status(project) == []


def test_uncommitted_changes_are_refused(released: Template, tmp_path: Path) -> None:
    project = released.project(tmp_path / "k", released.oldest)
    (project / "src/my_kernel/kernel.py").open("a").write(f"# {NOTE}\n")
    before = projects.files(project)
    with pytest.raises(UserMessageError, match="dirty"):
        projects.update(project)
    assert projects.files(project) == before


def test_a_removed_choice_and_a_renamed_question(released: Template, tmp_path: Path) -> None:
    project = released.project(tmp_path / "k", released.oldest, SOFTMAX | {"chip": "A3", "compile_check": "full"})
    projects.update(project)
    assert answers(project)["platform"] == "A3"
    assert answers(project)["compile_check"] == "install"
    assert "chip" not in answers(project)


def test_without_trust_nothing_happens(released: Template, tmp_path: Path) -> None:
    project = released.project(tmp_path / "k", released.oldest)
    with pytest.raises(UnsafeTemplateError, match=r"migrations.*tasks|tasks.*migrations"):
        projects.update(project, unsafe=False)
    assert status(project) == []


# One at a time, and cut off.


def test_a_second_update_at_the_same_time_is_refused(released: Template, tmp_path: Path) -> None:
    project = released.project(tmp_path / "k", released.oldest)
    other = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=subprocess.PIPE
    )
    try:
        assert other.stdout
        other.stdout.readline()
        lock.acquire(project, other.pid)
        done = projects.run_copier("update", "--trust", "--defaults", project)
    finally:
        other.kill()
        other.wait()
    assert done.returncode == 1
    assert f"another update is at work in this repository (process {other.pid}" in done.stderr
    assert status(project) == []
    projects.update(project)  # the other one is gone
    assert answers(project)["_commit"] == released.newest
    assert lock.holder(lock.path_of(project)) is None


def test_an_update_that_was_killed_is_taken_back_and_repeated(released: Template, tmp_path: Path) -> None:
    project = released.project(tmp_path / "k", released.oldest)
    (project / "src/my_kernel/kernel.py").open("a").write(f"# {NOTE}\n")
    projects.commit(project)
    before = projects.files(project)
    command = [sys.executable, "-m", "copier", "update", "--trust", "--defaults", str(project)]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    while not (project / "tests/test_l2.py").exists():
        assert running.poll() is None, "the update was over before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert status(project)
    assert fleet.cut_off(project)
    package = fleet.Package(project)
    fleet.plan([package], None, {})
    assert package.state == fleet.INTERRUPTED
    with pytest.raises(UserMessageError, match="dirty"):
        projects.update(project)
    # As docs/updating.md has it.
    for words in (["reset", "-q"], ["restore", "."], ["clean", "-dfq", "."]):
        repository.git(project, *words)
    assert projects.files(project) == before
    projects.update(project)
    assert (project / "src/my_kernel/kernel.py").read_text().endswith(f"# {NOTE}\n")
    assert answers(project)["_commit"] == released.newest


def test_when_the_old_version_is_gone_recopy_helps(released: Template, tmp_path: Path) -> None:
    project = released.project(tmp_path / "k", released.newest)
    replace_commit(project, "0.0.9")
    (project / "src/my_kernel/kernel.py").open("a").write(f"# {NOTE}\n")
    projects.commit(project)
    done = projects.run_copier("recopy", "--trust", "--skip-tasks", "--overwrite", "--defaults", project)
    assert done.returncode == 0, done.stderr
    assert answers(project)["_commit"] == released.newest
    assert (project / "src/my_kernel/kernel.py").read_text().endswith(f"# {NOTE}\n")


# The check at the end.


@pytest.mark.parametrize(("compile_check", "switch", "times"), [("auto", "", 1), ("auto", "off", 0)])
def test_one_check_that_reports_and_never_fails(
    released: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compile_check: str, switch: str, times: int
) -> None:
    project = released.project(tmp_path / "k", released.oldest, SOFTMAX | {"compile_check": compile_check})
    python = project / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho \"$@\" >> {tmp_path}/calls\necho 'the table'\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setenv("KERNEL_CHECK", switch)
    done = projects.run_copier("update", "--trust", "--defaults", "--quiet", project)
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines() if times else []
    assert calls == ["-m harness check"] * times
    assert ("The check found what is shown above" in done.stdout) == bool(times)
    assert answers(project)["_commit"] == released.newest


# What releases renamed or removed is in hooks/migrations.py.


@pytest.mark.contract
@pytest.mark.parametrize("version", releases.versions())
def test_every_question_and_choice_of_a_release_is_still_known(version: str) -> None:
    old: dict[str, object] = {}
    for path, text in projects.archived(version).items():
        if path.startswith("questions/"):
            old |= yaml.safe_load(text)
    now = repository.questions()
    stored = {name: "?" for name, question in old.items() if asked(question)}
    migrated = migrations.migrate(stored, version, repository.VERSION)
    assert [name for name in migrated if name not in now] == []
    for name, question in old.items():
        assert isinstance(question, dict)
        if isinstance(question.get("choices"), dict) and asked(question):
            for value in question["choices"].values():
                [(new, answer)] = migrations.migrate({name: value}, version, repository.VERSION).items()
                assert answer in now[new]["choices"].values(), f"{name}={value}"


def asked(question: object) -> bool:
    return isinstance(question, dict) and question.get("when") is not False


@pytest.mark.contract
@pytest.mark.parametrize("version", releases.versions())
def test_every_renamed_file_is_there(version: str) -> None:
    names = {path.removeprefix("template/") for path in projects.archived(version) if path.startswith("template/")}
    for old, new in migrations.renamed_files(version, repository.VERSION).items():
        assert old in names
        assert (repository.ROOT / "template" / new).exists()
        assert not (repository.ROOT / "template" / old).exists()


@pytest.mark.contract
def test_migrations_follow_one_another() -> None:
    chain = (
        migrations.Release(version="1.0", questions={"a": "b"}, files={"x": "y"}),
        migrations.Release(version="2.0", questions={"b": "c"}, files={"y": "z"}, choices={"c": {1: 2}}),
        migrations.Release(version="3.0", removed_questions=("d",)),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrations, "RELEASES", chain)
        assert migrations.migrate({"a": 1, "d": 0, "_commit": "0"}, "0.1", "3.0") == {"c": 2, "_commit": "0"}
        assert migrations.migrate({"b": 1, "d": 0}, "1.0", "2.5") == {"c": 2, "d": 0}
        assert migrations.renamed_files("0.1", "2.0") == {"x": "z"}
        assert migrations.renamed_files("1.0", "2.0") == {"y": "z"}
        assert migrations.renamed_files("2.0", "3.0") == {}


def test_check_update_tells_the_workflow(released: Template, tmp_path: Path) -> None:
    """The drift notice: exit status 2 where a newer version exists, and the workflow job never fails."""
    for version, words in ((released.oldest, "A newer template exists"), (released.newest, "is current")):
        project = released.project(tmp_path / version, version)
        newest = released.fresh(released.newest, SOFTMAX)
        shutil.copy(newest / ".github/workflows/check.yml", project / ".github/workflows/check.yml")
        step = workflow_step(project, "Look for a newer template")
        shims = tmp_path / "bin"
        shims.mkdir(exist_ok=True)
        (shims / "copier").write_text(f'#!/bin/sh\nexec {sys.executable} -m copier "$@"\n')
        (shims / "python").write_text("#!/bin/sh\n")  # pip install copier
        for shim in shims.iterdir():
            shim.chmod(0o755)
        path = {"PATH": f"{shims}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-e", "-c", step], cwd=project, env=os.environ | path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert f"::notice::{words}" in done.stdout.replace("The template ", "")
        assert json.dumps(version)[1:-1] in done.stdout
