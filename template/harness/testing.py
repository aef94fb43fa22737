"""What the generated tests are made of: cases of the spec, and a runner that judges them on a device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest

from harness import device as npu
from harness import project as projects
from harness.compiler.client import Compiler, CompilerError, find_compiler
from harness.execution import Device, VirtualDevice, run_case
from harness.project import GoldenMissing, Project, ProjectError
from harness.spec import Case, ErrorCase, Spec
from harness.vnpu.build import BuildError, CompilerNotFound, NotSimulated
from harness.vnpu.run import RunError


def accuracy_cases(level: str) -> list[Any]:
    """The spec's cases of a level, as pytest parameters; slow ones carry the marker ``nightly``."""
    cases = [case for case in projects.load().spec().cases if case.level == level]
    return [pytest.param(case, id=case.name, marks=[pytest.mark.nightly] if case.nightly else []) for case in cases]


def error_cases() -> list[Any]:
    """The inputs that ``check_inputs`` must refuse, as pytest parameters."""
    return [pytest.param(error, id=error.name) for error in projects.load().spec().errors]


@dataclass
class Runner:
    """Runs cases on the device that was asked for.

    Attributes:
        wanted: ``auto`` (the NPU where there is one, else the virtual NPU), ``npu`` or ``virtual``.
        gate: ``current`` or ``legacy``.
    """

    wanted: str = "auto"
    gate: str = "current"
    _compiler: Compiler | None = None

    @cached_property
    def project(self) -> Project:
        return projects.load()

    @cached_property
    def spec(self) -> Spec:
        return self.project.spec()

    @cached_property
    def device(self) -> Device:
        """The device; skips the test, saying why, where there is none, and fails where one was asked for by name."""
        missing = npu.missing_npu() if self.wanted != "virtual" else "not asked for"
        if missing is None:
            return npu.NpuDevice(self.project)
        if self.wanted == "npu":
            pytest.fail(f"--device npu: {missing}", pytrace=False)
        if self.project.platform == "A5":
            pytest.skip(f"no NPU ({missing}), and the virtual NPU models A2 and A3, not A5")
        try:
            self._compiler = find_compiler()
        except CompilerError as error:
            say = pytest.fail if self.wanted == "virtual" else pytest.skip
            say(f"no NPU ({missing}) and no compiler for the virtual one: {error}")
        return VirtualDevice(self.project, self._compiler)

    def check(self, case: Case) -> float:
        """Runs a case; returns its largest absolute error.

        Raises:
            AssertionError: Wrong numbers, with a report of where.
        """
        __tracebackhide__ = True
        try:
            self.project.reference()
        except GoldenMissing as missing:  # said whether or not there is a device
            pytest.fail(str(missing), pytrace=False)
        device = self.device
        try:
            outcome = run_case(self.project, self.spec, case, device, gate_name=self.gate)
        except NotSimulated as missing:
            pytest.skip(f"not simulated: {missing}")
        except CompilerNotFound as missing:
            pytest.skip(str(missing))
        except (ProjectError, CompilerError, BuildError, RunError) as error:
            pytest.fail(f"{case.name}: {error}", pytrace=False)
        if not outcome.passed:
            raise AssertionError(f"{case.name} on the {device.name}: {outcome.report}")
        return outcome.max_error

    def check_error(self, error: ErrorCase) -> None:
        """Asserts that ``check_inputs`` refuses the inputs with the right type and message."""
        __tracebackhide__ = True
        with pytest.raises(error.error, match=re.compile(error.match)):
            self.project.check_inputs()(*error.inputs(), device="cpu", **error.options)

    def close(self) -> None:
        if self._compiler is not None:
            self._compiler.close()


def passed(reports: Sequence[tuple[str, bool]]) -> bool:
    """Upstream's verdict: level 0 and level 1 ran, and none of them failed."""
    blocking = [ok for level, ok in reports if level in ("l0", "l1")]
    return bool(blocking) and all(blocking)
