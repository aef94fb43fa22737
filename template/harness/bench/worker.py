"""Runs one case on one NPU and prints its times as JSON: ``python -m harness.bench.worker '<order>'``.

A process of its own, so that msprof can be put around it and several NPUs can work at the same time.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness import project as projects
from harness.device import NpuDevice
from harness.execution import make_inputs, run_case
from harness.project import Project
from harness.spec import Array

FLUSH_BYTES = 256 * 1024 * 1024  # more than the L2 cache of any chip
FLUSH_ONLY = 3  # flushes before anything else: how the profile tells a flush from the kernel


@dataclass(frozen=True)
class Order:
    """What a worker is to do.

    Attributes:
        root: The package.
        case: Name in the spec.
        blocks: Block sizes in place of the defaults.
        baseline: An expression to time in place of the kernel.
        check: Compare with the reference first.
        warmup, repetitions: Calls before and while timing.
    """

    root: str
    case: str
    blocks: Mapping[str, int]
    baseline: str = ""
    check: bool = True
    warmup: int = 10
    repetitions: int = 50

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class _Npu(NpuDevice):
    """An NPU that calls the kernel with other block sizes where they are asked for."""

    def __init__(self, project: Project, blocks: Mapping[str, int]) -> None:
        super().__init__(project)
        self.blocks, self.torch = dict(blocks), self._torch

    def tensors(self, inputs: Sequence[Array]) -> list[Any]:
        return [self._to_tensor(array) for array in inputs]

    def run(self, inputs: Sequence[Array], options: Mapping[str, Any]) -> tuple[Array, ...]:
        result = self.call(self.tensors(inputs), options)()
        self.torch.npu.synchronize()
        outputs = result if isinstance(result, tuple | list) else (result,)
        return tuple(self._to_array(output) for output in outputs)

    def call(self, tensors: Sequence[Any], options: Mapping[str, Any]) -> Callable[[], Any]:
        """One call of the kernel; compiling comes before."""
        project = self._project
        if not self.blocks:
            host = getattr(project.package(), project.name)
            return lambda: host(*tensors, **options)
        arguments = project.check_inputs()(*tensors, **options)
        factory = getattr(importlib.import_module(f"{project.name}.kernel"), project.name)
        kernel = factory(**arguments | self.blocks)
        return lambda: kernel(*tensors)

    def baseline(self, expression: str, tensors: Sequence[Any], options: Mapping[str, Any]) -> Callable[[], Any]:
        """One call of the catalog's expression, over the host function's parameters and the factory's arguments."""
        project = self._project
        names = inspect.signature(getattr(project.package(), project.name)).parameters
        scope = {"torch": self.torch, "torch_npu": importlib.import_module("torch_npu"), "mask": None}
        scope |= project.check_inputs()(*tensors, **options) | dict(options) | dict(zip(names, tensors, strict=False))
        code = compile(expression, "<baseline>", "eval")
        return lambda: eval(code, scope)


def run(order: Order) -> dict[str, Any]:
    """Times one case.

    Returns:
        ``events_us`` (device, by events), ``host_us`` (the call, without waiting), ``max_error``, ``device`` (name).

    Raises:
        AssertionError: Wrong numbers; a wrong kernel is not timed.
    """
    project = projects.load(Path(order.root))
    spec = project.spec()
    case = next(case for case in spec.cases if case.name == order.case)
    npu = _Npu(project, order.blocks)
    flush = npu.torch.empty(FLUSH_BYTES // 4, dtype=npu.torch.int32, device=f"npu:{npu.index}")
    for _ in range(FLUSH_ONLY):
        flush.zero_()
    error = 0.0
    if order.check and not order.baseline:
        outcome = run_case(project, spec, case, npu)
        error = outcome.max_error
        if not outcome.passed:
            raise AssertionError(outcome.report)
    tensors = npu.tensors(make_inputs(spec, case))
    call = npu.baseline(order.baseline, tensors, case.options) if order.baseline else npu.call(tensors, case.options)
    events, host = _time(npu.torch, flush, call, order)
    name = str(npu.torch.npu.get_device_name(npu.index))
    return {"events_us": events, "host_us": host, "max_error": error, "device": name}


def _time(torch: Any, flush: Any, call: Callable[[], Any], order: Order) -> tuple[list[float], list[float]]:
    for _ in range(order.warmup):
        call()
    torch.npu.synchronize()
    events, host = [], []
    for _ in range(order.repetitions):
        flush.zero_()
        start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
        start.record()
        before = time.perf_counter()
        call()
        host.append((time.perf_counter() - before) * 1e6)
        end.record()
        events.append((start, end))
    torch.npu.synchronize()
    return [start.elapsed_time(end) * 1e3 for start, end in events], host


def statistics(times: list[float]) -> tuple[float, float]:
    """Median, and half of the middle half's range relative to it."""
    median = float(np.median(times))
    low, high = np.percentile(times, [25, 75])
    return median, float(high - low) / 2 / median if median else 0.0


if __name__ == "__main__":
    try:
        print(json.dumps(run(Order(**json.loads(sys.argv[1])))))
    except Exception as error:  # whatever a driver raises becomes one line for the parent
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
