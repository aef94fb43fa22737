"""Broken kernels fail at the right rung, and the message names the true line and the real cause."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import run_harness
from repository import NAME

pytestmark = [pytest.mark.negative, pytest.mark.usefixtures("compiler")]

Package = Callable[..., Path]
Edit = Callable[[str], str]


@pytest.fixture
def broken(package: Package, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Checks a package whose kernel was edited; returns the rung that failed, with the line that was edited."""

    def check(edit: Edit, **answers: Any) -> dict[str, Any]:
        root = shutil.copytree(package(kernel_name=NAME, **answers), tmp_path / "package")
        kernel = root / f"src/{NAME}/kernel.py"
        before = kernel.read_text(encoding="utf-8")
        after = edit(before)
        assert after != before, "the edit found nothing to change"
        kernel.write_text(after, encoding="utf-8")
        done = run_harness(root, "check", "--json")
        rungs = json.loads(done.stdout)["rungs"]
        failed: list[dict[str, Any]] = [rung for rung in rungs if rung["status"] == "failed"]
        assert done.returncode == 1, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        line = next(n for n, (a, b) in enumerate(zip(before.split("\n"), after.split("\n"), strict=False), 1) if a != b)
        return failed[0] | {"line": line, "text": "\n".join([failed[0]["summary"], *failed[0]["details"]])}

    return check


def replace(pattern: str, replacement: str) -> Edit:
    """Replaces the first match of a regular expression."""
    return lambda text: re.sub(pattern, replacement, text, count=1, flags=re.MULTILINE)


GEMM = {"scenario": "gemm", "operator": "matmul"}
# What is edited, in which package; the rung that must fail (any where empty); what the message must hold, and whether
# it must name the edited line.
CASES = [
    pytest.param(replace(r"^def (\w+)\(", r"def \1(("), {}, "parsed", "", True, id="syntax-error"),
    pytest.param(replace(r"T\.copy\(\w+", "T.copy(no_name"), {}, "", "no_name", True, id="undefined-name"),
    pytest.param(replace(r"T\.copy\(", "T.copi("), {}, "", "copi", True, id="unknown-primitive"),
    pytest.param(
        replace(r"A: T\.Tensor\(\(batch, M, K\)", "A: T.Tensor((M, K)"), GEMM, "", "A", False, id="wrong-rank"
    ),
    pytest.param(replace(r"(alloc_fragment.*), accum_dtype", r"\1, dtype"), GEMM, "", "accum", True, id="accumulator"),
    pytest.param(replace("AUTO_SYNC: True", "AUTO_SYNC: False"), {}, "conventions", "AUTO_SYNC", True, id="switch"),
    pytest.param(
        replace(r"out_idx=\[\d+\]", "out_idx=[-1]"), {}, "conventions", "out_idx", True, id="negative-out-idx"
    ),
    pytest.param(replace(r"block_M: int = \d+", "block_M: int = 4096"), GEMM, "", "L0", False, id="overflow"),
]


@pytest.mark.parametrize(("edit", "answers", "rung", "words", "named"), CASES)
def test_broken_kernel(
    broken: Callable[..., dict[str, Any]], edit: Edit, answers: dict[str, str], rung: str, words: str, named: bool
) -> None:
    failed = broken(edit, **answers)
    assert not rung or failed["rung"] == rung, failed["text"]
    assert words in failed["text"]
    # Or the line before: where the table begins whose entry is wrong.
    assert any(f"kernel.py:{failed['line'] - above}" in failed["text"] for above in (0, 1)) or not named, failed["text"]


@pytest.mark.parametrize(
    ("path", "old", "new", "rung", "words"),
    [
        (
            f"src/{NAME}/reference.py",
            "    return",
            "    return missing or",
            "simulated",
            "NameError: name 'missing' is not",
        ),
        (f"src/{NAME}/reference.py", "    return", "    raise SystemExit(0)\n    return", "simulated", "SystemExit: 0"),
        ("tests/spec.py", 'case.shape["N"]', 'case.shape["Q"]', "lowered", "KeyError: 'Q'"),
    ],
    ids=["reference", "exit", "spec"],
)
def test_an_exception_in_the_users_code_names_its_line(
    package: Package, tmp_path: Path, path: str, old: str, new: str, rung: str, words: str
) -> None:
    root = shutil.copytree(package(kernel_name=NAME), tmp_path / "package")
    text = (root / path).read_text()
    assert old in text
    (root / path).write_text(text.replace(old, new, 1))
    line = text[: text.index(old)].count("\n") + 1
    done = run_harness(root, "check", "--json")
    failed = next(rung for rung in json.loads(done.stdout)["rungs"] if rung["status"] == "failed")
    assert (failed["rung"], done.returncode) == (rung, 1)
    assert failed["summary"].startswith(f"{path}:{line}: {words}")
    assert "Traceback" not in done.stderr


def test_a_wrong_host_function_fails_at_simulated(package: Package, tmp_path: Path) -> None:
    root = shutil.copytree(package(kernel_name=NAME, scenario="vector", operator="add"), tmp_path / "package")
    host = root / f"src/{NAME}/__init__.py"
    text = host.read_text()
    host.write_text(text.replace("check_inputs(a, b))(a, b)", "check_inputs(a, b))(b, b)", 1))
    assert host.read_text() != text
    rungs = {rung["rung"]: rung for rung in json.loads(run_harness(root, "check", "--json").stdout)["rungs"]}
    assert (rungs["lowered"]["status"], rungs["simulated"]["status"]) == ("passed", "failed")


def test_a_file_that_the_kernel_reads_is_part_of_it(package: Package, tmp_path: Path) -> None:
    root = shutil.copytree(package(kernel_name=NAME, scenario="vector", operator="add"), tmp_path / "package")
    kernel, factor = root / f"src/{NAME}/kernel.py", root / f"src/{NAME}/factor.txt"
    text = kernel.read_text()
    head = "from pathlib import Path\n\nimport tilelang\n"
    text = text.replace("import tilelang\n", head, 1).replace(
        "\npass_configs", '\nFACTOR = float(Path(__file__).with_name("factor.txt").read_text())\npass_configs', 1
    )
    kernel.write_text(text.replace("+ b_ub[i, j]", "+ b_ub[i, j] * FACTOR"))
    for value, status in (("1.0", "passed"), ("2.0", "failed")):
        factor.write_text(value)
        rungs = {rung["rung"]: rung for rung in json.loads(run_harness(root, "check", "--json").stdout)["rungs"]}
        assert rungs["simulated"]["status"] == status, rungs


def test_wrong_numbers_fail_at_simulated(broken: Callable[..., dict[str, Any]]) -> None:
    failed = broken(replace(r"T\.tile\.exp\(", "T.tile.abs("), scenario="vector", operator="softmax")
    assert failed["rung"] == "simulated", failed["text"]
    assert "expected" in failed["text"]
