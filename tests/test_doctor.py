"""``doctor``: what it finds, what it says is missing, and its exit status."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import run_harness
from harness import doctor
from harness.compiler.client import find_compiler
from harness.vnpu import build


def run(*options: str) -> int:
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    return doctor.main(parser.parse_args(options))


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has only Python."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("TILELANG_PYTHON", "ASCEND_HOME_PATH", "CXX"):
        monkeypatch.delenv(name, raising=False)

    def find_cxx() -> None:
        raise build.CompilerNotFound("no C++ compiler for the virtual NPU. Needed is one of: …")

    monkeypatch.setattr(build, "find_cxx", find_cxx)


@pytest.mark.usefixtures("bare")
def test_bare_machine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run() == 0
    shown = capsys.readouterr().out
    assert "– TileLang-Ascend" in shown
    assert "To get TileLang-Ascend, managed toolchain" in shown
    assert "python -m harness toolchain install" in shown
    assert "To get Ascend NPU: a machine with an NPU" in " ".join(shown.split())
    assert run("--require", "python", "--require", "cache") == 0
    assert run("--require", "compiler") == 2
    assert run("--require", "npu") == 2
    assert f"To get C++ compiler: {sys.executable} -m pip install ziglang" in shown


@pytest.mark.usefixtures("bare")
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    run("--json")
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    entries = {entry["name"]: entry for entry in document["entries"]}
    assert tuple(entries) == doctor.NAMES
    assert entries["python"]["found"]
    assert entries["compiler"] == {
        "name": "compiler",
        "title": "TileLang-Ascend",
        "found": False,
        "detail": "no TileLang-Ascend compiler on this machine",
        "unlocks": "lowered, budget",
        "where": "",
        "fix": "python -m harness toolchain install",
    }


@pytest.mark.usefixtures("bare")
def test_broken_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILELANG_PYTHON", "/nowhere/python")
    (entry,) = (entry for entry in doctor.examine() if entry.name == "compiler")
    assert not entry.found
    assert "TILELANG_PYTHON" in entry.detail
    assert "cannot start /nowhere/python" in entry.detail
    assert "must start a Python that can import TileLang-Ascend" in entry.fix


@pytest.mark.network
def test_machine_with_compiler(capsys: pytest.CaptureFixture[str]) -> None:
    with find_compiler(install=True) as compiler:
        version = compiler.version
    assert run("--require", "compiler") == 0
    shown = capsys.readouterr().out
    assert "✓ TileLang-Ascend" in shown
    assert version in shown


def test_a_python_without_the_harness_needs_is_told_where_to_go(package: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError(\"No module named 'numpy'\", name='numpy')\n")
    done = run_harness(package(), "check", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert "has no numpy, which the harness needs" in done.stderr
    assert "source .venv/bin/activate" in done.stderr
    assert "Traceback" not in done.stderr
