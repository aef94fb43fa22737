"""The benchmark: documents and verdicts, the device path against test doubles of torch_npu and msprof, the estimate."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from conftest import Render, run_harness
from harness import project as projects
from harness.bench import pictures, show, tune
from harness.bench.result import BenchError, Document, Row, compare, summary
from harness.bench.worker import statistics
from harness.clock import Estimate
from harness.clock.estimate import Hot

DOUBLES = Path(__file__).parent / "doubles"
CHIP: dict[str, Any] = {"peak_tflops": 300.0, "memory_tbps": 1.5}
ROW = Row(case="one", shape={"M": 8}, microseconds=100.0, source="events", flops=10**9, bytes=10**6, **CHIP)


def result(*rows: Row, kind: Any = "measurement", chip: str = "910B1") -> Document:
    return Document(
        kind=kind, project="k", platform="A2", backend="ascendc", chip=chip, device="d", rows=rows or (ROW,)
    )


# --- documents ----------------------------------------------------------------------------------------------


def test_the_roofline_position_of_a_row() -> None:
    assert ROW.tflops == pytest.approx(10)
    assert ROW.gbps == pytest.approx(10)
    assert ROW.bound == "compute"
    assert ROW.share == pytest.approx(10 / 300)
    slow = replace(ROW, bytes=10**8)
    assert slow.bound == "memory"
    assert slow.share == pytest.approx(1.0 / 1.5)
    assert replace(ROW, peak_tflops=0.0).share is None


def test_a_document_survives_its_file(tmp_path: Path) -> None:
    document = result(replace(ROW, notes=("a", "b"), details={"launch_us": 3.0}))
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(document.to_json()))
    assert Document.load(path) == document
    history = tmp_path / "history.jsonl"
    history.write_text("\n".join(json.dumps(result(replace(ROW, microseconds=us)).to_json()) for us in (1.0, 2.0)))
    assert Document.load(history).rows[0].microseconds == 2.0


@pytest.mark.parametrize("text", ["", "{}", '{"schema": 1}', '{"schema": 7}', "[1]", '{"schema": 1, "rows": [{}]}'])
def test_a_damaged_document_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bench.json"
    path.write_text(text)
    with pytest.raises(BenchError):
        Document.load(path)


@pytest.mark.parametrize(
    ("kind", "spread", "old", "new", "verdict"),
    [
        ("measurement", 0.0, 100, 101.5, "no difference"),  # below the least noise
        ("measurement", 0.0, 100, 103, "slower"),
        ("measurement", 0.05, 100, 108, "no difference"),  # the spreads of both
        ("measurement", 0.05, 100, 88, "faster"),
        ("estimate", 0.0, 100, 104, "no difference"),  # below what the model resolves
        ("estimate", 0.0, 100, 106, "slower"),
    ],
)
def test_a_verdict_respects_the_noise(kind: str, spread: float, old: float, new: float, verdict: str) -> None:
    before, after = (result(replace(ROW, microseconds=us, spread=spread), kind=kind) for us in (old, new))
    (change,) = compare(before, after)
    assert change.verdict == verdict
    assert verdict in summary([change])


def test_the_launch_does_not_dilute_a_difference() -> None:
    before, after = (
        result(replace(ROW, microseconds=us, details={"launch_us": 10.0}), kind="estimate") for us in (20.0, 21.0)
    )
    assert compare(before, after)[0].ratio == pytest.approx(1.1)


def test_what_does_not_belong_together_is_not_compared() -> None:
    with pytest.raises(BenchError, match="estimate and measurement"):
        compare(result(kind="estimate"), result())
    with pytest.raises(BenchError, match="different chips"):
        compare(result(), result(chip="910B4"))
    with pytest.raises(BenchError, match="no case of equal name and shape"):
        compare(result(), result(replace(ROW, shape={"M": 9})))


def test_upstreams_table() -> None:
    text = show.bench_mark([replace(ROW, baseline_us=50.0, block_dim=24, max_error=0.001), ROW])
    assert text.splitlines()[0] == "| case | baseline µs | TileLang µs | ratio | block dim | max diff |"
    assert text.splitlines()[2] == "| one | 50.0 | 100.0 | 50.00% | 24 | 0.001 |"
    assert text.splitlines()[3] == "| one | – | 100.0 | – | – | – |"


def test_statistics() -> None:
    median, spread = statistics([10.0] * 50 + [30.0] * 20 + [1000.0])
    assert median == 10.0
    assert spread == pytest.approx(1.0)
    assert statistics([7.0]) == (7.0, 0.0)


# --- tuning -------------------------------------------------------------------------------------------------


def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    log = tune.Log(tmp_path / "results" / "tune.jsonl", "kernel text")
    todo = [{"block_M": size} for size in (16, 32, 64)]
    tried: list[int] = []

    def attempt(blocks: Any, number: int) -> tune.Trial:
        tried.append(blocks["block_M"])
        if blocks["block_M"] == 64 and len(tried) < 4:
            raise KeyboardInterrupt
        return tune.Trial(dict(blocks), 100.0 / blocks["block_M"])

    with pytest.raises(KeyboardInterrupt):
        list(tune.sweep(todo, attempt, log))
    with log.path.open("a") as file:
        file.write("{damaged\n")
    trials = list(tune.sweep(todo, attempt, log))
    assert tried == [16, 32, 64, 64]
    best = tune.proposal(trials, {"block_M": 16})
    assert best is not None
    assert best.blocks == {"block_M": 64}
    assert tune.proposal(trials, {"block_M": 64}) is None
    assert tune.Log(log.path, "another kernel").read() == []


def test_workers_take_a_device_each(tmp_path: Path) -> None:
    numbers: list[int] = []

    def attempt(blocks: Any, number: int) -> tune.Trial:
        numbers.append(number)
        return tune.Trial(dict(blocks), None, "does not fit")

    trials = list(tune.sweep([{"b": i} for i in range(20)], attempt, tune.Log(tmp_path / "l"), workers=3))
    assert set(numbers) <= {0, 1, 2}
    assert tune.proposal(trials, {"b": 0}) is None


def test_what_cannot_fit_is_not_tried(package: Render) -> None:
    """By the arithmetic of the starter's record; the defaults are tried whatever it says."""
    project = projects.load(package(kernel_name="gemm", scenario="gemm"))
    todo = tune.candidates(project)
    found = tune.misfits(project, todo, {"M": 1024, "N": 1024, "K": 1024})
    reasons = {tuple(trial.blocks.values()): trial.reason for trial in found}
    assert reasons[512, 512, 128].startswith("does not fit: L0A 131,072 of 65,536 bytes")
    assert (128, 128, 128) not in reasons
    assert 0 < len(found) < len(todo)
    assert tune.misfits(replace(project, block=dict(todo[-1])), [todo[-1]], {}) == []
    assert tune.misfits(replace(project, operator=""), todo, {}) == []


