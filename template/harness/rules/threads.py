"""43x: what ``threads=2`` does to a kernel.

There the compiler halves the first dimension of every UB buffer and gives each vector core one half. What follows from
that was read in its pass (``AscendVidReduction``) and confirmed by running the kernels.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.rules.model import Buffer, Operand
from harness.rules.registry import Hit, View, rule

# Tile operations whose element count the compiler halves along with their buffers.
_NAMES = """add mul sub div max min bitwise_and bitwise_or exp ln abs reciprocal sqrt rsqrt relu bitwise_not leaky_relu
axpy bitwise_lshift bitwise_rshift compare sin cos fill clear atomic_add"""
RESIZED = {f"T.tile.{name}" for name in _NAMES.split()}


def _split(view: View) -> dict[str, Buffer]:
    """The UB buffers that are halved: all but those addressed by indices that lie in UB themselves (gathers)."""
    if not any(launch.threads is not None and view.value(launch.threads) == 2 for launch in view.kernel.launches):
        return {}
    found = {b.name: b for b in view.kernel.buffers.values() if b.memory == "UB"}
    for copy in view.live("T.copy"):
        operands = (*copy.reads, *copy.writes)
        inner = {
            n.id
            for o in operands
            if isinstance(o.node, ast.Subscript)
            for n in ast.walk(o.node.slice)
            if isinstance(n, ast.Name)
        }
        if inner & set(view.kernel.buffers):
            for operand in operands:
                found.pop(operand.name, None)
    return found


@rule("TLA431", "threads-odd-rows", "threads=2 halves the rows of every UB buffer: an odd count loses one.")
def odd_rows(view: View) -> Iterator[Hit]:
    for buffer in _split(view).values():
        rows = buffer.shape[0] if buffer.shape else None
        if rows is not None and rows % 2:
            message = f"{buffer.name} has {rows} row{'s' * (rows > 1)}, which threads=2 cannot halve"
            fix = "use an even first dimension, or T.Kernel(…) as (cid, vid)"
            yield Hit(buffer.node, message + view.note(*buffer.shape_nodes[:1]), fix)


@rule(
    "TLA432", "threads-column-vector", "threads=2 halves a vector that runs along the columns, and the columns with it."
)
def column_vector(view: View) -> Iterator[Hit]:
    split = _split(view)
    for operation in view.live("T.assign"):
        for operand in operation.reads:
            buffer, index = split.get(operand.name), _first_index(operand)
            rows = {_first_index(other) for other in operation.writes if other.name in split}
            columns = {n.id for other in operation.writes for n in ast.walk(other.node) if isinstance(n, ast.Name)}
            if buffer is not None and index is not None and index not in rows and index in columns:
                message = f"{buffer.name} runs along the columns ({index}), but threads=2 gives each core half of it"
                yield Hit(operand.node, message, "give it shape (rows, columns), or use T.Kernel(…) as (cid, vid)")


def _first_index(operand: Operand) -> str | None:
    if not isinstance(operand.node, ast.Subscript):
        return None
    index = operand.node.slice.elts[0] if isinstance(operand.node.slice, ast.Tuple) else operand.node.slice
    return index.id if isinstance(index, ast.Name) else None


@rule("TLA433", "threads-row-loop", "threads=2 halves loops over rows, whatever their extent is.")
def row_loop(view: View) -> Iterator[Hit]:
    split = _split(view)
    for operation in view.live():
        for frame in operation.loops:
            if not isinstance(frame.node, ast.For) or not isinstance(frame.node.iter, ast.Call) or not frame.targets:
                continue
            arguments = frame.node.iter.args
            for position, name in enumerate(frame.targets):
                used = [o for o in (*operation.reads, *operation.writes) if o.name in split and _first_index(o) == name]
                rows = split[used[0].name].shape if used else None
                if not used or not rows or frame.name == "T.Persistent":
                    continue
                single = frame.name != "T.Parallel"
                stop = arguments[1 if single and len(arguments) > 1 else 0 if single else position]
                start = view.value(arguments[0]) if single and len(arguments) > 1 else 0
                extent = view.value(stop)
                if (isinstance(extent, int) and rows[0] is not None and extent != rows[0]) or start not in (0, None):
                    message = f"the loop over {name} is not over all {rows[0]} rows of {used[0].name}, but is halved"
                    yield Hit(
                        frame.node, message + view.note(stop), "loop over all rows, or use T.Kernel(…) as (cid, vid)"
                    )


@rule(
    "TLA434",
    "threads-unsplit-operation",
    "With threads=2 this operation still writes as many elements as both halves have.",
)
def unsplit_operation(view: View) -> Iterator[Hit]:
    split = _split(view)
    for operation in view.live():
        whole = [b for b in map(view.whole, operation.arguments) if b is not None and b.name in split]
        if operation.name.startswith("T.tile.") and operation.name not in RESIZED and whole:
            message = f"{operation.name} on {whole[0].name}: with threads=2 the ascendc backend writes beyond its half"
            yield Hit(operation.node, message, "use T.copy or T.Parallel for it, or T.Kernel(…) as (cid, vid)")
