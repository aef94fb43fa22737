"""Accepted and refused answers through ``--data``, defaults, and one real terminal."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import copier
import pexpect
import pytest
import yaml

import repository

pytestmark = pytest.mark.questions

GEMM = {"scenario": "gemm", "operator": "matmul"}
SOFTMAX = {"scenario": "vector", "operator": "softmax"}


@pytest.fixture(scope="module")
def ask(plain_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Answers the questions without writing anything; returns all answers, hidden values included."""
    destination = tmp_path_factory.mktemp("unused") / "package"

    def run(**data: Any) -> dict[str, Any]:
        worker = copier.run_copy(
            str(plain_template),
            destination,
            data=data,
            defaults=True,
            quiet=True,
            skip_tasks=True,
            pretend=True,
            exclude=["*"],
        )
        return dict(worker.answers.user)

    return run


def test_defaults_give_a_vector_softmax(ask: Any) -> None:
    answers = ask()
    assert {
        name: answers[name] for name in ("kernel_name", "scenario", "operator", "dtype", "platform", "backend")
    } == {
        "kernel_name": "softmax",
        "scenario": "vector",
        "operator": "softmax",
        "dtype": "float16",
        "platform": "A2",
        "backend": "ascendc",
    }
    assert answers["compiler_era"] == "0.1.4"
    assert answers["create_venv"] is True
    assert answers["compile_check"] == "auto"


def test_the_kernel_is_named_for_its_operator(ask: Any) -> None:
    assert ask(**GEMM)["kernel_name"] == "matmul"


def test_derived_values(ask: Any) -> None:
    answers = ask(**GEMM, dtype="bfloat16", m=77, block_m="64")
    assert answers["accum_dtype"] == "float32"
    assert answers["shape"]["M"] == 77
    assert answers["block"]["block_M"] == 64
    assert answers["switches"] == repository.catalog()["scenarios"]["gemm"]["switches"]["0.1.4"]


def test_a5_has_its_own_backend_and_capacities(ask: Any) -> None:
    answers = ask(**GEMM, platform="A5", block_m=256, block_n=256)
    assert answers["backend"] == "pto"
    assert answers["block"]["block_N"] == 256


def test_a_strict_compiler_moves_vector_kernels_to_combine(ask: Any) -> None:
    assert ask(**SOFTMAX)["switches"]["auto_cv_combine"] is False
    assert ask(**SOFTMAX, compiler_era="strict-scope")["switches"]["auto_cv_combine"] is True


def test_defaults_shrink_beside_a_large_block(ask: Any) -> None:
    answers = ask(**GEMM, block_m=512)
    assert answers["block"]["block_N"] * 512 * 4 <= 131_072
    assert answers["block"]["block_K"] * 512 * 2 <= 65_536


NAMES = [
    ("2add", "try add: .*not a snake_case identifier"),
    ("my-op", "try my_op: .*not a snake_case identifier"),
    ("Add", "not a snake_case identifier"),
    ("a__b", "not a snake_case identifier"),
    ("_x", "not a snake_case identifier"),
    ("", "try my_kernel: .*not a snake_case identifier"),
    ("add\n", "not a snake_case identifier"),
    ("softmäx", "not a snake_case identifier"),
    ('so"ft', "not a snake_case identifier"),
    ("it's", "not a snake_case identifier"),
    ("../x", "not a snake_case identifier"),
    ("{{ 7 }}", "not a snake_case identifier"),
    ("class", "Python keyword; try class_kernel"),
    ("match", "Python keyword"),
    ("print", "Python builtin"),
    ("numpy", "installed package"),
    ("torch", "installed package"),
    ("tilelang", "installed package"),
    ("harness", "installed package"),
    ("tests", "installed package"),
    ("json", "standard library"),
    ("kernel", "inside the package"),
    ("reference", "inside the package"),
    ("test_softmax", "pytest.*try softmax"),
    ("x" * 51, "51 characters; at most 50"),
]