def test_a_sweep_fits_a_terminal() -> None:
    trials = [tune.Trial({"block_M": n, "block_N": 256}, float(n)) for n in range(1, 41)]
    trials += [tune.Trial({"block_M": 512, "block_N": n}, None, f"{tune.MISFIT}: L0C 9 of 1 bytes") for n in (7, 8)]
    trials.append(tune.Trial({"block_M": 3, "block_N": 3}, None, "the compiler crashed with SIGSEGV " + "x" * 60))
    shown = io.StringIO()
    show.print_trials(Console(file=shown, width=80), trials, {"block_M": 40, "block_N": 256})
    lines = shown.getvalue().splitlines()
    assert len(lines) < 30
    assert sum(line.startswith("│") for line in lines) == show.SHOWN + 1
    assert any("40.0 │ default" in line for line in lines)
    assert "and 24 slower ones" in lines
    assert "2 not tried, they cannot fit, as block_M=512, block_N=7: L0C 9 of 1 bytes" in lines
    assert any(line.startswith("1 without a time, as block_M=3, block_N=3: the compiler crashed") for line in lines)


def test_a_verdict_names_the_launch_where_it_dominates() -> None:
    facts: dict[str, Any] = dict.fromkeys(Estimate.__dataclass_fields__, 0.0)
    facts |= {"busy": {}, "path": (), "bytes": {}, "notes": (), "trace": None, "limit": "vector instructions"}
    hot = Hot("TEXP", 98, "TEXP(x, x);", "vector", "V", 0.5)
    for pipes, said in ((1.6, "by the launch: 10 of 11.6 µs; the rest by vector"), (90.0, "by vector instructions")):
        found = Estimate(**facts | {"microseconds": pipes + 10, "pipes_us": pipes, "launch_us": 10.0, "hot": (hot,)})
        shown = io.StringIO()
        show.print_estimate(Console(file=shown, width=120), "one", found)
        assert f"limited {said}" in shown.getvalue()
    assert (
        "python -m harness source --backend pto --case one\n    50% vector V, line 98: TEXP(x, x);" in shown.getvalue()
    )


# --- on the double of an NPU --------------------------------------------------------------------------------

