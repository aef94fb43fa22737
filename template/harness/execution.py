"""Runs cases of the spec on a device, real or virtual, and judges the numbers."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from unittest.mock import patch

import numpy as np

from harness import catalog
from harness.compare import Comparison, compare, gate
from harness.compiler.client import Compiler, Request
from harness.project import Project, blamed
from harness.spec import Array, Case, Spec


class Device(Protocol):
    """Something that runs the kernel of a package."""

    name: str

    def run(self, inputs: Sequence[Array], options: Mapping[str, Any]) -> tuple[Array, ...]:
        """Runs the kernel once.

        Args:
            inputs: Arrays in the host function's order.
            options: The host function's keyword arguments.

        Returns:
            The outputs, in the kernel's order.
        """


class VirtualDevice:
    """The virtual NPU: executes the compiler's own ``pto`` output on this machine's CPU.

    The package's host function runs as it stands; what it launches ends up here.
    """

    name = "virtual NPU"

    def __init__(self, project: Project, compiler: Compiler, *, time_limit: float = 300.0) -> None:
        self._project, self._compiler, self._time_limit = project, compiler, time_limit

    def run(self, inputs: Sequence[Array], options: Mapping[str, Any]) -> tuple[Array, ...]:
        package = self._project.package()
        host = getattr(package, self._project.name, None)
        if not callable(host) or not hasattr(package, "_compiled"):  # one that its owner has taken apart
            arguments = self._project.check_inputs()(*inputs, device="cpu", **options)
            return self._launch(arguments, *inputs)
        stand_ins: dict[str, Any] = {
            "check_inputs": partial(self._project.check_inputs(), device="cpu"),
            "_compiled": lambda **arguments: partial(self._launched, arguments),
            "device_cores": lambda: None,  # as many as the kernel's factory assumes
        }
        with patch.multiple(package, **{name: it for name, it in stand_ins.items() if hasattr(package, name)}):
            outputs = host(*inputs, **options)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def _launched(self, arguments: Mapping[str, Any], *tensors: Array) -> Array | tuple[Array, ...]:
        """What a compiled kernel returns to the host function."""
        outputs = self._launch({name: value for name, value in arguments.items() if value is not None}, *tensors)
        return outputs[0] if len(outputs) == 1 else outputs

    def _launch(self, arguments: Mapping[str, Any], *tensors: Array) -> tuple[Array, ...]:
        from harness.vnpu.build import build
        from harness.vnpu.run import run

        request = Request(self._project.kernel, self._project.name, arguments, "pto", self._project.platform)
        lowered = self._compiler.lower(request)
        built = build(lowered, self._compiler.package, platform=self._project.platform)
        return run(built, tensors, time_limit=self._time_limit).outputs


@dataclass(frozen=True)
class Outcome:
    """One case, judged. ``report`` is empty when it passed; ``max_error`` is absolute."""

    case: Case
    passed: bool
    max_error: float
    report: str
    seconds: float


def make_inputs(spec: Spec, case: Case) -> tuple[Array, ...]:
    """The inputs of a case; equal in every run and process, different between cases."""
    return tuple(spec.inputs(case, np.random.default_rng(zlib.crc32(case.name.encode()))))


def run_case(project: Project, spec: Spec, case: Case, device: Device, *, gate_name: str = "current") -> Outcome:
    """Runs one case and compares every output with the golden reference.

    Args:
        gate_name: ``current`` or ``legacy``.

    Raises:
        ProjectError: The package lacks a function, or its reference or its spec raises an exception.
        ValueError: ``check_inputs`` refused the case, or the reference returns another number of outputs.
    """
    with blamed(project):
        inputs = make_inputs(spec, case)
    start = time.perf_counter()
    outputs = device.run([array.copy() for array in inputs], case.options)
    seconds = time.perf_counter() - start
    with blamed(project), np.errstate(all="ignore"):  # boundary cases hold inf and nan on purpose
        expected = project.reference()(*inputs, **case.options)
    wanted = expected if isinstance(expected, tuple) else (expected,)
    if len(wanted) != len(outputs):
        raise ValueError(f"reference() returns {len(wanted)} arrays, the kernel has {len(outputs)} outputs")
    results = [_judge(project, spec, *pair, gate_name) for pair in zip(outputs, wanted, strict=True)]
    bad = [f"output {i}: {result.report}" for i, result in enumerate(results) if not result.passed]
    return Outcome(case, not bad, max(result.max_error for result in results), "\n".join(bad), seconds)


def _judge(project: Project, spec: Spec, got: Array, expected: Array, gate_name: str) -> Comparison:
    limits = gate(catalog.load(), got.dtype.name, name=gate_name, tolerance=spec.tolerance)
    return compare(got, np.asarray(expected), limits, tile_of(project, got.shape))


def tile_of(project: Project, shape: Sequence[int]) -> tuple[int, int] | None:
    """Rows and columns of the block of output that one core computes, as far as the answers tell."""
    rows, columns = project.block.get("block_M"), project.block.get("block_N")
    if not rows:
        return None
    # Attention tiles the keys by block_N; its output is as wide as a head.
    wide = project.scenario == "flash_attention" or project.operator == "flash_attention" or not columns
    return int(rows), int(shape[-1] if wide or columns is None else columns)
