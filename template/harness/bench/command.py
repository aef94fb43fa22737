"""``python -m harness bench``."""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from harness import catalog, device
from harness import project as projects
from harness.bench import pictures, show, tune
from harness.bench.measure import find_device_chip, measure, npu_count
from harness.bench.result import BenchError, Document, Row, compare, summary
from harness.bench.virtual import VirtualBench
from harness.catalog import CatalogError
from harness.clock import ACCURACY, ClockError, Estimate, find_chip
from harness.compiler.client import CompilerError, find_compiler
from harness.project import Project, ProjectError
from harness.spec import Case, Spec
from harness.vnpu.build import CompilerNotFound

FAILED, NOT_RUN, USAGE = 1, 2, 3
OUTPUT = Path("benchmarks", "results")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", choices=("auto", "npu", "virtual"), default="auto", help="auto: the NPU if there is one"
    )
    parser.add_argument(
        "--case", action="append", default=[], help="a case of the spec (default: the first); repeatable"
    )
    parser.add_argument("--level", choices=("l0", "l1"), help="all cases of a level")
    parser.add_argument("--chip", default="", help="estimate for this chip, as 910B3")
    parser.add_argument("--json", action="store_true", help="print one JSON document, to be kept and compared")
    parser.add_argument("--against", metavar="REV|FILE", help="compare with a git revision or a file of --json")
    parser.add_argument("--history", type=Path, metavar="FILE", help="append to this file; warn if slower than its end")
    parser.add_argument("--tune", nargs="*", metavar="BLOCK=N,N", help="sweep block sizes; goes on where it stopped")
    parser.add_argument("--repetitions", type=int, default=50, help="timed calls on an NPU")
    parser.add_argument("--warmup", type=int, default=10, help="calls before them")
    parser.add_argument("--output", type=Path, help=f"folder for pictures and traces (default: {OUTPUT})")
    parser.add_argument("--no-pictures", action="store_true", help="no pictures, no trace")
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)


def main(arguments: argparse.Namespace) -> int:
    """Exit status: 0 done, 1 wrong numbers or no result, 2 what was asked for is not here, 3 usage."""
    project = projects.load(arguments.root)
    console = Console(stderr=arguments.json, highlight=False)
    try:
        spec = project.spec()
        cases = _select(spec, arguments)
        on_npu = _on_npu(arguments.device)
        if arguments.repetitions < 1 or arguments.warmup < 0:
            raise ValueError("--repetitions must be at least 1 and --warmup at least 0")
        run = _Run(project, spec, console, arguments, on_npu)
        if arguments.tune is not None:
            return run.sweep(cases[0])
        return run.bench(cases)
    except (BenchError, ClockError, CompilerError, CatalogError, device.DeviceError, CompilerNotFound) as error:
        console.print(str(error), style="red", markup=False)
        missing = isinstance(error, CompilerNotFound | device.DeviceError)
        missing |= getattr(error, "kind", "") in ("unavailable", "wrong-package", "platform")
        return NOT_RUN if missing else FAILED
    except ValueError as error:
        console.print(str(error), style="red", markup=False)
        return USAGE


def _select(spec: Spec, arguments: argparse.Namespace) -> list[Case]:
    if arguments.level:
        return [case for case in spec.cases if case.level == arguments.level and not case.nightly]
    by_name = {case.name: case for case in spec.cases}
    unknown = [name for name in arguments.case if name not in by_name]
    if unknown:
        raise ValueError(f"tests/spec.py has no case {', '.join(unknown)}; there are: {', '.join(by_name)}")
    if not spec.cases:
        raise ProjectError("tests/spec.py: there is no case to benchmark")
    return [by_name[name] for name in arguments.case] or [spec.cases[0]]


def _on_npu(wanted: str) -> bool:
    if wanted == "virtual":
        return False
    missing = device.missing_npu()
    if missing and wanted == "npu":
        raise device.DeviceError(f"--device npu: {missing}")
    return missing is None


