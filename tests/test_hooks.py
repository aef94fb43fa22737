"""What Copier runs after a copy and an update: environments, checks, messages, exit statuses."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect
import pytest

import environment
from repository import ROOT, commit_all, render

HOOKS = ROOT / "hooks"
PYPROJECT = """
[project]
name = "x"
[project.optional-dependencies]
dev = []
"""
STUB = """
import os, sys, time
print("harness", *sys.argv[1:], flush=True)
if os.environ.get("STUB_SLEEP"):
    time.sleep(60)
sys.exit(int(os.environ.get("STUB_" + sys.argv[1].upper(), "0")))
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def stub_package(tmp_path: Path) -> Path:
    """A package without dependencies whose harness says what it was asked and ends as it is told."""
    root = tmp_path / "package"
    for name, text in {
        "pyproject.toml": PYPROJECT,
        "harness/__init__.py": "",
        "harness/__main__.py": STUB,
        "harness/vnpu/__init__.py": "",
        "harness/vnpu/build.py": "def find_cxx() -> None: ...\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


@pytest.fixture
def generate(stub_package: Path) -> Run:
    """Runs the hook as Copier does, with this interpreter's environment as the active one."""

    def run(
        venv: bool = False, check: str = "auto", cleanup: bool = True, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(venv, check, cleanup),
            cwd=stub_package,
            env=os.environ | {"VIRTUAL_ENV": sys.prefix} | extra,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run


def command(venv: bool, check: str, cleanup: bool = True) -> list[str]:
    options = [f"--create-venv={venv}", f"--compile-check={check}", f"--cleanup={cleanup}"]
    return [sys.executable, str(HOOKS / "post_generate.py"), *options]


def test_a_check_that_passes(generate: Run) -> None:
    done = generate()
    assert done.returncode == 0, done.stderr
    assert "harness check\n" in done.stdout


def test_a_check_that_fails_says_how_to_keep_the_files(generate: Run) -> None:
    done = generate(STUB_CHECK="1")
    assert done.returncode == 1
    assert "The check FAILED" in done.stdout
    assert "--no-cleanup" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_check_that_fails_with_no_cleanup_says_where_the_files_are(generate: Run, stub_package: Path) -> None:
    done = generate(cleanup=False, STUB_CHECK="1")
    assert done.returncode == 1
    assert f"kept in {stub_package}" in done.stdout


def test_install_requires_the_compiler(generate: Run) -> None:
    done = generate(check="install")
    assert done.returncode == 0
    assert "harness toolchain install\n" in done.stdout
    assert "harness check --require budget\n" in done.stdout


def test_a_compiler_that_cannot_be_installed(generate: Run) -> None:
    done = generate(check="install", STUB_TOOLCHAIN="1")
    assert done.returncode == 2
    assert "could not be installed" in done.stdout
    assert "compile_check=auto" in done.stdout
    assert "harness check" not in done.stdout.split("could not be installed")[0]


def test_a_required_rung_that_cannot_run(generate: Run) -> None:
    done = generate(check="install", STUB_CHECK="2")
    assert done.returncode == 2
    assert "could not be carried out" in done.stdout


def test_without_venv_an_environment_that_lacks_packages_is_not_a_failure(generate: Run, tmp_path: Path) -> None:
    bare = bare_venv(tmp_path / "bare")
    done = generate(VIRTUAL_ENV=str(bare))
    assert done.returncode == 0
    assert "NOT checked" in done.stdout
    assert "pip install -e '.[dev]'" in done.stdout
    assert generate(check="install", VIRTUAL_ENV=str(bare)).returncode == 2


def bare_venv(path: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    return path


@pytest.mark.parametrize(("check", "status"), [("auto", 0), ("install", 2)])
def test_without_network(stub_package: Path, generate: Run, check: str, status: int) -> None:
    """The dependencies cannot be had: said in words, with what to do, and nothing is lost."""
    pyproject = stub_package / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace("dev = []", "dev = ['no-such-package-here>=3', 'x[y]']"))
    done = generate(venv=True, check=check, **OFFLINE)
    assert done.returncode == status, done.stdout + done.stderr
    assert "No .venv was made: the packages could not be installed" in done.stdout
    assert "PIP_INDEX_URL" in done.stdout
    assert "'no-such-package-here>=3'" in done.stdout
    assert "NOT checked" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert pyproject.exists()


OFFLINE = {
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": "",
    "PIP_CONFIG_FILE": os.devnull,
    "UV_OFFLINE": "1",
    "UV_NO_INDEX": "1",
}


def test_a_virtual_environment_is_made_and_used(stub_package: Path, generate: Run) -> None:
    done = generate(venv=True, check="auto")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (stub_package / ".venv/bin/python").exists()
    assert "creating .venv" in done.stdout
    again = generate(venv=True, check="off")
    assert again.returncode == 0
    assert "creating .venv" not in again.stdout


def test_a_folder_named_venv_that_is_none_is_left_alone(stub_package: Path, generate: Run) -> None:
    (stub_package / ".venv").mkdir()
    (stub_package / ".venv/mine").write_text("precious")
    done = generate(venv=True)
    assert "is not a virtual environment" in done.stdout
    assert (stub_package / ".venv/mine").read_text() == "precious"


def test_interrupted(stub_package: Path) -> None:
    process = subprocess.Popen(
        command(venv=False, check="auto"),
        cwd=stub_package,
        env=os.environ | {"VIRTUAL_ENV": sys.prefix, "STUB_SLEEP": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    while "harness check" not in process.stdout.readline():
        pass
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    said = process.stdout.read()
    assert process.wait(10) == 130
    assert "Interrupted" in said
    assert "Go on with:" in said


class TestEnvironment:
    """Ways to an environment on machines that lack something; the tools that are missing are hidden, not removed."""

    @pytest.fixture
    def project(self, tmp_path: Path) -> Path:
        (tmp_path / "pyproject.toml").write_text(PYPROJECT)
        return tmp_path

    def test_dependencies_are_read_from_the_project(self, project: Path) -> None:
        (project / "pyproject.toml").write_text(
            "[project]\ndependencies = ['a>=1']\n[project.optional-dependencies]\ndev = ['b']\ncxx = ['c']\n"
        )
        assert environment.dependencies(project, Path(sys.executable), ["dev"]) == ["a>=1", "b"]

    def test_damaged_project(self, project: Path) -> None:
        (project / "pyproject.toml").write_text("[project\n")
        with pytest.raises(environment.EnvironmentProblem, match=r"pyproject\.toml cannot be read"):
            environment.dependencies(project, Path(sys.executable), [])

    def test_without_ensurepip_another_pip_is_used(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(environment, "_has_ensurepip", lambda python: False)
        monkeypatch.setattr(environment, "_install_ensurepip", lambda base: None)
        monkeypatch.setattr(shutil, "which", hide("uv"))
        python = environment.make_environment(project, project / ".venv", ["dev"])
        assert not environment.has_modules(python, ["pip"])
        with environment._pip(python) as (pip, _):
            assert subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode == 0

    def test_without_any_pip_the_message_says_what_to_install(
        self, project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(environment, "has_modules", lambda python, modules: False)
        monkeypatch.setattr(shutil, "which", hide("uv", "apt-get"))
        with (
            pytest.raises(environment.EnvironmentProblem, match="apt install python3-venv"),
            environment._pip(Path(sys.executable)),
        ):
            pass

    def test_without_a_fitting_python(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(environment, "_version", lambda python: (3, 9))
        with pytest.raises(environment.EnvironmentProblem, match=r"Python 3\.11 or newer is needed"):
            environment._base_python(uv=None)
        assert environment._base_python(uv="/usr/bin/uv") == (">=3.11", False)

    def test_a_python_with_torch_npu_is_preferred_and_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shutil, "which", lambda name: f"/npu/{name}" if name == "python3" else None)
        monkeypatch.setattr(environment, "_version", lambda python: (3, 11))
        monkeypatch.setattr(
            environment, "has_modules", lambda python, modules: python == "/npu/python3" and "torch_npu" in modules
        )
        assert environment._base_python(uv=None) == ("/npu/python3", True)

    def test_a_broken_environment_is_made_anew(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shutil, "which", hide("uv"))
        python = environment.make_environment(project, project / ".venv", ["dev"])
        python.unlink()
        python.symlink_to("/nowhere/python")
        assert environment.make_environment(project, project / ".venv", ["dev"]) == python
        assert subprocess.run([str(python), "-c", ""], check=False).returncode == 0


def hide(*names: str) -> Callable[[str], str | None]:
    real = shutil.which
    return lambda name: None if name in names else real(name)


class TestAfterUpdate:
    def run(self, package: Path, **extra: str) -> subprocess.CompletedProcess[str]:
        hook = [sys.executable, str(HOOKS / "after_update.py")]
        return subprocess.run(
            hook, cwd=package, env=os.environ | extra, capture_output=True, text=True, check=False, timeout=60
        )

    def test_without_an_environment_nothing_is_checked(self, stub_package: Path) -> None:
        done = self.run(stub_package)
        assert done.returncode == 0
        assert "nothing was checked" in done.stdout

    @pytest.mark.parametrize(("status", "words"), [("0", ""), ("1", "--fix"), ("2", "could not be carried out")])
    def test_it_reports_and_never_fails(self, stub_package: Path, status: str, words: str) -> None:
        (stub_package / ".venv/bin").mkdir(parents=True)
        (stub_package / ".venv/bin/python").symlink_to(sys.executable)
        done = self.run(stub_package, STUB_CHECK=status)
        assert done.returncode == 0
        assert "harness check" in done.stdout
        assert words in done.stdout


# Through Copier itself.


def test_without_trust_nothing_is_written(git_template: Path, tmp_path: Path) -> None:
    done = copier("copy", "--defaults", git_template, tmp_path / "k")
    assert done.returncode == 4
    assert "tasks" in done.stderr
    assert not (tmp_path / "k").exists()


def test_without_trust_skip_tasks_renders_and_says_what_was_skipped(git_template: Path, tmp_path: Path) -> None:
    done = copier("copy", "--defaults", "--skip-tasks", git_template, tmp_path / "k")
    assert done.returncode == 0, done.stderr
    assert "Skipped because of --skip-tasks" in done.stderr
    assert ".venv/bin/python -m harness check" in done.stderr
    assert (tmp_path / "k/src/softmax/kernel.py").exists()


@pytest.mark.parametrize("keep", [False, True], ids=["cleanup", "no-cleanup"])
def test_a_kernel_that_fails_its_check(git_template: Path, tmp_path: Path, keep: bool) -> None:
    broken = shutil.copytree(git_template, tmp_path / "template")
    kernel = broken / "kernels/vector/softmax/kernel.py.jinja"
    kernel.write_text(kernel.read_text() + "\ndef broken(:\n")
    destination = tmp_path / "k"
    options = ["--no-cleanup"] if keep else []
    # The uncommitted change travels because the head is asked for, not the tag.
    done = copier("copy", "--trust", "--defaults", "--vcs-ref=HEAD", *options, *NO_VENV, broken, destination)
    assert done.returncode not in (0, 4)
    assert "kernel.py" in done.stdout
    assert "The check FAILED" in done.stdout
    assert destination.exists() == keep


NO_VENV = ["-d", "create_venv=no"]


def copier(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "copier", *map(str, arguments)],
        env=os.environ | {"VIRTUAL_ENV": sys.prefix},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_interrupting_copier_keeps_the_files_and_says_how_to_go_on(git_template: Path, tmp_path: Path) -> None:
    slow = shutil.copytree(git_template, tmp_path / "template")
    check = slow / "template/harness/check.py"
    check.write_text(
        "import time\ntime.sleep(60)\n" + check.read_text().replace("from __future__", "# from __future__")
    )
    arguments = ["-m", "copier", "copy", "--trust", "--defaults", "--vcs-ref=HEAD", *NO_VENV, str(slow), "k"]
    environment = os.environ | {"VIRTUAL_ENV": sys.prefix}
    terminal = pexpect.spawn(
        sys.executable, arguments, cwd=str(tmp_path), env=environment, encoding="utf-8", timeout=120
    )
    terminal.expect("checking the kernel")
    terminal.sendintr()
    terminal.expect("Interrupted.*Go on with:")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus not in (0, None)
    assert (tmp_path / "k/src/softmax/kernel.py").exists()


def test_an_update_runs_no_tasks(git_template: Path, tmp_path: Path) -> None:
    """Tasks run in temporary copies there; the one check comes from the migration."""
    copies = tmp_path / "template"
    shutil.copytree(git_template, copies)
    project = render(copies, tmp_path / "k", {"create_venv": False}, vcs_ref="99.0.0")
    commit_all(project, "Generated")
    (copies / "template/NEW.md").write_text("new\n")
    commit_all(copies, "A file more", "99.1.0")
    done = subprocess.run(
        [sys.executable, "-m", "copier", "update", "--trust", "--defaults", str(project)],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert (project / "NEW.md").exists()
    said = done.stdout + done.stderr
    assert "post_generate" not in said
    assert said.count("nothing was checked") == 1


def test_progress_is_visible_at_once(stub_package: Path) -> None:
    """Also through a pipe, and long before the end."""
    process = subprocess.Popen(
        command(venv=False, check="auto"),
        cwd=stub_package,
        env=os.environ | {"VIRTUAL_ENV": sys.prefix, "STUB_SLEEP": "1"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    start = time.monotonic()
    assert "checking the kernel" in process.stdout.readline()
    assert time.monotonic() - start < 20
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
