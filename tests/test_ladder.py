"""Every starter climbs the verification ladder with the real compiler; a level run of every operator passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import harness.project
import lowering
import repository
from conftest import Lower, run_harness
from harness.compiler.client import Compiler
from harness.execution import VirtualDevice, make_inputs
from harness.spec import Case
from repository import NAME, Starter

pytestmark = [pytest.mark.ladder, pytest.mark.usefixtures("compiler")]

STARTERS = list(repository.starters())
OPERATORS = repository.operators()  # where one run per operator is enough
Package = Callable[..., Path]


def climb(root: Path, *arguments: str, ahead: Lower | None = None) -> dict[str, dict[str, Any]]:
    """Runs ``check --json``, with its cases lowered ahead or not; returns the rungs by name.

    Raises:
        AssertionError: Exit status other than 0, with what the rungs say.
    """
    if ahead:
        ahead(root)
    done = run_harness(root, "check", "--json", *arguments)
    try:
        rungs = {rung["rung"]: rung for rung in json.loads(done.stdout)["rungs"]}
    except ValueError:
        pytest.fail(f"check --json printed no JSON (exit status {done.returncode}):\n{done.stdout}\n{done.stderr}")
    told = "\n".join(
        "\n  ".join([f"{rung['rung']}: {rung['status']}: {rung['summary']}", *rung["details"]])
        for rung in rungs.values()
        if rung["status"] == "failed" or rung["rung"] in arguments
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{told}\n{done.stderr}"
    return rungs


@pytest.mark.parametrize("starter", STARTERS, ids=str)
def test_climbs_to_simulated(package: Package, lower: Lower, starter: Starter) -> None:
    rungs = climb(package(**starter.answers), "--require", "simulated", ahead=lower)
    assert [name for name in ("parsed", "conventions", "lowered", "budget") if rungs[name]["status"] != "passed"] == []
    assert rungs["lowered"]["data"]["compiler"]
    assert ("NOT proved" in rungs["race_free"]["summary"]) == (starter.scenario == "expert")


@pytest.mark.parametrize("starter", OPERATORS, ids=str)
def test_a5_lowers_and_fits(package: Package, lower: Lower, starter: Starter) -> None:
    record = repository.catalog()["operators"][starter.scenario][starter.operator]
    if "A5" not in record["platforms"]:
        pytest.skip("not offered for A5")
    climb(package(**starter.answers, platform="A5"), "--require", "budget", ahead=lower)


@pytest.mark.parametrize("starter", OPERATORS, ids=str)
def test_other_exchange_climbs_to_simulated(package: Package, lower: Lower, starter: Starter) -> None:
    record = repository.catalog()["operators"][starter.scenario][starter.operator]
    others = record.get("cv_exchange", [""])[1:]
    if not others:
        pytest.skip("one form only")
    for exchange in others:
        climb(package(**starter.answers, cv_exchange=exchange), "--require", "simulated", ahead=lower)


@pytest.mark.parametrize("starter", OPERATORS, ids=str)
def test_all_levels(package: Package, lower: Lower, starter: Starter) -> None:
    """The generated tests, nightly ones left out, on the virtual NPU."""
    root = package(**starter.answers)
    lower(root, lambda case: not case.nightly, ["pto"])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--device", "virtual"]
    done = subprocess.run(command, cwd=root, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert done.stdout.rstrip().endswith("Test Passed!")


def clean_environment() -> dict[str, str]:
    """Without what pytest and xdist left for their own children."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONPATH"))}


ROWS = [starter for starter in OPERATORS if starter.scenario == "vector" or str(starter).startswith("mixed-softmax")]


@pytest.mark.parametrize("starter", ROWS, ids=str)
def test_leading_dimensions_become_rows(package: Package, opened: Compiler, starter: Starter) -> None:
    """The host function takes [..., N]; its kernel sees [M, N]."""
    with lowering.foreign_modules():
        project = harness.project.load(package(**starter.answers))
        spec = project.spec()
        shape = {"M": 6, "N": 64}
        inputs = make_inputs(spec, Case(name="rows", level="l1", shape=shape))
        stacked = [array.reshape(2, 3, 64) if array.shape == (6, 64) else array for array in inputs]
        (got,) = VirtualDevice(project, opened).run(stacked, {})
        expected = project.reference()(*inputs)
    assert got.shape == (2, 3, *expected.shape[1:])
    np.testing.assert_allclose(got.reshape(expected.shape).astype(np.float64), expected, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("backend", ["ascendc", "pto"])
def test_source_shows_the_generated_code(package: Package, backend: str) -> None:
    done = run_harness(package(kernel_name=NAME), "source", "--backend", backend)
    assert done.returncode == 0, done.stderr
    assert 'extern "C"' in done.stdout
    assert ("pto::" in done.stdout) == (backend == "pto")


@pytest.mark.parametrize("command", ["check", "source", "bench"])
def test_an_unknown_case_is_wrong_use(package: Package, command: str) -> None:
    done = run_harness(package(kernel_name=NAME), command, "--case", "nope", COLUMNS="300")
    assert done.returncode == 3
    assert "tests/spec.py has no case nope; there are: l0-" in done.stdout + done.stderr


@pytest.mark.parametrize(("command", "said"), [("bench", "Measure on an NPU"), ("convert", "Rewrite an Expert kernel")])
def test_help_keeps_its_capitals(package: Package, command: str, said: str) -> None:
    assert said in run_harness(package(kernel_name=NAME), command, "--help").stdout


def test_a_second_check_is_answered_from_the_cache(package: Package) -> None:
    root = package(kernel_name=NAME)
    climb(root, "--require", "budget")
    assert climb(root, "--require", "budget")["lowered"]["seconds"] < 3


def test_copier_makes_and_checks_a_package(git_template: Path, tmp_path: Path) -> None:
    """The whole line through Copier, with this interpreter's environment instead of a new one."""
    command = [sys.executable, "-m", "copier", "copy", "--trust", "--defaults", "-d", "create_venv=no"]
    command += ["-d", "compile_check=install", str(git_template), str(tmp_path / "softmax")]
    environment = os.environ | {"VIRTUAL_ENV": sys.prefix}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "simulated" in done.stdout
    climb(tmp_path / "softmax", "--require", "simulated")


@pytest.mark.network
def test_ziglang_serves_where_no_cxx_is_on_the_path(package: Package, lower: Lower, tmp_path: Path) -> None:
    root = package(kernel_name=NAME, scenario="vector", operator="custom")
    lower(root)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tmp_path / "zig"), "ziglang"]
    subprocess.run(command, check=True, timeout=300)
    (tmp_path / "bin").mkdir()

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_harness(root, *arguments, PATH=str(tmp_path / "bin"), PYTHONPATH=str(tmp_path / "zig"), CXX="")

    shown = run("doctor")
    assert "zig" in shown.stdout, shown.stdout
    done = run("check", "--require", "simulated")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "right on the virtual NPU" in done.stdout
