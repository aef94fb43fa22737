"""What a person sees of a benchmark."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.bench.result import Change, Document, Row, summary
from harness.bench.tune import MISFIT, Trial
from harness.clock import Estimate
from harness.project import Project

NOT_CHECKED = "the numbers were not checked: python -m harness check does that"
SHOWN = 15  # fastest combinations of a sweep


def print_document(console: Console, document: Document) -> None:
    """Prints the rows, labelled as what they are."""
    estimate = document.kind == "estimate"
    what = "estimate of the virtual clock, no device" if estimate else f"measured on {document.device}"
    title = f"{document.project}: {document.platform} {document.chip}, {document.backend}, {what}"
    console.print(title, markup=False)  # above, not in the table: it would be wrapped to the table's width
    table = Table(pad_edge=False)
    table.add_column("case", overflow="fold")
    columns = ["µs", "TFLOP/s", "GB/s", "of roofline"]
    for heading in columns if estimate else [columns[0], "±", *columns[1:], "host µs"]:
        table.add_column(heading, justify="right")
    for row in document.rows:
        share = f"{row.share:.0%} ({row.bound})" if row.share is not None else "–"
        cells = [f"{row.tflops:.3g}", f"{row.gbps:.4g}", share]
        if not estimate:
            cells = [f"{row.spread:.1%}", *cells, f"{row.host_us:.1f}" if row.host_us is not None else "–"]
        table.add_row(row.case, f"{row.microseconds:.1f}", *cells)
    console.print(table)
    for row in document.rows:
        for note in row.notes:
            console.print(f"  {row.case}: {note}", markup=False)
    if estimate:
        console.print(f"  {document.accuracy}", markup=False, style="yellow")
        console.print(f"  {NOT_CHECKED}", markup=False, style="yellow")
    else:
        console.print(f"  device time: {', '.join(sorted({row.source for row in document.rows}))}", markup=False)
        console.print(bench_mark(document.rows), markup=False)


def bench_mark(rows: Sequence[Row]) -> str:
    """Upstream's report table, in Markdown."""
    lines = [
        "| case | baseline µs | TileLang µs | ratio | block dim | max diff |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        baseline = f"{row.baseline_us:.1f}" if row.baseline_us else "–"
        ratio = f"{row.baseline_us / row.microseconds:.2%}" if row.baseline_us else "–"
        error = f"{row.max_error:.2g}" if row.max_error is not None else "–"
        lines.append(
            f"| {row.case} | {baseline} | {row.microseconds:.1f} | {ratio} | {row.block_dim or '–'} | {error} |"
        )
    return "\n".join(lines)


def print_estimate(console: Console, case: str, found: Estimate) -> None:
    """Prints where the time of one estimate goes."""
    launch = f"{found.microseconds:.1f} µs = {max(found.pipes_us, found.memory_us):.1f} + {found.launch_us:.0f} launch"
    console.print(f"[bold]{escape(case)}[/]: {launch}; {found.blocks} blocks on {min(found.cores, found.blocks)} cores")
    if found.launch_us > found.microseconds / 2:
        most = f"{found.launch_us:.0f} of {found.microseconds:.1f} µs; the rest by "
        console.print(f"  limited by the launch: {most}{found.limit}", markup=False)
    else:
        console.print(f"  limited by {found.limit}", markup=False)
    for core, pipes in found.busy.items():
        shares = ", ".join(f"{pipe} {share:.0%}" for pipe, share in pipes.items() if share >= 0.005)
        if shares:
            console.print(f"  {core} core busy: {shares}", markup=False)
    moved = ", ".join(f"{route} {n / 1e6:.1f} MB" for route, n in found.bytes.items())
    console.print(f"  moved: {moved}; {found.intensity:.1f} FLOP per byte", markup=False)
    if found.hot:
        console.print("  largest steps of the critical path; lines are those of", markup=False)
        console.print(f"  python -m harness source --backend pto --case {case}", markup=False)
    for hot in found.hot[:3]:
        text = textwrap.shorten(hot.text or hot.instruction, 50, placeholder=" …")
        console.print(f"    {hot.share:.0%} {hot.core} {hot.pipe}, line {hot.line}: {text}", markup=False)


def print_changes(console: Console, changes: Sequence[Change], what: str) -> None:
    """Prints a comparison and its verdict."""
    launch = max((change.launch_us for change in changes), default=0.0)
    without = f": times without launch ({launch:.0f} µs)" if launch else ""
    console.print(f"against {what}{without}", markup=False)
    table = Table(pad_edge=False)
    for heading in ("case", "old µs", "new µs", "new / old", "verdict"):
        table.add_column(heading, justify="left" if heading in ("case", "verdict") else "right")
    style = {"faster": "green", "slower": "red", "no difference": ""}
    for change in changes:
        verdict = f"[{style[change.verdict]}]{change.verdict}[/]" if style[change.verdict] else change.verdict
        margin = f" (±{change.margin:.0%})"
        cells = (f"{change.old_us:.1f}", f"{change.new_us:.1f}", f"{change.ratio:.3f}", verdict + margin)
        table.add_row(escape(change.case), *cells)
    console.print(table)
    console.print(summary(changes), markup=False)


def print_trials(console: Console, trials: Sequence[Trial], default: Mapping[str, int]) -> None:
    """Prints a sweep: the fastest and the default, and how many have no time, with an example of why."""
    console.print("block sizes")
    table = Table(pad_edge=False)
    names = list(trials[0].blocks) if trials else []
    for name in (*names, "µs"):
        table.add_column(name, justify="right")
    table.add_column("")
    timed = sorted((t for t in trials if t.microseconds is not None), key=lambda t: t.microseconds or 0.0)
    for place, trial in enumerate(timed):
        usual = dict(trial.blocks) == dict(default)
        if usual or place < SHOWN:
            sizes = (str(trial.blocks[name]) for name in names)
            table.add_row(*sizes, f"{trial.microseconds:.1f}", "default" if usual else "")
    if timed:
        console.print(table)
    if len(timed) > table.row_count:
        console.print(f"and {len(timed) - table.row_count} slower ones")
    failed = [trial for trial in trials if trial.microseconds is None]
    for left_out in (True, False):
        some = [trial for trial in failed if trial.reason.startswith(MISFIT) == left_out]
        if some:
            what = "not tried, they cannot fit" if left_out else "without a time"
            first = some[0].reason.removeprefix(f"{MISFIT}: ")
            console.print(f"{len(some)} {what}, as {_sizes(some[0])}: {first}", markup=False)


def _sizes(trial: Trial) -> str:
    return ", ".join(f"{name}={size}" for name, size in trial.blocks.items())


def proposal(project: Project, best: Trial) -> list[str]:
    """What to change for the fastest combination: first the kernel, which an update does not touch."""
    answers = " ".join(f"-d {name.lower()}={size}" for name, size in best.blocks.items())
    return [
        f"proposed: {_sizes(best)}",
        f"  1. in src/{project.name}/kernel.py, make them the defaults of {project.name}()",
        "  2. then store them as answers; the update does not touch the kernel:",
        f"     copier update --trust {answers}",
    ]
