"""What a person sees of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.bench.result import Change, Document, Row, summary
from harness.bench.tune import Trial
from harness.clock import Estimate


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
    console.print(f"  limited by {found.limit}", markup=False)
    for core, pipes in found.busy.items():
        shares = ", ".join(f"{pipe} {share:.0%}" for pipe, share in pipes.items() if share >= 0.005)
        if shares:
            console.print(f"  {core} core busy: {shares}", markup=False)
    moved = ", ".join(f"{route} {n / 1e6:.1f} MB" for route, n in found.bytes.items())
    console.print(f"  moved: {moved}; {found.intensity:.1f} FLOP per byte", markup=False)
    for hot in found.hot[:3]:
        console.print(
            f"  {hot.share:.0%} of the path: {hot.instruction} ({hot.core} {hot.pipe}), generated line {hot.line}",
            markup=False,
        )


def print_changes(console: Console, changes: Sequence[Change], what: str) -> None:
    """Prints a comparison and its verdict."""
    console.print(f"against {what}", markup=False)
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


def print_trials(console: Console, trials: Sequence[Trial]) -> None:
    """Prints a sweep, fastest first."""
    console.print("block sizes")
    table = Table(pad_edge=False)
    names = list(trials[0].blocks) if trials else []
    for name in (*names, "µs"):
        table.add_column(name, justify="right")
    table.add_column("")
    for trial in sorted(trials, key=lambda t: (t.microseconds is None, t.microseconds or 0.0)):
        time = f"{trial.microseconds:.1f}" if trial.microseconds is not None else "–"
        table.add_row(*(str(trial.blocks[name]) for name in names), time, escape(trial.reason))
    console.print(table)
