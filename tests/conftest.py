"""Fixtures: the template as a committed, tagged clone; a home of its own for every run; the compiler."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import harness.catalog
import lowering
import projects
import repository
from harness.compiler.client import Compiler, find_compiler

_scratch = tempfile.TemporaryDirectory(prefix="template-tests-")


def pytest_configure() -> None:
    """Points the harness under test to the whole catalog before any test module imports it; undoes what a shell set."""
    # A shell's background job ignores SIGINT, and so would every process whose interruption is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    harness.catalog.PATH = repository.write_catalog(Path(_scratch.name) / "catalog.json")


def pytest_unconfigure() -> None:
    _scratch.cleanup()


@pytest.fixture(scope="session", autouse=True)
def isolated_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No git, Copier or pip settings of the machine's user reach the tests; caches, which hold no settings, do."""
    home = tmp_path_factory.mktemp("home")
    real_home = Path.home()
    cache = os.environ.get("XDG_CACHE_HOME") or str(real_home / ".cache")
    config = home / ".gitconfig"
    config.write_text("[user]\nname = Tester\nemail = tester@example.invalid\n[init]\ndefaultBranch = main\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
        patch.setenv("XDG_CACHE_HOME", cache)
        patch.setenv("GIT_CONFIG_GLOBAL", str(config))
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        patch.setenv("COPIER_SETTINGS_PATH", str(empty_settings(home)))
        for name in [name for name in os.environ if name.startswith("GIT_") and name[4:10] != "CONFIG"]:
            patch.delenv(name)
        # Where packages come from is the machine's business, not a setting under test.
        for settings in (real_home / ".config/pip/pip.conf", real_home / ".pip/pip.conf"):
            if settings.exists() and "PIP_CONFIG_FILE" not in os.environ:
                patch.setenv("PIP_CONFIG_FILE", str(settings))
        yield home


def empty_settings(home: Path) -> Path:
    settings = home / "copier-settings.yml"
    settings.write_text("{}\n", encoding="utf-8")
    return settings


@pytest.fixture(scope="session")
def plain_template(tmp_path_factory: pytest.TempPathFactory, isolated_home: Path) -> Path:
    """The working tree as a plain folder: Copier renders it in place, without a clone."""
    return repository.copy_working_tree(tmp_path_factory.mktemp("plain") / "template")


@pytest.fixture(scope="session")
def git_template(tmp_path_factory: pytest.TempPathFactory, plain_template: Path) -> Path:
    """The working tree as a repository with one commit and one tag, the newest version there is."""
    folder = shutil.copytree(plain_template, tmp_path_factory.mktemp("repository") / "template")
    repository.commit_all(folder, "Working tree", repository.VERSION)
    return folder


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory, isolated_home: Path) -> projects.Template:
    """All released versions of the template, and the working tree as the newest."""
    return projects.Template(tmp_path_factory.mktemp("released"), repository.ROOT)


Render = Callable[..., Path]


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory, plain_template: Path) -> Render:
    """Renders a package with the given answers, once per run of all workers for the same answers: do not change it."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "packages"
    shared.mkdir(exist_ok=True)

    def make(**answers: Any) -> Path:
        folder = shared / hashlib.sha256(repr(sorted(answers.items())).encode()).hexdigest()[:16]
        name = str(answers.get("kernel_name", "softmax"))
        if not folder.exists():
            scratch = tmp_path_factory.mktemp("package")
            repository.render(plain_template, scratch / name, answers)
            with contextlib.suppress(OSError):  # another worker was faster
                scratch.rename(folder)
        return folder / name

    return make


@pytest.fixture(scope="session")
def compiler(package: Render) -> None:
    """The TileLang-Ascend compiler, installed for this user where the machine has none.

    Without a compiler the suite proves little, so its absence is a failure, not a skip.
    """
    root = package()
    done = run_harness(root, "doctor", "--require", "compiler")
    if done.returncode:
        done = run_harness(root, "toolchain", "install", timeout=1200)
    if done.returncode:
        pytest.fail(f"no TileLang-Ascend compiler could be reached or installed:\n{done.stdout}{done.stderr}", False)


Lower = Callable[..., None]


@pytest.fixture(scope="session")
def opened(compiler: None) -> Iterator[Compiler]:
    """One compiler for the whole session: it takes seconds to start."""
    with find_compiler() as found:
        yield found


@pytest.fixture(scope="session")
def lower(opened: Compiler) -> Lower:
    """`lowering.ahead` with the session's compiler."""
    return functools.partial(lowering.ahead, opened)


def run_harness(
    root: Path, *arguments: str, timeout: float = 600, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs ``python -m harness`` of a package with this interpreter."""
    return subprocess.run(
        [sys.executable, "-m", "harness", *arguments],
        cwd=root,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
