"""Faults planted in starters: the virtual NPU must catch each, and its report must point at the cause."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness import project as projects
from harness.compiler.client import Compiler, Request
from harness.execution import run_case
from harness.project import Project
from harness.spec import Array, Case
from harness.vnpu.build import build
from harness.vnpu.run import RunError, run
from lowering import foreign_modules

pytestmark = pytest.mark.negative


@dataclass(frozen=True)
class Fault:
    """One fault: what is replaced in ``kernel.py``, the problem that shows it, what the report must say."""

    name: str
    starter: str
    shape: Mapping[str, int]
    old: str
    new: str
    report: str
    fill: str = "normal"


ROWS = {"M": 77, "N": 2500}
GEMM = {"batch": 2, "M": 200, "N": 300, "K": 150}
FUSED = {"M": 150, "N": 600, "K": 96}
ATTENTION = {"batch": 1, "heads": 2, "kv_heads": 1, "seq_q": 200, "seq_kv": 300, "head_dim": 128}
UNWRITTEN, EARLY = "were never written", "come from a workspace before it was written"
UNINITIALISED = "come from on-chip memory that was never written"
WRONG = "elements wrong"  # the comparison's own words

FAULTS = (
    # Tiles at the wrong place.
    Fault("row off by one", "vector/softmax", ROWS, "vid * rows\n", "vid * rows + 1\n", UNWRITTEN),
    Fault("both cores on one half", "vector/softmax", ROWS, "vid * rows\n", "0 * rows\n", UNWRITTEN),
    Fault(
        "column of the second pass",
        "vector/softmax",
        ROWS,
        "X[row, (j + 1) % n_num * block_N], x_ub)",
        "X[row, 0], x_ub)",
        WRONG,
    ),
    Fault(
        "block indices swapped",
        "gemm/matmul",
        GEMM,
        "bm * block_M, bn * block_N])\n\n",
        "bn * block_M, bm * block_N])\n\n",
        WRONG,
    ),
    Fault(
        "addend of another block",
        "mixed/matmul_add",
        FUSED,
        "vid * rows, bn * block_N], io_ub)",
        "vid * rows, 0], io_ub)",
        WRONG,
    ),
    # Tails.
    Fault("row tail dropped", "vector/softmax", ROWS, "T.ceildiv(M, block_M)", "M // block_M", UNWRITTEN),
    Fault("column tail dropped", "vector/softmax", ROWS, "T.ceildiv(N, block_N)", "N // block_N", UNWRITTEN),
    Fault("K tail dropped", "gemm/matmul", GEMM, "T.ceildiv(K, block_K)", "K // block_K", WRONG),
    Fault(
        "tail not padded",
        "vector/softmax",
        ROWS,
        "_N], x_ub, pad_value=-T.infinity(accum_dtype)",
        "_N], x_ub",
        WRONG,
        "zeros",
    ),
    Fault("divisor counts the padding", "vector/rms_norm", ROWS, "1.0 / N", "1.0 / (n_num * block_N)", WRONG),
    Fault(
        "keys beyond the end count",
        "flash_attention/forward",
        ATTENTION,
        "masked = causal or trips * block_N > seq_kv",
        "masked = causal",
        WRONG,
    ),
    # State that is not set up or not carried on.
    Fault("no init on the first K step", "gemm/matmul", GEMM, "init=(k == 0)", "init=False", UNINITIALISED),
    Fault("init on every K step", "gemm/matmul", GEMM, "init=(k == 0)", "init=True", WRONG),
    Fault(
        "maximum not initialised",
        "vector/softmax",
        ROWS,
        "T.tile.fill(row_max, T.min_value(accum_dtype))",
        "pass",
        UNINITIALISED,
    ),
    Fault(
        "maximum starts at zero",
        "vector/softmax",
        ROWS,
        "T.tile.fill(row_max, T.min_value(accum_dtype))",
        "T.tile.fill(row_max, 0.0)",
        r"NaN|wrong",
        "low",
    ),
    Fault("sum not rescaled", "vector/softmax", ROWS, "T.tile.mul(row_sum, row_sum, row_max)", "pass", WRONG),
    Fault(
        "output not rescaled",
        "flash_attention/forward",
        ATTENTION,
        "T.tile.row_expand_mul_experiment(acc_sum, acc_sum, decay, lanes)",
        "pass",
        WRONG,
    ),
    # Cube and vector cores.
    Fault("missing cross-core wait", "mixed/matmul_add", FUSED, "T.wait_cross_flag(TILE_READY)", "pass", EARLY),
    Fault(
        "wait for another flag",
        "mixed/matmul_add",
        FUSED,
        "T.wait_cross_flag(TILE_READY)",
        "T.wait_cross_flag(TILE_READY + 1)",
        r"deadlock.*vector core 0 of block 0 waits for flag 1.*wait_cross_flag\(1\)",
    ),
    Fault(
        "vector halves swapped",
        "mixed/matmul_add",
        FUSED,
        "workspace_1[bm * block_M + vid * rows",
        "workspace_1[bm * block_M + (1 - vid) * rows",
        WRONG,
    ),
    Fault(
        "wrong workspace tile",
        "mixed/matmul_add",
        FUSED,
        "workspace_1[bm * block_M, bn * block_N])",
        "workspace_1[bm * block_M, 0])",
        EARLY,
    ),
    # Outside of a tensor.
    Fault(
        "write into the next batch",
        "gemm/matmul",
        GEMM,
        "C[b, bm",
        "C[b + 1, bm",
        r"outside of a tensor: write .* of C .*past the last",
    ),
    Fault(
        "read from the next batch", "gemm/matmul", GEMM, "A[b, bm", "A[b + 1, bm", r"read outside of a tensor:.*  A "
    ),
)


class Planted:
    """The virtual NPU with a kernel that was tampered with."""

    name = "virtual NPU"

    def __init__(self, project: Project, kernel: Path, compiler: Compiler) -> None:
        self.project, self.kernel, self.compiler = project, kernel, compiler

    def run(self, inputs: Sequence[Array], options: Mapping[str, Any]) -> tuple[Array, ...]:
        arguments = self.project.check_inputs()(*inputs, device="cpu", **options)
        request = Request(self.kernel, self.project.name, arguments, "pto", self.project.platform)
        return run(build(self.compiler.lower(request), self.compiler.package), inputs, time_limit=60).outputs


@pytest.fixture
def judge(package: Callable[..., Path], opened: Compiler, tmp_path: Path) -> Callable[[Fault, bool], str]:
    """Runs the fault's problem with or without the fault; returns the report, empty when the numbers are right."""

    def make(fault: Fault, planted: bool) -> str:
        scenario, operator = fault.starter.split("/")
        name = f"planted_{operator}"
        project = projects.load(package(kernel_name=name, scenario=scenario, operator=operator))
        kernel = tmp_path / "kernel.py"
        text = project.kernel.read_text()
        assert text.count(fault.old) >= 1, f"{fault.starter} no longer contains {fault.old!r}"
        kernel.write_text(text.replace(fault.old, fault.new, 1) if planted else text)
        case = Case(name="planted", level="l1", shape=fault.shape, fill=fault.fill)
        with foreign_modules():
            try:
                return run_case(project, project.spec(), case, Planted(project, kernel, opened)).report
            except RunError as error:
                return str(error)

    return make


@pytest.fixture(scope="module")
def sound() -> set[str]:
    """Starters and problems that were found right without a fault."""
    return set()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_fault_is_caught(judge: Callable[[Fault, bool], str], sound: set[str], fault: Fault) -> None:
    if fault.starter not in sound:
        assert judge(fault, False) == ""
        sound.add(fault.starter)
    report = judge(fault, True)
    assert re.search(fault.report, report, re.DOTALL), report or "the fault was not noticed"
