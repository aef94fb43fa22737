"""Rows on an NPU: a worker process per case, msprof around it where there is one."""

from __future__ import annotations

import configparser
import csv
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import catalog
from harness.bench.result import BenchError, Row
from harness.bench.worker import FLUSH_ONLY, Order, statistics
from harness.clock.model import Chip
from harness.project import Project
from harness.spec import Case, Spec

TIME_LIMIT = 1800.0  # seconds for one worker; bisheng compiles in it
DURATIONS = ("Task Duration(us)", "Duration(us)")  # as msprof's versions call it


def measure(
    project: Project, spec: Spec, case: Case, *, blocks: Mapping[str, int] | None = None, repetitions: int = 50,
    warmup: int = 10, npu: int | None = None, baseline: bool = True,
) -> tuple[Row, str]:  # fmt: skip
    """Times one case on an NPU: correctness first, then the kernel, then the operator a user would call otherwise.

    Args:
        blocks: Block sizes in place of the kernel's defaults.
        npu: Which one; default: the first that is visible.

    Returns:
        The row, and the device's name.

    Raises:
        BenchError: The kernel is wrong, or a worker failed.
    """
    order = Order(str(project.root), case.name, dict(blocks or {}), warmup=warmup, repetitions=repetitions)
    answer, tasks = _run(order, npu)
    times, source, grid = _device_times(answer, tasks, order)
    median, spread = statistics(times)
    host, _ = statistics(answer["host_us"])
    work, chip = spec.work(case), find_device_chip(project.platform, answer["device"])
    notes = [] if source != "events" else ["timed by events, which include the launch: msprof is not installed"]
    if chip is None:
        notes.append(f"no share of the peak: CANN's platform files do not describe {answer['device']!r}")
    record = catalog.load().operator(project.scenario, project.operator)
    expression = record.get("baseline", "") if baseline else ""
    baseline_us = None
    if expression:
        try:
            baseline_us = statistics(_baseline_times(replace(order, baseline=expression, check=False), npu))[0]
        except BenchError as error:
            notes.append(f"baseline {expression}: {error}")
    arguments = dict(blocks or case.shape)
    row = Row(
        case=case.name,
        shape=arguments,
        microseconds=median,
        spread=spread,
        source=source,
        flops=work.flops,
        bytes=work.bytes,
        peak_tflops=chip.peak_tflops(case.dtype or project.dtype, cube="L0C" in record.get("memory", ()))
        if chip
        else 0.0,
        memory_tbps=chip.hbm_tbps if chip else 0.0,
        host_us=max(0.0, host),
        baseline_us=baseline_us,
        block_dim=grid,
        max_error=answer["max_error"],
        notes=tuple(notes),
    )
    return row, str(answer["device"])


def _baseline_times(order: Order, npu: int | None) -> list[float]:
    answer, tasks = _run(order, npu)
    return _device_times(answer, tasks, order)[0]


def _run(order: Order, npu: int | None) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Runs the worker, under msprof where it is installed; returns its answer and msprof's rows."""
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))}
    if npu is not None:
        environment["ASCEND_RT_VISIBLE_DEVICES"] = str(npu)
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        command = [sys.executable, "-m", "harness.bench.worker", order.to_json()]
        if profiler := shutil.which("msprof"):
            script = Path(scratch, "worker.sh")  # msprof splits its --application at blanks: no quoting survives
            script.write_text(f"exec {shlex.join(command)}\n", encoding="utf-8")
            command = [profiler, f"--output={scratch}", f"--application=sh {script}"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIME_LIMIT, env=environment, cwd=order.root
            )
        except subprocess.TimeoutExpired:
            raise BenchError(f"case {order.case}: no result after {TIME_LIMIT:.0f} s") from None
        answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if not answers:
            tail = (done.stderr or done.stdout).strip()[-1500:]
            raise BenchError(f"case {order.case}: the worker ended with status {done.returncode}: {tail}")
        answer: dict[str, Any] = json.loads(answers[-1])
        if "error" in answer:
            raise BenchError(f"case {order.case}: {answer['error']}")
        return answer, _op_summary(Path(scratch)) if profiler else []


def _op_summary(folder: Path) -> list[dict[str, str]]:
    """The rows of msprof's op_summary files, in the order in which the tasks started."""
    rows: list[dict[str, str]] = []
    for path in sorted(folder.glob("PROF_*/mindstudio_profiler_output/op_summary_*.csv")):
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows += list(csv.DictReader(file))
    return sorted(rows, key=lambda row: float((row.get("Task Start Time(us)") or "0").strip()))


def _device_times(
    answer: Mapping[str, Any], tasks: Sequence[Mapping[str, str]], order: Order
) -> tuple[list[float], str, int | None]:
    """Device microseconds of every repetition, where they come from, and the grid.

    The worker flushes the cache before every call, and does only that at first: what follows a flush up to the next one
    belongs to one call.
    """
    name = next((n for n in DURATIONS if tasks and n in tasks[0]), None)
    if name is None:
        return list(answer["events_us"]), "events", None
    kinds = [task.get("OP Type") or task.get("Op Name", "") for task in tasks]
    flush = set(kinds[:FLUSH_ONLY])
    calls: list[list[Mapping[str, str]]] = []
    for kind, task in zip(kinds, tasks, strict=True):
        if kind in flush:
            calls.append([])
        elif calls:
            calls[-1].append(task)
    timed = [call for call in calls if call][-order.repetitions :]
    if len(timed) != order.repetitions:
        return list(answer["events_us"]), "events", None
    grid = next((int(float(v)) for key in ("Block Dim", "Block Num") if (v := timed[-1][0].get(key, "").strip())), None)
    return [sum(float(task[name]) for task in call) for call in timed], "msprof Task Duration", grid


def find_device_chip(platform: str, device: str) -> Chip | None:
    """The chip as CANN's platform files describe it; None where they do not.

    Args:
        device: Name that torch_npu gives, as ``Ascend910B1``.
    """
    home = os.environ.get("ASCEND_HOME_PATH")
    files = sorted(Path(home).glob(f"*/data/platform_config/{device}.ini")) if home and device else []
    if not files:
        return None
    config = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#", ";"))
    try:
        config.read(files[0], encoding="utf-8")
        cores = int(config["SoCInfo"]["cube_core_cnt"])
        ghz = int(config["AICoreSpec"]["cube_freq"]) / 1000
    except (configparser.Error, KeyError, ValueError, OSError):
        return None
    known = catalog.load().hardware.get(platform, {})
    row = known.get("chips", {}).get(device.removeprefix("Ascend"), {})
    if not row and len(known.get("chips", {})) == 1:
        row = next(iter(known["chips"].values()))
    macs = int(known.get("macs_per_cycle", 4096))
    return Chip(device.removeprefix("Ascend"), platform, cores, ghz, float(row.get("hbm_tbps", 0)), macs)


def npu_count() -> int:
    """NPUs that this process can see."""
    import torch
    import torch_npu  # noqa: F401  # registers torch.npu

    return int(torch.npu.device_count())
