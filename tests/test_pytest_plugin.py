"""The generated tests' options, markers and closing line, with pytest itself and no device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import repository

TESTS = """
import pytest

@pytest.mark.l0
def test_l0(): pass

@pytest.mark.l1
def test_l1(): {l1}

@pytest.mark.l2
def test_l2(): pass

@pytest.mark.boundary
def test_boundary(): {boundary}

@pytest.mark.l0
@pytest.mark.nightly
def test_slow(): pass
"""


def run(folder: Path, *options: str, l1: str = "pass", boundary: str = "pass") -> subprocess.CompletedProcess[str]:
    (folder / "test_levels.py").write_text(TESTS.format(l1=l1, boundary=boundary))
    command = [sys.executable, "-m", "pytest", "-p", "harness.pytest_plugin", "-p", "no:cacheprovider", *options]
    environment = os.environ | {"PYTHONPATH": str(repository.ROOT / "template")}
    return subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("spread", [(), ("-n", "2")])
def test_markers_and_the_last_line(tmp_path: Path, spread: tuple[str, ...]) -> None:
    done = run(tmp_path, *spread)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "Test Passed!"
    for line in ("[PRECISION_PASS] l0 test_l0", "[PRECISION_PASS] l1 test_l1", "[BOUNDARY_PASS] l2 test_l2"):
        assert line in done.stdout
    assert "4 passed, 1 deselected" in done.stdout or spread


def test_a_wrong_number_blocks(tmp_path: Path) -> None:
    done = run(tmp_path, l1="assert False")
    assert done.returncode == 1
    assert "[PRECISION_FAIL] l1 test_l1" in done.stdout
    assert "Test Passed!" not in done.stdout


def test_a_boundary_case_warns(tmp_path: Path) -> None:
    done = run(tmp_path, boundary="assert False")
    assert done.returncode == 0
    assert "[BOUNDARY_WARN] boundary test_boundary" in done.stdout
    assert "1 xfailed" in done.stdout
    assert done.stdout.splitlines()[-1] == "Test Passed!"


def test_a_boundary_case_that_does_not_run_blocks(tmp_path: Path) -> None:
    done = run(tmp_path, boundary="pytest.fail('it does not compile')")
    assert done.returncode == 1
    assert "[BOUNDARY_WARN]" in done.stdout  # upstream knows no other word
    assert "Test Passed!" not in done.stdout


def test_a_boundary_case_blocks_when_asked_to(tmp_path: Path) -> None:
    done = run(tmp_path, "--strict-boundary", boundary="assert False")
    assert done.returncode == 1
    assert "Test Passed!" not in done.stdout


def test_what_did_not_run_is_not_passed(tmp_path: Path) -> None:
    done = run(tmp_path, "--level", "l1", l1="pytest.skip('no device')")
    assert "1 skipped" in done.stdout
    assert "PRECISION" not in done.stdout
    assert "Test Passed!" not in done.stdout


def test_levels_and_nightly(tmp_path: Path) -> None:
    assert "1 passed, 4 deselected" in run(tmp_path, "--level", "l0").stdout
    assert "2 passed, 3 deselected" in run(tmp_path, "--level", "l0", "--nightly").stdout
    assert "2 passed, 3 deselected" in run(tmp_path, "--level", "l0,l2").stdout
    assert "4 passed, 1 deselected" in run(tmp_path, "--level", "all").stdout
    assert "no such level: l9; l0, l1, l2, boundary or all" in run(tmp_path, "--level", "l9").stderr


def test_boundary_alone_decides_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "--level", "boundary")
    assert done.returncode == 0
    assert "Test Passed!" not in done.stdout


@pytest.mark.parametrize("cases", ["[]", "[pytest.param(0, marks=pytest.mark.nightly)]"])
def test_without_a_case_of_level_0_nothing_is_passed(tmp_path: Path, cases: str) -> None:
    (tmp_path / "test_gate.py").write_text(
        f"import pytest\n@pytest.mark.l0\n@pytest.mark.parametrize('case', {cases})\ndef test_l0(case): pass\n"
        "@pytest.mark.l2\ndef test_l2(): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "harness.pytest_plugin", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(repository.ROOT / "template")}
    for extra, expected in (([], 4), (["--level", "l2"], 0)):
        done = subprocess.run([*command, *extra], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == expected, done.stdout
        assert ("no case of level 0 that would run" in done.stderr) == bool(expected)
