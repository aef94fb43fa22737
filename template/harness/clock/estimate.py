"""From a trace to an estimate: time, where it goes, and in words what limits the kernel."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness import catalog
from harness.clock.model import GLOBAL_ROUTES, PIPES, ROLES, ROUTES, Chip, Extra, find_chip
from harness.clock.trace import ClockError, Traced, trace
from harness.compiler.lowered import Lowered
from harness.spec import Array, Work

ACCURACY = (
    "an estimate, not a measurement: within 10 % on large GEMM, within -30 % and +20 % on attention kernels; good for "
    "ranking and for finding the limiting pipe"
)
SLACK = 0.05  # differences of two estimates below this mean nothing

# Pipes of a cube core (0) and of a vector core (1), in words.
PIPE_WORDS: Mapping[tuple[int, str], str] = {
    (0, "MTE2"): "GM→L1 loads",
    (0, "MTE1"): "L1→L0 copies",
    (0, "M"): "matrix products",
    (0, "FIX"): "accumulator stores",
    (0, "MTE3"): "L1→GM stores",
    (0, "S"): "the cube core's scalar unit",
    (0, "V"): "vector instructions on the cube core",
    (1, "MTE2"): "GM→UB loads",
    (1, "V"): "vector instructions",
    (1, "MTE3"): "UB→GM stores",
    (1, "S"): "the vector cores' scalar unit",
}


@dataclass(frozen=True)
class Step:
    """A part of the critical path.

    Attributes:
        core: ``cube``, ``vector 0`` or ``vector 1``; empty for waiting that belongs to no pipe.
        pipe: As ``MTE2``; ``issue`` (scalar unit), ``flag`` (cross-core flags on their way) or ``launch``.
        share: Of the path's length.
    """

    core: str
    pipe: str
    share: float


@dataclass(frozen=True)
class Hot:
    """An instruction of the generated code and its share of the critical path."""

    instruction: str
    line: int
    text: str
    core: str
    pipe: str
    share: float


@dataclass(frozen=True)
class Estimate:
    """What the virtual clock says about one kernel at one shape. Always an estimate; print ``accuracy`` with it.

    Attributes:
        kernel: Name of the generated function.
        platform, chip, cores: What it was estimated for.
        microseconds: Kernel time, launch included.
        pipes_us: What the pipes of the busiest core need, without launch.
        memory_us: What global memory needs at its full bandwidth for the problem's compulsory traffic.
        launch_us: Part of ``microseconds`` that is starting the kernel.
        blocks, traced: Blocks of the grid, and how many of them were traced (the rest takes their neighbours' times).
        busy: Share of the time without launch, by core (``cube``, ``vector``) and pipe, average over the cores in use.
        path: The critical path of the slowest block, largest part first.
        hot: Instructions on it, largest share first.
        bytes: Bytes moved by all cores, by route as ``GM→L1``.
        flops, compulsory_bytes: Of the problem (the spec's ``work``).
        tflops, gbps: Achieved, from the problem's figures.
        intensity: Floating point operations per byte of compulsory traffic.
        peak_tflops, hbm_tbps: Of the chip, for the roofline.
        limit: One sentence: what limits the kernel.
        notes: What was assumed or sampled.
        accuracy: What the figures are worth.
        seconds: Time that the estimate took.
        trace: For pictures; no part of the document.
    """

    kernel: str
    platform: str
    chip: str
    cores: int
    microseconds: float
    pipes_us: float
    memory_us: float
    launch_us: float
    blocks: int
    traced: int
    busy: dict[str, dict[str, float]]
    path: tuple[Step, ...]
    hot: tuple[Hot, ...]
    bytes: dict[str, int]
    flops: int
    compulsory_bytes: int
    tflops: float
    gbps: float
    intensity: float
    peak_tflops: float
    hbm_tbps: float
    limit: str
    notes: tuple[str, ...]
    accuracy: str = ACCURACY
    seconds: float = 0.0
    trace: Traced | None = field(default=None, repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Plain values; what ``bench --json`` keeps."""
        data: dict[str, Any] = _rounded(asdict(replace(self, trace=None)))
        del data["trace"]
        return data


def estimate(
    lowered: Lowered,
    package: Path,
    *,
    work: Work,
    platform: str = "",
    chip: str | Chip = "",
    inputs: Sequence[Array] = (),
    scalars: Mapping[str, int] | None = None,
    backend: str = "pto",
    extra: Extra | None = None,
    budget: int = 4_000_000,
) -> Estimate:
    """Estimates a kernel's time on a chip.

    Args:
        lowered: Output of the ``pto`` backend.
        package: The installed ``tilelang`` folder, for the device headers.
        work: Arithmetic and compulsory traffic of the problem.
        platform: Default: what the kernel was lowered for.
        chip: A name of the catalog; default: the platform's first.
        inputs: Input tensors; only needed where the kernel's control flow reads them.
        scalars: Values of scalar parameters, by name.
        backend: The backend that is used on the device. Row broadcasts take a scalar round trip per row in ``pto``
            code; for ``ascendc`` they are costed as vector instructions.
        extra: Figures beyond upstream's cost model.
        budget: Events to trace before blocks are sampled.

    Raises:
        ClockError: No estimate is possible; never a silent number.
        CompilerNotFound: This machine has no C++ compiler.
        CatalogError: The chip is unknown.
    """
    start = time.perf_counter()
    platform = platform or lowered.platform
    if platform not in ("A2", "A3"):
        raise ClockError("platform", f"PTO-ISA's cost model covers A2 and A3, not {platform}")
    if lowered.target != "pto":
        raise ClockError("build", f"the virtual clock reads the pto backend's output, not {lowered.target}'s")
    if work.flops <= 0 and work.bytes <= 0:
        raise ClockError("work", "the problem has no work: `work` in tests/spec.py counts neither operations nor bytes")
    device = chip if isinstance(chip, Chip) else find_chip(catalog.load(), platform, chip)
    extra = extra or Extra()
    traced = trace(
        lowered,
        package,
        cores=device.cores,
        extra=extra,
        inputs=inputs,
        scalars=scalars,
        vector_broadcast=backend == "ascendc",
        budget=budget,
    )
    return _summarise(traced, lowered, work, device, extra, backend, start)


def _summarise(
    traced: Traced, lowered: Lowered, work: Work, chip: Chip, extra: Extra, backend: str, start: float
) -> Estimate:
    report = traced.report
    pipes_us = report["span"] / chip.clock_ghz / 1000
    memory_us = work.bytes / chip.hbm_tbps / 1e6 if chip.hbm_tbps else 0.0
    total_us = max(pipes_us, memory_us) + extra.launch_us
    busy = _busy(report, report["span"])
    path, hot = _path(traced)
    cube = any(busy["cube"].get(pipe) for pipe in ("M", "MTE1"))
    dtype = lowered.parameters[0].dtype if lowered.parameters else "float16"
    return Estimate(
        kernel=traced.kernel.name,
        platform=chip.platform,
        chip=chip.name,
        cores=chip.cores,
        microseconds=total_us,
        pipes_us=pipes_us,
        memory_us=memory_us,
        launch_us=extra.launch_us,
        blocks=report["blocks"],
        traced=report["traced"],
        busy=busy,
        path=path,
        hot=hot,
        bytes={route: int(moved) for route, moved in zip(ROUTES, report["bytes"], strict=True) if moved},
        flops=work.flops,
        compulsory_bytes=work.bytes,
        tflops=work.flops / total_us / 1e6,
        gbps=work.bytes / total_us / 1e3,
        intensity=work.flops / work.bytes if work.bytes else 0.0,
        peak_tflops=chip.peak_tflops(dtype, cube=cube),
        hbm_tbps=chip.hbm_tbps,
        limit=_limit(busy, path, pipes_us, memory_us),
        notes=_notes(traced, work, chip, backend),
        seconds=time.perf_counter() - start,
        trace=traced,
    )


def _busy(report: Mapping[str, Any], span: float) -> dict[str, dict[str, float]]:
    used = min(report["cores"], report["blocks"])
    return {
        name: {pipe: cycles / used / span for pipe, cycles in zip(PIPES, row, strict=True) if cycles > 0}
        for name, row in zip(("cube", "vector"), report["busy"], strict=True)
    }


def _path(traced: Traced) -> tuple[tuple[Step, ...], tuple[Hot, ...]]:
    path, kinds = traced.report["path"], traced.report["kinds"]
    length = path["length"] or 1.0
    steps = [Step(ROLES[role], PIPES[pipe], cycles / length) for role, pipe, cycles in path["share"]]
    steps += [Step("", name, path[key] / length) for key, name in (("scalar", "issue"), ("cross", "flag")) if path[key]]
    lines: dict[tuple[str, int, str, str], float] = {}
    for role, pipe, kind, cycles in path["lines"]:
        intrinsic, instruction, line, _ = kinds[role][kind]
        key = (instruction or intrinsic, line, ROLES[role].split()[0], PIPES[pipe])
        lines[key] = lines.get(key, 0.0) + cycles / length
    hot = [
        Hot(name, line, traced.kernel.statement(line), core, pipe, s) for (name, line, core, pipe), s in lines.items()
    ]
    return tuple(sorted(steps, key=lambda step: -step.share)), tuple(sorted(hot, key=lambda item: -item.share)[:8])


def _limit(busy: Mapping[str, Mapping[str, float]], path: Sequence[Step], pipes_us: float, memory_us: float) -> str:
    if memory_us > pipes_us:
        return f"global memory: its compulsory traffic alone takes {memory_us:.1f} µs, the pipes {pipes_us:.1f} µs"
    joined: dict[tuple[int, str], float] = {}
    for step in path:
        key = (-1 if not step.core else int(step.core != "cube"), step.pipe)
        joined[key] = joined.get(key, 0.0) + step.share
    (core, pipe), share = max(joined.items(), key=lambda item: item[1])
    if core < 0:
        waiting = {"issue": "issuing instructions in the scalar unit", "flag": "cross-core flags on their way"}
        return f"{waiting.get(pipe, pipe)}: {share:.0%} of the critical path"
    name = "cube" if core == 0 else "vector"
    text = f"{PIPE_WORDS.get((core, pipe), pipe)} ({name} core, {pipe}): {share:.0%} of the critical path, "
    text += f"busy {busy[name].get(pipe, 0.0):.0%}"
    for other, unit in (("cube", "M"), ("vector", "V")):
        if unit in busy[other] and (other, unit) != (name, pipe):
            worker = "the cube" if other == "cube" else "the vector unit"
            text += f"; {worker} waits {1 - busy[other][unit]:.0%} of the time"
    return text


def _notes(traced: Traced, work: Work, chip: Chip, backend: str) -> tuple[str, ...]:
    report, notes = traced.report, []
    if report["traced"] < report["blocks"]:
        notes.append(
            f"sampled: {report['traced']} of {report['blocks']} blocks were traced, the others take their times"
        )
    if traced.assumed:
        lines = ", ".join(map(str, traced.assumed[:5]))
        where = f"lines {lines} of `harness source --backend pto`"
        notes.append(f"control flow depends on on-chip data, taken as zero ({where})")
    if backend == "ascendc" and "TROWEXPAND" in traced.kernel.source:
        notes.append("row broadcasts are costed as vector instructions, as the ascendc backend makes them")
    moved = sum(n for route, n in zip(ROUTES, report["bytes"], strict=True) if route in GLOBAL_ROUTES)
    if work.bytes and moved > 1.5 * work.bytes:
        notes.append(
            f"moves {moved / work.bytes:.1f} times the compulsory bytes; re-reads are taken to hit the L2 cache"
        )
    if chip.hbm_tbps == 0:
        notes.append(f"the memory bandwidth of {chip.name} is not known: no bound from it")
    return tuple(notes)


def _rounded(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
