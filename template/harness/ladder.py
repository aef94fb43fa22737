"""The verification ladder: climbs from valid Python to right numbers on a device, as far as the machine allows.

Every rung ends as *passed*, *failed* or *not run*; what did not run says why and what would make it run.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from harness import budget as chip
from harness import catalog, device
from harness.compiler.client import Compiler, CompilerError, Lowered, Request, find_compiler
from harness.execution import Device, Outcome, VirtualDevice, make_inputs, run_case
from harness.project import GoldenMissing, Project, ProjectError, blamed
from harness.rules import Context, Finding, check_lowered, check_project
from harness.rules.cli import context_of
from harness.spec import Case, Spec
from harness.vnpu.build import BuildError, CompilerNotFound, NotSimulated
from harness.vnpu.run import RunError

RUNGS = ("parsed", "conventions", "lowered", "budget", "simulated", "race_free", "compiled", "device")
Status = Literal["passed", "failed", "not run"]
INSTALL = "python -m harness toolchain install"


@dataclass(frozen=True)
class Rung:
    """One rung's result.

    Attributes:
        name: One of ``RUNGS``.
        status: ``passed``, ``failed`` or ``not run``.
        summary: One line: what was checked, or why it failed or did not run.
        details: Further lines for a person.
        remedy: The command or step that makes a rung run that did not.
        seconds: Wall time.
        data: Figures for ``--json``.
    """

    name: str
    status: Status
    summary: str
    details: tuple[str, ...] = ()
    remedy: str = ""
    seconds: float = 0.0
    data: dict[str, Any] = field(default_factory=dict)


class _Failed(Exception):
    """A rung failed: summary and details."""

    def __init__(self, summary: str, details: Sequence[str] = (), **data: Any) -> None:
        super().__init__(summary)
        self.details, self.data = tuple(details), data


class _NotRun(Exception):
    """A rung could not run: why, and the remedy."""

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(why)
        self.remedy = remedy


Passed = tuple[str, Sequence[str], dict[str, Any]]  # summary, details, figures


def is_basic(case: Case) -> bool:
    """Whether ``check`` uses a case: level 0, but not those for the night."""
    return case.level == "l0" and not case.nightly


class Ladder:
    """Climbs the ladder for one package.

    Args:
        project: The package.
        select: Which of the spec's cases are lowered, simulated and run; level 0 by default.
        gate: ``current`` or ``legacy`` tolerances.
        progress: Told what is being done, a line at a time.
    """

    def __init__(
        self,
        project: Project,
        *,
        select: Callable[[Case], bool] = is_basic,
        gate: str = "current",
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.project, self._select, self._gate, self._progress = project, select, gate, progress
        self._compiler: Compiler | None = None
        self._kernels: list[tuple[Case, Lowered]] = []

    def climb(self) -> Iterator[Rung]:
        """Yields a result for every rung, from the bottom; a rung runs only where those it builds on passed."""
        needs = {"budget": "lowered", "simulated": "lowered", "compiled": "parsed", "device": "parsed"}
        needs |= {"conventions": "parsed", "lowered": "parsed"}
        bad: dict[str, Status] = {}
        try:
            for name in RUNGS:
                self._progress(name)
                start = time.perf_counter()
                below = needs.get(name, "")
                if below in bad:
                    rung = Rung(name, "not run", f"{below} {'failed' if bad[below] == 'failed' else 'did not run'}")
                else:
                    rung = self._attempt(name)
                if rung.status != "passed":
                    bad[name] = rung.status
                yield Rung(**{**vars(rung), "seconds": time.perf_counter() - start})
        finally:
            if self._compiler is not None:
                self._compiler.close()

    def _attempt(self, name: str) -> Rung:
        try:
            summary, details, data = getattr(self, f"rung_{name}")()
            return Rung(name, "passed", summary, tuple(details), data=data)
        except _NotRun as why:
            return Rung(name, "not run", str(why), remedy=why.remedy)
        except _Failed as failure:
            return Rung(name, "failed", str(failure), failure.details, data=failure.data)
        except ProjectError as error:
            return Rung(name, "failed", str(error))

    # The rungs.

    def rung_parsed(self) -> Passed:
        files = [*sorted((self.project.root / "src").rglob("*.py")), self.project.root / "tests" / "spec.py"]
        for path in files:
            shown = path.relative_to(self.project.root)
            try:
                ast.parse(path.read_bytes(), filename=str(path))
            except OSError as error:
                raise _Failed(f"{shown}: {error.strerror or error}") from error
            except UnicodeDecodeError as error:
                raise _Failed(f"{shown}: not UTF-8 at byte {error.start}: save it as UTF-8") from error
            except (SyntaxError, ValueError) as error:
                line, text = getattr(error, "lineno", 0), (getattr(error, "text", "") or "").rstrip()
                raise _Failed(f"{shown}:{line}: {getattr(error, 'msg', error)}", [text] if text else []) from error
        return f"{len(files)} files", (), {"files": len(files)}

    def rung_conventions(self) -> Passed:
        findings = check_project(self.project.root, self._context)
        return self._judge(findings, f"scenario {self.project.scenario}, compiler era {self.project.compiler_era}")

    def rung_lowered(self) -> Passed:
        for number, (case, arguments) in enumerate(self.problems, 1):
            for target in self.project.targets:
                self._progress(f"lowered: {case.name}, {target} ({number} of {len(self.problems)})")
                lowered = self._lower(case, arguments, target)
                if target == "pto":
                    self._kernels.append((case, lowered))
        version = self._compiler.version if self._compiler else ""
        findings = [f for _, kernel in self._kernels for f in check_lowered(kernel, self.project.kernel, self._context)]
        unique = list(dict.fromkeys(findings))
        _, lines, data = self._judge(unique, "")
        count = len(self.problems)
        summary = (
            f"{' and '.join(self.project.targets)} for {self.project.platform}: {count} problem{'s' * (count > 1)}"
        )
        return f"{summary}, TileLang-Ascend {version}", lines, {**data, "compiler": version, "problems": count}

    def _lower(self, case: Case, arguments: dict[str, Any], target: str) -> Lowered:
        try:
            if self._compiler is None:
                self._compiler = find_compiler()
            request = Request(self.project.kernel, self.project.name, arguments, target, self.project.platform)
            return self._compiler.lower(request)
        except CompilerError as error:
            if error.kind in ("unavailable", "wrong-package"):
                raise _NotRun(str(error), INSTALL) from error
            raise _Failed(str(error), [f"case {case.name}, target {target}, arguments {arguments}"]) from error

    def rung_budget(self) -> Passed:
        facts = catalog.load()
        # One table: that of the case which uses most of any memory.
        tables = [(case, chip.budget(lowered, facts, self.project.platform)) for case, lowered in self._kernels]
        case, uses = max(tables, key=lambda entry: max((use.share for use in entry[1]), default=0.0))
        errors = [f"case {c.name}: {text}" for c, table in tables for text in chip.problems(table)[0]]
        warnings = chip.problems(uses)[1]
        data = {"case": case.name, "memories": chip.to_json(uses)}
        if errors:
            raise _Failed(errors[0], errors[1:], **data)
        summary = ", ".join(f"{use.memory} {use.used:,} of {use.capacity:,} ({use.share:.0%})" for use in uses)
        return f"{summary} bytes", [f"warning: {text}" for text in warnings], data

    def rung_simulated(self) -> Passed:
        if self.project.platform == "A5":
            raise _NotRun("the virtual NPU models A2 and A3, not A5")
        assert self._compiler is not None, "the rung below has started it"
        return self._run_cases("simulated", VirtualDevice(self.project, self._compiler))

    def _run_cases(self, rung: str, on: Device) -> Passed:
        outcomes: list[Outcome] = []
        try:
            self.project.reference()
        except GoldenMissing as missing:
            raise _NotRun(str(missing), "write the golden reference") from missing
        for number, case in enumerate(self.cases, 1):
            self._progress(f"{rung}: {case.name} ({number} of {len(self.cases)})")
            try:
                outcome = run_case(self.project, self.spec, case, on, gate_name=self._gate)
            except NotSimulated as missing:
                raise _NotRun(f"case {case.name}: not simulated: {missing}") from missing
            except CompilerNotFound as missing:
                raise _NotRun(str(missing), "python -m harness doctor") from missing
            except (BuildError, RunError, CompilerError, device.DeviceError, ValueError) as error:
                raise _Failed(f"case {case.name}: {_head(error)}", _tail(error)) from error
            if not outcome.passed:
                head, *rest = outcome.report.splitlines()
                raise _Failed(f"case {case.name}: {head}", rest, case=case.name, max_error=outcome.max_error)
            outcomes.append(outcome)
        worst = max(outcomes, key=lambda outcome: outcome.max_error)
        data = {"cases": {o.case.name: {"max_error": o.max_error, "seconds": round(o.seconds, 4)} for o in outcomes}}
        count = len(outcomes)
        cases = f"{count} case{'s' * (count > 1)} right on the {on.name}"
        return f"{cases}, largest error {worst.max_error:.2g} ({worst.case.name})", (), data

    def rung_race_free(self) -> Passed:
        switches = catalog.load().switches(self.project.scenario, self.project.compiler_era, self.project.operator)
        by_hand = "" if switches["auto_sync"] else ": flags and barriers written by hand are NOT proved"
        raise _NotRun(f"not available in this version of the harness{by_hand}")

    def rung_compiled(self) -> Passed:
        why = device.missing_cann()
        if why:
            raise _NotRun(why, "run this on a machine with CANN")
        case, arguments = self.problems[0]
        try:
            device.compile_device_binary(self.project, arguments)
        except device.DeviceError as error:
            raise _Failed(f"case {case.name}: {_head(error)}", _tail(error)) from error
        return f"bisheng built the device binary of {case.name}", (), {"case": case.name}

    def rung_device(self) -> Passed:
        why = device.missing_npu()
        if why:
            raise _NotRun(why, "run this on a machine with an NPU and torch_npu")
        return self._run_cases("device", device.NpuDevice(self.project))

    def _judge(self, findings: Sequence[Finding], summary: str) -> Passed:
        errors = [finding for finding in findings if finding.severity == "error"]
        lines = [_line(finding, self.project) for finding in findings]
        data = {"findings": [finding.to_json(self.project.root) for finding in findings]}
        if errors:
            raise _Failed(f"{len(errors)} rule{'s' * (len(errors) > 1)} broken", lines, **data)
        return summary, lines, data

    @cached_property
    def _context(self) -> Context:
        return context_of(self.project)

    @cached_property
    def spec(self) -> Spec:
        return self.project.spec()

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        found = tuple(case for case in self.spec.cases if self._select(case))
        if not found:
            raise ProjectError("tests/spec.py: no case fits the selection")
        return found

    @cached_property
    def problems(self) -> tuple[tuple[Case, dict[str, Any]], ...]:
        """The cases' distinct compilations: the first case of each and the factory's arguments."""
        found: dict[str, tuple[Case, dict[str, Any]]] = {}
        for case in self.cases:
            with blamed(self.project):
                inputs = make_inputs(self.spec, case)
                try:
                    arguments = self.project.check_inputs()(*inputs, device="cpu", **case.options)
                except (TypeError, ValueError) as error:
                    raise ProjectError(f"tests/spec.py: case {case.name}: check_inputs refuses it: {error}") from error
            found.setdefault(repr(sorted(arguments.items())), (case, arguments))
        return tuple(found.values())


def _line(finding: Finding, project: Project) -> str:
    path = finding.path.relative_to(project.root) if finding.path.is_relative_to(project.root) else finding.path
    fix = f". Fix: {finding.fix}" if finding.fix else ""
    return f"{path}:{finding.line}:{finding.column}: {finding.severity} {finding.rule} {finding.message}{fix}"


def _head(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _tail(error: BaseException) -> list[str]:
    return str(error).splitlines()[1:]


def exit_status(rungs: Sequence[Rung], required: str | None) -> int:
    """0: nothing failed and the required rung passed; 1: a rung failed; 2: the required rung could not run."""
    if any(rung.status == "failed" for rung in rungs):
        return 1
    if required is None:
        return 0
    return 0 if any(rung.name == required and rung.status == "passed" for rung in rungs) else 2