REFUSED = [
    *[pytest.param({"kernel_name": name}, message, id=f"name-{name!r}") for name, message in NAMES],
    pytest.param({"description": "  "}, "description is empty", id="description-empty"),
    pytest.param({"description": "a\x07b"}, "control characters", id="description-bell"),
    pytest.param({"description": "a\u2028b"}, "control characters", id="description-line-separator"),
    pytest.param({"description": "x" * 501}, "501 characters; at most 500", id="description-long"),
    pytest.param({"author": ""}, "author is empty", id="author-empty"),
    pytest.param({"license": "GPL"}, "'GPL' is not in", id="license"),
    pytest.param({"scenario": "simd"}, "'simd' is not in", id="scenario"),
    pytest.param({"operator": "conv"}, "'conv' is not in", id="operator"),
    pytest.param(GEMM | {"platform": "A4"}, "'A4' is not in", id="platform"),
    pytest.param(GEMM | {"platform": "A5", "backend": "ascendc"}, "A5 needs the backend pto", id="a5-ascendc"),
    pytest.param(GEMM | {"dtype": "float8_e4m3"}, "A2 has no float8_e4m3: it needs A5", id="fp8-a2"),
    pytest.param(GEMM | {"dtype": "float32"}, "matmul has no float32 variant", id="fp32-gemm"),
    pytest.param(GEMM | {"dtype": "float64"}, "'float64' is not in", id="float64"),
    pytest.param(GEMM | {"compiler_era": "0.2"}, "'0.2' is not in", id="era"),
    pytest.param(GEMM | {"compile_check": "maybe"}, "'maybe' is not in", id="compile-check"),
    pytest.param(GEMM | {"m": 0}, "M=0 is below the minimum of 1", id="m-zero"),
    pytest.param(GEMM | {"m": -5}, "M=-5 is below the minimum", id="m-negative"),
    pytest.param(GEMM | {"m": 2**31}, "32-bit index", id="m-large"),
    pytest.param(GEMM | {"m": "many"}, "invalid literal for int", id="m-text"),
    pytest.param(GEMM | {"block_m": 8}, "below the minimum of 16 .smallest operand of a cube core", id="cube-minimum"),
    pytest.param(GEMM | {"block_m": 100}, "not a multiple of 16; try 96 or 112", id="multiple"),
    pytest.param(GEMM | {"accum_dtype": "float16"}, "accum_dtype is derived", id="derived-accum"),
    pytest.param(GEMM | {"shape": "{}"}, "shape is derived", id="derived-shape"),
    pytest.param({"catalog": "{}"}, "catalog is derived", id="derived-catalog"),
]


