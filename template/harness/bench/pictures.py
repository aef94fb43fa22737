"""Pictures of a result: where it lies under the roofline, when which pipe works, and the same for trace viewers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.bench.result import Row
from harness.clock import Estimate
from harness.clock.model import PIPES, ROLES
from harness.clock.trace import Traced

COLOURS = {"MTE2": "#4878a8", "MTE1": "#7fb3d5", "M": "#b5483a", "V": "#d08a2e", "FIX": "#7a6aa8", "MTE3": "#5a9367"}
SHOWN = 1500  # most bars per pipe in the timeline; beyond that a window is shown


def _figure(width: float, height: float) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {"font.size": 9, "svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False}
    )
    return pyplot.subplots(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: Path) -> list[Path]:
    from matplotlib import pyplot

    paths = [path.with_suffix(".svg"), path.with_suffix(".png")]
    for target in paths:
        figure.savefig(target, dpi=150, metadata={"Date": None} if target.suffix == ".svg" else None)
    pyplot.close(figure)
    return paths


def roofline(rows: Sequence[tuple[str, Row]], path: Path) -> list[Path]:
    """Draws labelled rows under the chip's roofline as SVG and PNG; nothing for an unknown chip."""
    known = [(label, row) for label, row in rows if row.bound and row.intensity > 0]
    if not known:
        return []
    figure, axes = _figure(6.4, 4.2)
    peak, memory = known[0][1].peak_tflops, known[0][1].memory_tbps
    ridge = peak / memory
    left = min(0.5 * ridge, *(row.intensity / 3 for _, row in known))
    right = max(10 * ridge, *(row.intensity * 3 for _, row in known))
    x = np.geomspace(left, right, 200)
    axes.plot(x, np.minimum(peak, memory * x), color="black", linewidth=1.5)
    axes.annotate(
        f"{peak:.0f} TFLOP/s", (right, peak), ha="right", va="bottom", xytext=(0, 3), textcoords="offset points"
    )
    slope = (left * ridge) ** 0.5
    axes.annotate(
        f"{memory:g} TB/s", (slope, memory * slope), ha="right", va="bottom", xytext=(-6, 3), textcoords="offset points"
    )
    for number, (label, row) in enumerate(known):
        colour = f"C{number}"
        axes.plot(
            row.intensity, row.tflops, "o", color=colour, label=f"{label}: {row.tflops:.3g} TFLOP/s, {row.share:.0%}"
        )
        axes.plot([row.intensity] * 2, [row.tflops, min(peak, memory * row.intensity)], ":", color=colour, linewidth=1)
    axes.set(
        xscale="log", yscale="log", xlabel="FLOP per byte of compulsory traffic", ylabel="TFLOP/s", xlim=(left, right)
    )
    low = min(row.tflops for _, row in known)
    axes.set_ylim(min(low / 3, memory * left), peak * 2)
    axes.legend(frameon=False, loc="lower right")
    estimated = all(row.source == "virtual clock" for _, row in known)
    axes.set_title("Roofline (estimates of the virtual clock)" if estimated else "Roofline (measured)", loc="left")
    return _save(figure, path)


def timeline(found: Estimate, path: Path, name: str) -> list[Path]:
    """Draws which pipe of the slowest block of kernel ``name`` works when, as SVG and PNG."""
    traced = found.trace
    if traced is None or not len(traced.timeline):
        return []
    rows = traced.timeline
    ghz = _ghz(found)
    lanes = sorted({(int(role), int(pipe)) for role, pipe in zip(rows["role"], rows["pipe"], strict=True)}, key=_order)
    start, end = _window(rows, lanes)
    figure, axes = _figure(9.0, 0.7 + 0.36 * len(lanes))
    for height, lane in enumerate(reversed(lanes)):
        mine = rows[(rows["role"] == lane[0]) & (rows["pipe"] == lane[1])]
        mine = mine[(mine["end"] > start) & (mine["start"] < end)]
        bars = [(a / ghz / 1000, (b - a) / ghz / 1000) for a, b in zip(mine["start"], mine["end"], strict=True)]
        colour = COLOURS.get(PIPES[lane[1]], "#888888")
        axes.broken_barh(bars, (height - 0.4, 0.8), facecolors=colour, edgecolor="white", linewidth=0.2)
        share = float(np.minimum(mine["end"], end).sum() - np.maximum(mine["start"], start).sum()) / (end - start)
        axes.text(1.005, height, f"{share:.0%}", transform=axes.get_yaxis_transform(), va="center")
    axes.set_yticks(range(len(lanes)), [f"{ROLES[role]}  {PIPES[pipe]}" for role, pipe in reversed(lanes)])
    axes.set_xlim(start / ghz / 1000, end / ghz / 1000)
    axes.set_ylim(-0.6, len(lanes) - 0.4)
    axes.set_xlabel("µs in the block; a bar for every instruction, many short ones look pale; right: share of the time")
    part = "" if end >= float(rows["end"].max()) and start <= float(rows["start"].min()) else ", a window of it"
    axes.set_title(f"{name}: pipes of block {traced.report['shown']}{part} (estimate)", loc="left")
    return _save(figure, path)


def _order(lane: tuple[int, int]) -> tuple[int, int]:
    order = ("MTE2", "MTE1", "M", "V", "FIX", "MTE3", "S", "ALL")
    return lane[0], order.index(PIPES[lane[1]])


def _window(rows: Any, lanes: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Start and end, in cycles, of what can be seen: the whole block, or a piece from its middle."""
    first, last = float(rows["start"].min()), float(rows["end"].max())
    most = max(int(((rows["role"] == role) & (rows["pipe"] == pipe)).sum()) for role, pipe in lanes)
    if most <= SHOWN:
        return first, last
    length, middle = (last - first) * SHOWN / most, (first + last) / 2
    return middle - length / 2, middle + length / 2


def _ghz(found: Estimate) -> float:
    cycles: float = found.trace.report["span"] if found.trace else 0.0
    return cycles / found.pipes_us / 1000 if found.pipes_us else 1.0


def trace_json(found: Estimate, path: Path) -> list[Path]:
    """Writes the slowest block as a Chrome trace, which Perfetto (ui.perfetto.dev) opens too."""
    traced = found.trace
    if traced is None or not len(traced.timeline):
        return []
    ghz = _ghz(found)
    events: list[dict[str, Any]] = []
    for role, name in enumerate(ROLES):
        events.append({"ph": "M", "pid": role, "name": "process_name", "args": {"name": f"{name} core"}})
    seen: set[tuple[int, int]] = set()
    for row in traced.timeline:
        role, pipe = int(row["role"]), int(row["pipe"])
        if (role, pipe) not in seen:
            seen.add((role, pipe))
            events.append({"ph": "M", "pid": role, "tid": pipe, "name": "thread_name", "args": {"name": PIPES[pipe]}})
        events.append(_event(row, role, pipe, traced, ghz))
    path.write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": events}), encoding="utf-8")
    return [path]


def _event(row: Any, role: int, pipe: int, traced: Traced, ghz: float) -> dict[str, Any]:
    intrinsic, instruction, line, moved = traced.report["kinds"][role][int(row["kind"])]
    arguments = {"intrinsic": intrinsic, "line": line} | ({"bytes": moved} if moved else {})
    start, length = float(row["start"]) / ghz / 1000, float(row["end"] - row["start"]) / ghz / 1000
    name = instruction or intrinsic
    return {"ph": "X", "pid": role, "tid": pipe, "ts": start, "dur": length, "name": name, "args": arguments}
