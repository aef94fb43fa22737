"""The address map of a kernel's on-chip memories as an SVG picture: what lies where, and what shares a place."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from harness.budget import Use, end, problems
from harness.compiler.lowered import Buffer

WIDTH, LEFT, ROW, GAP = 960, 64, 22, 34
COLOURS = ("#4e79a7", "#59a14f", "#f28e2b", "#b07aa1", "#76b7b2", "#edc948", "#9c755f", "#ff9da7")
STYLE = "text{font:12px sans-serif;fill:#222}.in{fill:#fff}.axis{stroke:#888}.full{stroke:#c00;stroke-width:2}"


def lanes(buffers: Sequence[Buffer]) -> list[list[Buffer]]:
    """Buffers in as few rows as keep those apart that share addresses; one row means that nothing is reused."""
    rows: list[list[Buffer]] = []
    for buffer in sorted(buffers, key=lambda b: (b.address, -b.bytes, b.name)):
        row = next((row for row in rows if end(row[-1]) <= buffer.address), None)
        if row is None:
            rows.append([buffer])
        else:
            row.append(buffer)
    return rows


def svg(uses: Sequence[Use], title: str) -> str:
    """One bar for each memory, from address 0 to its capacity; buffers in several rows share their addresses.

    Args:
        uses: From ``harness.budget.budget``.
        title: Shown above the bars.
    """
    parts: list[str] = []
    top = 48
    for use in uses:
        rows = lanes(use.buffers)
        scale = (WIDTH - LEFT - 16) / max(use.capacity, use.used, 1)
        height = ROW * len(rows)
        wasted = sum(buffer.bytes for buffer in use.buffers)
        reuse = f", {wasted:,} without reuse" if wasted > use.used else ""
        mark = " full" if any(problems((use,))) else ""
        label = f"{use.used:,} of {use.capacity:,} bytes ({use.share:.0%}{reuse})"
        parts.append(f'<text x="8" y="{top + 15}" font-weight="bold">{use.memory}</text>')
        parts.append(f'<text x="{LEFT}" y="{top - 5}">{label}</text>')
        frame = f'x="{LEFT}" y="{top}" width="{use.capacity * scale:.1f}" height="{height}"'
        parts.append(f'<rect class="axis{mark}" {frame} fill="#f2f2f2"/>')
        for number, row in enumerate(rows):
            for buffer in row:
                parts.append(_box(buffer, LEFT + buffer.address * scale, top + number * ROW, buffer.bytes * scale))
        top += height + GAP
    size = f'viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    name = escape(title)
    heading = f'<title>{name}</title><style>{STYLE}</style><text x="8" y="20" font-weight="bold">{name}</text>'
    return "\n".join([head, heading, *parts, "</svg>", ""])


def _box(buffer: Buffer, x: float, y: float, width: float) -> str:
    """A buffer: its name where there is room for it, figures in the tooltip."""
    colour = COLOURS[sum(map(ord, buffer.name)) % len(COLOURS)]
    tip = f"{buffer.name}: {buffer.bytes:,} bytes at {buffer.address:,}"
    name = escape(buffer.name)
    text = f'<text class="in" x="{x + 4:.1f}" y="{y + 15}">{name}</text>' if width > 7 * len(buffer.name) + 6 else ""
    box = f'<rect x="{x:.1f}" y="{y + 1}" width="{max(width, 1):.1f}" height="{ROW - 2}" fill="{colour}"/>'
    return f"<g><title>{escape(tip)}</title>{box}{text}</g>"


def write(path: Path, uses: Sequence[Use], title: str) -> None:
    """Write the picture to a file."""
    path.write_text(svg(uses, title), encoding="utf-8")