@pytest.mark.parametrize(("answers", "message"), REFUSED)
def test_refused(ask: Any, answers: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        ask(**answers)
    if "int" not in message:  # Copier's own message for text where a number belongs
        assert "Validation error for question" in str(raised.value) or "Invalid choice for" in str(raised.value)


OVERFLOWS = [
    pytest.param(GEMM | {"block_m": 128, "block_n": 512}, "L0C", 262_144, 131_072, 64, id="L0C"),
    pytest.param(GEMM | {"block_m": 1024, "block_n": 16, "block_k": 64}, "L0A", 131_072, 65_536, 512, id="L0A"),
    pytest.param(GEMM | {"block_m": 16, "block_n": 1024, "block_k": 64}, "L0B", 131_072, 65_536, 512, id="L0B"),
]


@pytest.mark.parametrize(("answers", "memory", "need", "available", "largest"), OVERFLOWS)
def test_overflow_shows_its_arithmetic(
    ask: Any, answers: dict[str, Any], memory: str, need: int, available: int, largest: int
) -> None:
    with pytest.raises(ValueError, match=f"bytes of {memory}") as raised:
        ask(**answers)
    message = str(raised.value)
    assert f"needs {need:,} bytes of {memory}" in message
    assert f"A2 has {available:,}" in message
    name, fit = re.search(r"largest (\w+) that fits is ([\d,]+)", message).groups()  # type: ignore[union-attr]
    assert int(fit.replace(",", "")) == largest
    ask(**answers | {name.lower(): largest})  # and it really does


def test_unified_buffer_overflow_and_alignment(ask: Any) -> None:
    with pytest.raises(ValueError, match=r"largest block_M that fits is [\d,]+: .*bytes of UB, A2 has 196,352"):
        ask(**SOFTMAX, block_m=4096)
    with pytest.raises(ValueError, match=r"choose .*block_N.* smaller: no block_M fits.*bytes of UB, A2 has 196,352"):
        ask(**SOFTMAX, block_n=65_536)
    with pytest.raises(ValueError, match="multiple of"):
        ask(**SOFTMAX, block_n=100)


def test_every_operator_finds_a_largest_block(ask: Any) -> None:
    """Whatever the operator, an absurd block is refused with the arithmetic, never with a traceback."""
    for scenario, records in repository.catalog()["operators"].items():
        for operator, record in records.items():
            dims = {dim for entries in record["memory"].values() for entry in entries for dim in entry["dims"]}
            name = next((name for name in record["blocks"] if name in dims), None)
            if name is None:  # a size that takes no memory on chip has no largest
                continue
            with pytest.raises(ValueError, match="Validation error for question"):
                ask(scenario=scenario, operator=operator, **{name.lower(): 2**20})


def test_the_scenario_of_a_project_cannot_change(plain_template: Path, tmp_path: Path) -> None:
    project = repository.render(plain_template, tmp_path / "project", SOFTMAX)
    before = (project / "src/softmax/kernel.py").read_bytes()
    with pytest.raises(ValueError, match=r"generated with scenario=vector .* copier copy --trust -d scenario=gemm"):
        repository.render(plain_template, project, {"scenario": "gemm", "operator": "matmul"})
    assert (project / "src/softmax/kernel.py").read_bytes() == before


@pytest.mark.parametrize("change", [{"platform": "A3"}, {"backend": "pto"}, {"compiler_era": "strict-scope"}], ids=str)
def test_platform_backend_and_era_can_change(plain_template: Path, tmp_path: Path, change: dict[str, str]) -> None:
    project = repository.render(plain_template, tmp_path / "project", SOFTMAX)
    kernel = project / "src/softmax/kernel.py"
    kernel.write_text(kernel.read_text() + "# mine\n")
    repository.render(plain_template, project, change)
    stored = yaml.safe_load((project / ".copier-answers.yml").read_text())
    assert {name: stored[name] for name in change} == change
    assert kernel.read_text().endswith("# mine\n")


def test_an_existing_folder_is_not_overwritten_unasked(plain_template: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "README.md").write_text("mine")
    with pytest.raises(copier.errors.InteractiveSessionError, match="--overwrite"):
        copy_without_terminal(plain_template, project)
    assert (project / "README.md").read_text() == "mine"


def copy_without_terminal(template: Path, project: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, Path("/dev/null").open() as nothing:
        patch.setattr(sys, "stdin", nothing)
        repository.render(template, project, overwrite=False)


def test_a_terminal_conversation(git_template: Path, tmp_path: Path) -> None:
    """Asks for real: a refused name is explained and asked again, a choice is taken with the arrow keys."""
    command = shutil.which("copier", path=str(Path(sys.executable).parent)) or "copier"
    arguments = ["copy", "--trust", "--skip-tasks", str(git_template), str(tmp_path / "package")]
    terminal = pexpect.spawn(command, arguments, encoding="utf-8", timeout=60, dimensions=(60, 200))
    terminal.expect("Name of the kernel")
    terminal.send("\x15")  # clear the default
    terminal.send("class\r")
    terminal.expect("is a Python keyword; try class_kernel")
    terminal.send("\x15")
    terminal.send("rows\r")
    terminal.expect("What it computes")
    terminal.send("\r")
    terminal.expect("Who wrote it")
    terminal.send("\r")
    terminal.expect("Licence of")
    terminal.send("\x1b[B\r")  # the second choice
    while terminal.expect(["🎤", "rows is in", pexpect.EOF]) == 0:
        terminal.send("\r")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
    answers = yaml.safe_load((tmp_path / "package/.copier-answers.yml").read_text())
    assert answers["kernel_name"] == "rows"
    assert answers["license"] == "BSD-3-Clause"
    assert answers["operator"] == "softmax"
    assert answers["_commit"] == repository.VERSION


def test_a_relative_template_is_stored_as_an_absolute_one(git_template: Path, tmp_path: Path) -> None:
    """Else the package's updates would look for it below the package."""
    (tmp_path / "templates").symlink_to(git_template.parent)
    command = [sys.executable, "-m", "copier", "copy", "--trust", "--defaults", "--skip-tasks", "--quiet"]
    subprocess.run([*command, "templates/template", "package"], cwd=tmp_path, check=True)
    answers = yaml.safe_load((tmp_path / "package/.copier-answers.yml").read_text())
    assert answers["_src_path"] == str(git_template.resolve())
    checked = subprocess.run(
        [sys.executable, "-m", "copier", "check-update"], cwd=tmp_path / "package", capture_output=True, text=True
    )
    assert "up-to-date" in checked.stdout, checked.stderr
