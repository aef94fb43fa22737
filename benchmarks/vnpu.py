"""Speed of the virtual NPU against its bars: ``python benchmarks/vnpu.py`` in the development environment."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "template")]

import harness.catalog  # noqa: E402
import repository  # noqa: E402
from harness.compiler.client import Compiler, Request, find_compiler  # noqa: E402
from harness.compiler.lowered import Lowered  # noqa: E402
from harness.vnpu import toolset  # noqa: E402
from harness.vnpu.build import Built, build  # noqa: E402
from harness.vnpu.run import RunResult, run  # noqa: E402

NAME = "measured"
MIB = 1 << 20
MATMUL = {"batch": 1, "M": 1024, "N": 1024, "K": 1024}
ATTENTION = {"batch": 1, "heads": 12, "kv_heads": 12, "seq_q": 4096, "seq_kv": 4096, "head_dim": 128}


def lower(compiler: Compiler, folder: Path, scenario: str, operator: str, arguments: dict[str, int]) -> Lowered:
    answers = {"kernel_name": NAME, "scenario": scenario, "operator": operator}
    root = repository.render(folder / "template", folder / operator, answers)
    return compiler.lower(Request(root / "src" / NAME / "kernel.py", NAME, arguments, "pto", "A2"))


def timed(action: Callable[[], Any], times: int = 1) -> tuple[float, float]:
    """Wall and processor seconds of the fastest of several; the latter hardly depend on what else the machine does."""
    found = []
    for _ in range(times):
        start, before = time.perf_counter(), processor_seconds()
        action()
        found.append((time.perf_counter() - start, processor_seconds() - before))
    return min(found)


def processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measured(
    built: Built, inputs: list[np.ndarray[Any, Any]], threads: int, times: int
) -> tuple[tuple[float, float], str]:
    """Seconds of the fastest run, and what memory it took beyond its tensors."""
    results: list[RunResult] = []
    seconds = timed(lambda: results.append(run(built, inputs, threads=threads)), times)
    tensors = sum(array.nbytes for array in (*inputs, *results[0].outputs))
    return (
        seconds,
        f"{(results[0].peak_bytes - tensors) / MIB:.1f} MiB beside {tensors / MIB:.0f} MiB of in- and outputs",
    )


def report(what: str, seconds: tuple[float, float], bar: float) -> None:
    print(f"{what:58}{seconds[0]:7.2f} s {seconds[1]:7.2f} s {bar:7.2f} s {seconds[0] / bar:6.0%}", flush=True)


def main() -> None:
    rng = np.random.default_rng(0)
    harness.catalog.PATH = repository.write_catalog(Path(tempfile.mkdtemp()) / "catalog.json")
    with find_compiler() as compiler, tempfile.TemporaryDirectory() as scratch:
        repository.copy_working_tree(Path(scratch) / "template")
        package = compiler.package
        gemm = lower(compiler, Path(scratch), "gemm", "matmul", MATMUL)
        attention = lower(compiler, Path(scratch), "flash_attention", "forward", ATTENTION)
        print(f"{toolset.find_cxx().version}; {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
        print(f"{'':58}{'wall':>9}{'processors':>10}{'bar':>9}")
        with tempfile.TemporaryDirectory() as cache:
            kept = os.environ.get("XDG_CACHE_HOME")
            os.environ["XDG_CACHE_HOME"] = cache
            report("first kernel, empty cache (driver and header included)", timed(lambda: build(gemm, package)), 4.0)
            report("a kernel with both kinds of core", timed(lambda: build(attention, package)), 1.5)
            report("unchanged kernel", timed(lambda: build(attention, package), 3), 0.1)
            os.environ.pop("XDG_CACHE_HOME") if kept is None else os.environ.update(XDG_CACHE_HOME=kept)
        built = build(gemm, package)
        a, b = (rng.standard_normal((1, 1024, 1024)).astype(np.float16) for _ in range(2))
        seconds, matmul_memory = measured(built, [a, b], 1, 3)
        report("matmul 1024 x 1024 x 1024 fp16, one core", seconds, 0.3)
        q, k, v = (rng.standard_normal((1, 12, 4096, 128)).astype(np.float16) for _ in range(3))
        built = build(attention, package)
        seconds, attention_memory = measured(built, [q, k, v], 2, 1)
        report("attention 12 x 4096 x 4096 x 128 fp16, two cores", seconds, 10.0)
        print(f"memory: matmul {matmul_memory}; attention {attention_memory} (workspaces not counted as tensors)")


if __name__ == "__main__":
    main()
