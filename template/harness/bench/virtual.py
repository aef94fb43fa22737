"""Rows without an NPU: the virtual clock over cases of the spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness import catalog
from harness.bench.result import Row
from harness.clock import Chip, Estimate, estimate, find_chip
from harness.compiler.client import Compiler, Request
from harness.execution import make_inputs
from harness.project import Project
from harness.spec import Case, Spec


@dataclass
class VirtualBench:
    """Estimates cases of one package.

    Attributes:
        chip_name: Of the catalog; the platform's first by default.
    """

    project: Project
    spec: Spec
    compiler: Compiler
    chip_name: str = ""

    @property
    def chip(self) -> Chip:
        return find_chip(catalog.load(), self.project.platform, self.chip_name)

    def arguments(self, case: Case) -> dict[str, Any]:
        """The kernel factory's arguments for a case."""
        return self.project.check_inputs()(*make_inputs(self.spec, case), device="cpu", **case.options)

    def estimate(self, case: Case, blocks: Mapping[str, int] | None = None) -> tuple[Row, Estimate]:
        """Estimates one case, with other block sizes where they are given.

        Raises:
            ClockError: There is no estimate.
            CompilerError: The kernel does not lower.
        """
        inputs = make_inputs(self.spec, case)
        arguments = self.project.check_inputs()(*inputs, device="cpu", **case.options) | dict(blocks or {})
        request = Request(self.project.kernel, self.project.name, arguments, "pto", self.project.platform)
        found = estimate(
            self.compiler.lower(request),
            self.compiler.package,
            work=self.spec.work(case),
            platform=self.project.platform,
            chip=self.chip,
            inputs=inputs,
            backend=self.project.backend,
        )
        row = Row(
            case=case.name,
            shape=arguments,
            microseconds=found.microseconds,
            source="virtual clock",
            flops=found.flops,
            bytes=found.compulsory_bytes,
            peak_tflops=found.peak_tflops,
            memory_tbps=found.hbm_tbps,
            block_dim=found.blocks,
            notes=found.notes,
            details=found.to_json(),
        )
        return row, found