KERNEL = """
import os
import torch


def softmax(M, N, dtype="float16", accum_dtype="float32", block_M=16, block_N=1024):
    microseconds = 20.0 + abs(block_M - 32) + abs(block_N - 1024) / 64
    return lambda x: torch.kernel_softmax(x, microseconds, wrong="DOUBLE_WRONG" in os.environ)
"""
INI = """[SoCInfo]
cube_core_cnt=24
vector_core_cnt=48
[AICoreSpec]
cube_freq=1850
ub_size=196608
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def npu(package: Render, tmp_path: Path) -> Run:
    """Runs ``bench`` in a softmax package on a host with doubles of torch_npu, msprof and CANN's platform files."""
    root = shutil.copytree(package(kernel_name="softmax"), tmp_path / "softmax")
    (root / "src" / "softmax" / "kernel.py").write_text(KERNEL)
    cann = tmp_path / "cann" / "arm64-linux" / "data" / "platform_config"
    cann.mkdir(parents=True)
    (cann / "Ascend910B1.ini").write_text(INI)
    profiler = tmp_path / "bin"
    profiler.mkdir()
    (profiler / "msprof").symlink_to(DOUBLES / "msprof")

    def run(*arguments: str, msprof: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        path = f"{profiler}{os.pathsep}{os.environ['PATH']}" if msprof else os.environ["PATH"]
        settings = {
            "PYTHONPATH": str(DOUBLES),
            "PATH": path,
            "ASCEND_HOME_PATH": str(tmp_path / "cann"),
            "COLUMNS": "200",
        }
        small = () if "--case" in arguments else ("--case", "l0-64x1024")
        words = ("bench", "--device", "npu", "--no-pictures", *small, *arguments)
        return run_harness(root, *words, timeout=600, **settings | environment)

    return run


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return found


def test_device_time_is_msprofs_task_duration(npu: Run) -> None:
    done = npu("--json", "--repetitions", "20")
    (row,) = rows(done)
    assert row["source"] == "msprof Task Duration"
    assert row["microseconds"] == pytest.approx(36, rel=0.02)  # not the flush, not the event
    assert 0 < row["spread"] < 0.03
    assert row["block_dim"] == 24
    assert row["host_us"] >= 0
    assert row["baseline_us"] == pytest.approx(30, rel=0.02)
    assert row["max_error"] < 1e-3
    assert row["peak_tflops"] > 0
    assert row["share"] == pytest.approx(row["bytes"] / row["microseconds"] / 1e6 / 1.6, rel=0.01)
    document = json.loads(done.stdout)
    assert (document["kind"], document["chip"], document["device"]) == ("measurement", "910B1", "Ascend910B1")


def test_without_msprof_events_are_used_and_named(npu: Run) -> None:
    (row,) = rows(npu("--json", msprof=False))
    assert row["source"] == "events"
    assert row["microseconds"] == pytest.approx(38, rel=0.02)
    assert any("msprof is not installed" in note for note in row["notes"])


def test_an_unknown_chip_has_no_share(npu: Run) -> None:
    (row,) = rows(npu("--json", DOUBLE_NAME="Ascend999"))
    assert row["share"] is None
    assert any("no share" in note for note in row["notes"])


def test_a_wrong_kernel_is_not_timed(npu: Run) -> None:
    done = npu(DOUBLE_WRONG="1")
    assert done.returncode == 1
    assert "AssertionError" in done.stdout
    assert "µs" not in done.stdout


def test_the_table_of_a_measurement(npu: Run) -> None:
    done = npu("--repetitions", "5")
    assert done.returncode == 0, done.stderr
    assert "measured on Ascend910B1" in done.stdout
    assert done.stdout.count("| l0-") == 1
    assert "device time: msprof Task Duration" in done.stdout


def test_a_sweep_on_two_npus_proposes_and_resumes(npu: Run, tmp_path: Path) -> None:
    blocks = ("--tune", "block_M=16,32", "block_N=1024")
    done = npu(*blocks, "--repetitions", "5", DOUBLE_NPUS="0,1")
    assert done.returncode == 0, done.stderr
    assert "proposed: block_M=32, block_N=1024" in done.stdout
    kernel, update = (done.stdout.index(part) for part in ("1. in src/softmax/kernel.py", "2. then store them"))
    assert kernel < update
    assert "copier update --trust -d block_m=32 -d block_n=1024" in done.stdout
    (log,) = (tmp_path / "softmax" / "benchmarks" / "results").glob("tune-*.jsonl")
    lines = log.read_text().splitlines()
    assert len(lines) == 2
    again = npu(*blocks, DOUBLE_WRONG="1")  # nothing is measured again, or it would be wrong
    assert "proposed: block_M=32" in again.stdout
    assert log.read_text().splitlines() == lines


def test_a_result_file_is_compared(npu: Run, tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text(npu("--json").stdout)
    done = npu("--against", str(old))
    assert "no difference" in done.stdout
    document = json.loads(old.read_text())
    document["rows"][0]["microseconds"] /= 2
    old.write_text(json.dumps(document))
    assert "slower" in npu("--against", str(old)).stdout


def test_wrong_use_is_told(npu: Run) -> None:
    assert npu("--repetitions", "0").returncode == 3
    assert npu("--case", "nosuch").returncode == 3
    assert "no block 'block_X'" in npu("--tune", "block_X=3").stdout
    assert npu("--against", "no-such-revision").returncode == 1


def test_an_npu_that_is_not_there(package: Render) -> None:
    done = run_harness(package(kernel_name="softmax"), "bench", "--device", "npu")
    assert done.returncode == 2
    assert "--device npu: PyTorch is not installed" in done.stdout


# --- the estimate -------------------------------------------------------------------------------------------


@pytest.fixture
def softmax(package: Render, compiler: None, tmp_path: Path) -> Path:
    return shutil.copytree(package(kernel_name="softmax"), tmp_path / "softmax")


@pytest.mark.ladder
def test_an_estimate_is_labelled_and_drawn(softmax: Path) -> None:
    done = run_harness(softmax, "bench", "--device", "virtual", COLUMNS="200")
    assert done.returncode == 0, done.stderr
    assert "estimate of the virtual clock, no device" in done.stdout
    assert "not a measurement" in done.stdout
    assert "limited by" in done.stdout
    assert "the numbers were not checked: python -m harness check" in done.stdout
    assert "python -m harness source --backend pto --case l0-1024x4096\n" in done.stdout
    folder = softmax / "benchmarks" / "results"
    names = sorted(path.name for path in folder.iterdir())
    assert [name.split("-")[-1] for name in names] == [
        "timeline.png",
        "timeline.svg",
        "trace.json",
        "roofline.png",
        "roofline.svg",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.glob("*.png"))
    assert all("estimate" in path.read_text() for path in folder.glob("*.svg"))
    picture = next(folder.glob("*timeline.svg")).read_text()
    assert "softmax: pipes of block" in picture
    assert "a bar for every instruction" in picture
    (trace,) = folder.glob("*.json")
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    assert any(event["name"] == "TROWMAX" and event["dur"] > 0 for event in events)


@pytest.mark.ladder
def test_a_revision_is_compared(softmax: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=softmax, check=True, capture_output=True)

    git("init", "--quiet")
    git("add", "--all")
    git("commit", "--quiet", "--message", "first")
    kernel = softmax / "src" / "softmax" / "kernel.py"
    text = kernel.read_text()
    assert "block_N: int = 1024" in text
    kernel.write_text(text.replace("block_N: int = 1024", "block_N: int = 128"))
    done = run_harness(softmax, "bench", "--no-pictures", "--against", "HEAD", COLUMNS="200")
    assert done.returncode == 0, done.stderr
    assert "slower" in done.stdout
    assert "against HEAD: times without launch (10 µs)" in done.stdout


@pytest.mark.ladder
def test_a_history_warns(softmax: Path) -> None:
    history = softmax / "history.jsonl"
    for _ in range(2):
        done = run_harness(softmax, "bench", "--no-pictures", "--history", str(history), GITHUB_ACTIONS="true")
        assert done.returncode == 0, done.stderr
    assert "::warning::" not in done.stdout
    lines = history.read_text().splitlines()
    assert len(lines) == 2
    document = json.loads(lines[-1])
    document["rows"][0]["microseconds"] -= 0.5 * (document["rows"][0]["microseconds"] - 10)
    history.write_text(json.dumps(document) + "\n")
    done = run_harness(softmax, "bench", "--no-pictures", "--history", str(history), GITHUB_ACTIONS="true")
    assert done.returncode == 0
    assert "::warning::softmax: estimate slower" in done.stdout


def test_no_picture_without_a_known_chip(tmp_path: Path) -> None:
    assert pictures.roofline([("a", replace(ROW, memory_tbps=0.0))], tmp_path / "roofline") == []
    paths = pictures.roofline([("a", ROW)], tmp_path / "roofline")
    assert "measured" in paths[0].read_text()
    assert np.frombuffer(paths[1].read_bytes()[:4], "u1").tolist() == [0x89, 0x50, 0x4E, 0x47]