class _Run:
    """One invocation."""

    def __init__(
        self, project: Project, spec: Spec, console: Console, arguments: argparse.Namespace, on_npu: bool
    ) -> None:
        self.project, self.spec, self.console = project, spec, console
        self.arguments, self.on_npu = arguments, on_npu
        self.output = arguments.output or project.root / OUTPUT

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    def warn(self, text: str) -> None:
        self.console.print(text, markup=False, style="yellow")

    def bench(self, cases: Sequence[Case]) -> int:
        document, estimates = self.measured(cases) if self.on_npu else self.estimated(cases)
        if self.arguments.json:
            json.dump(document.to_json(), sys.stdout, indent=1)
            print()
        else:
            show.print_document(self.console, document)
            for row, found in zip(document.rows, estimates, strict=False):
                show.print_estimate(self.console, row.case, found)
        if not self.arguments.no_pictures and not self.arguments.json:
            self.draw(document, estimates)
        if self.arguments.against:
            old = self.other(self.arguments.against, cases)
            show.print_changes(self.console, compare(old, document), self.arguments.against)
            if not self.arguments.no_pictures and not self.arguments.json:
                both = [*(("old " + r.case, r) for r in old.rows), *(("new " + r.case, r) for r in document.rows)]
                pictures.roofline(both, self.output / "against")
        if self.arguments.history:
            self.keep(document)
        return 0

    def estimated(self, cases: Sequence[Case]) -> tuple[Document, list[Estimate]]:
        rows, estimates = [], []
        with find_compiler() as compiler, self.console.status("") as line:
            bench = VirtualBench(self.project, self.spec, compiler, self.arguments.chip)
            for case in cases:
                line.update(f"estimating {case.name}")
                row, found = bench.estimate(case)
                rows.append(row)
                estimates.append(found)
            return self._document("estimate", rows, bench.chip.name, "virtual clock", ACCURACY), estimates

    def measured(self, cases: Sequence[Case]) -> tuple[Document, list[Estimate]]:
        rows, name, counts = [], "", (self.arguments.repetitions, self.arguments.warmup)
        with self.console.status("") as line:
            for case in cases:
                line.update(f"measuring {case.name}")
                row, name = measure(self.project, self.spec, case, repetitions=counts[0], warmup=counts[1])
                rows.append(row)
        chip = find_device_chip(self.project.platform, name)
        return self._document("measurement", rows, chip.name if chip else name, name), []

    def _document(self, kind: Any, rows: Sequence[Row], chip: str, name: str, accuracy: str = "") -> Document:
        p = self.project
        revision = _git(p.root, "describe", "--always", "--dirty")
        return Document(
            kind=kind,
            project=p.name,
            platform=p.platform,
            backend=p.backend,
            chip=chip,
            device=name,
            rows=tuple(rows),
            accuracy=accuracy,
            revision=revision.decode().strip() if revision else "",
        )

    def draw(self, document: Document, estimates: Sequence[Estimate]) -> None:
        self.output.mkdir(parents=True, exist_ok=True)
        paths = pictures.roofline([(row.case, row) for row in document.rows], self.output / "roofline")
        for row, found in zip(document.rows, estimates, strict=False):
            paths += pictures.timeline(found, self.output / f"{row.case}-timeline", document.project)
            paths += pictures.trace_json(found, self.output / f"{row.case}-trace.json")
        if paths:
            self.say(f"written to {self.output}: {', '.join(path.name for path in paths)}")

    def other(self, what: str, cases: Sequence[Case]) -> Document:
        """The document to compare with: a file, or a run of this benchmark over another revision of the package."""
        if Path(what).is_file():
            return Document.load(Path(what))
        archive = _git(self.project.root, "archive", "--format=tar", f"{what}:./")
        if archive is None:
            raise BenchError(f"--against {what}: neither a file nor a git revision of this package")
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(folder, filter="data")
            command = [
                sys.executable,
                "-m",
                "harness",
                "bench",
                "--json",
                "--root",
                folder,
                "--chip",
                self.arguments.chip,
            ]
            command += ["--device", "npu" if self.on_npu else "virtual"]
            command += [word for case in cases for word in ("--case", case.name)]
            command += ["--repetitions", str(self.arguments.repetitions), "--warmup", str(self.arguments.warmup)]
            own = Path(__file__).resolve().parents[2]
            environment = os.environ | {"PYTHONPATH": str(own)}
            done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
            if done.returncode:
                raise BenchError(f"--against {what}: that version could not be run:\n{done.stderr.strip()[-1500:]}")
            return Document.from_json(json.loads(done.stdout))

    def keep(self, document: Document) -> None:
        """Compares with the last entry of the history, then appends."""
        path: Path = self.arguments.history
        if path.is_file():
            try:
                changes = compare(Document.load(path), document)
            except BenchError as error:
                self.say(f"{path}: not compared: {error}")
            else:
                show.print_changes(self.console, changes, f"the last entry of {path}")
                if any(change.verdict == "slower" for change in changes):
                    mark = "::warning::" if os.environ.get("GITHUB_ACTIONS") else ""
                    self.warn(f"{mark}{document.project}: {document.kind} {summary(changes)}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(document.to_json()) + "\n")

    def sweep(self, case: Case) -> int:
        todo = tune.candidates(self.project, self.arguments.tune)
        # Ranges that were given are tried: the kernel may not be the starter's any more.
        trials = [] if self.arguments.tune else tune.misfits(self.project, todo, case.shape)
        left_out = [trial.blocks for trial in trials]
        todo = [blocks for blocks in todo if blocks not in left_out]
        chip = "npu" if self.on_npu else find_chip(catalog.load(), self.project.platform, self.arguments.chip).name
        text = self.project.kernel.read_text(encoding="utf-8")
        log = tune.Log(self.output / f"tune-{case.name}.jsonl", text, dict(case.shape), chip, self.on_npu)
        with self.console.status("") as line:
            for trial in self._trials(case, todo, log):
                trials.append(trial)
                line.update(f"{len(trials) - len(left_out)} of {len(todo)} combinations")
        if self.arguments.json:
            document = {"schema": 1, "case": case.name, "chip": chip, "trials": [vars(trial) for trial in trials]}
            print(json.dumps(document, indent=1))
            return 0
        show.print_trials(self.console, trials, self.project.block)
        best = tune.proposal(trials, self.project.block)
        if best is None:
            self.say("the defaults are as fast as any of them")
        else:
            self.say("\n".join(show.proposal(self.project, best)))
        if not self.on_npu:
            self.warn(ACCURACY)
            self.warn(show.NOT_CHECKED)
        return 0

    def _trials(self, case: Case, todo: Sequence[Mapping[str, int]], log: tune.Log) -> Iterator[tune.Trial]:
        if self.on_npu:

            def on_device(blocks: Mapping[str, int], number: int) -> tune.Trial:
                try:
                    row, _ = measure(self.project, self.spec, case, blocks=blocks, npu=number, baseline=False)
                except BenchError as error:
                    return tune.Trial(dict(blocks), None, str(error).splitlines()[0])
                return tune.Trial(dict(blocks), row.microseconds)

            yield from tune.sweep(todo, on_device, log, workers=npu_count())
            return
        with find_compiler() as compiler:
            bench = VirtualBench(self.project, self.spec, compiler, self.arguments.chip)

            def on_clock(blocks: Mapping[str, int], number: int) -> tune.Trial:
                try:
                    row, _ = bench.estimate(case, blocks)
                except (ClockError, CompilerError) as error:
                    return tune.Trial(dict(blocks), None, str(error).splitlines()[0])
                return tune.Trial(dict(blocks), row.microseconds)

            yield from tune.sweep(todo, on_clock, log)


def _git(root: Path, *arguments: str) -> bytes | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
