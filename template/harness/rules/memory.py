"""4xx: where buffers live, how large they are, how they are aligned, and whether they hold anything."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence

from harness.catalog import MEMORIES
from harness.rules.cores import CUBE
from harness.rules.model import ITEMSIZE, Buffer, Frame, Operand, Operation
from harness.rules.registry import Hit, View, rule

_NAMES = """add sub mul div max min exp ln abs reciprocal sqrt rsqrt relu leaky_relu axpy sin cos sigmoid silu
bitwise_and bitwise_or bitwise_not bitwise_xor bitwise_lshift bitwise_rshift mul_add_dst"""
ELEMENTWISE = {f"T.tile.{name}" for name in _NAMES.split()}
SCRATCH = {
    "T.tile.pow",
    "T.tile.broadcast",
    "T.tile.sort",
    "T.tile.topk",
    "T.reduce_sum",
    "T.reduce_max",
    "T.reduce_min",
}


@rule("TLA401", "row-alignment", "A vector instruction works on whole 32-byte blocks: shorter rows overlap.")
def row_alignment(view: View) -> Iterator[Hit]:
    catalog = view.context.catalog
    align = catalog.alignment(view.context.platform, "UB") if catalog else 1
    for buffer in view.kernel.buffers.values():
        width = view.row_bytes(buffer)
        if buffer.memory != "UB" or width is None or len(buffer.shape or ()) < 2 or buffer.shape[-1] in (0, 1, None):  # type: ignore[index]
            continue
        if width % align:
            step = align // ITEMSIZE[buffer.dtype or ""]
            last = width // ITEMSIZE[buffer.dtype or ""]
            yield Hit(
                buffer.node,
                f"a row of {buffer.name} is {last} × {buffer.dtype} = {width} bytes, not a multiple of {align}"
                + view.note(*buffer.shape_nodes[-1:]),
                f"make the last dimension a multiple of {step}, for example {-(-last // step) * step}",
            )


def product(view: View, operation: Operation) -> tuple[int | None, int | None, int | None, int | None] | None:
    """(M, K of the left operand, K of the right one, N) of a product of whole buffers; None when one is a slice."""
    left, right = operation.argument(0, "A"), operation.argument(1, "B")
    a, b = view.whole(left), view.whole(right)
    if a is None or b is None or a.shape is None or b.shape is None or len(a.shape) != 2 or len(b.shape) != 2:
        return None
    flips = []
    for position, name in ((3, "transpose_A"), (4, "transpose_B")):
        node = operation.argument(position, name) if operation.name != "T.mma" else None
        flips.append(False if node is None else view.value(node))
    if None in flips:
        return None
    (m, k), (k_right, n) = a.shape[:: -1 if flips[0] else 1], b.shape[:: -1 if flips[1] else 1]
    return m, k, k_right, n


@rule("TLA402", "cube-minimum", "The cube core multiplies fractals of 16 × 16 (int8: 32 along K).")
def cube_minimum(view: View) -> Iterator[Hit]:
    catalog = view.context.catalog
    for operation in view.live(*CUBE) if catalog else ():
        assert catalog is not None
        sizes = product(view, operation)
        if sizes is None:
            continue
        left = view.whole(operation.argument(0, "A"))
        dtype = left.dtype if left else None
        limits = {name: int(v) for name, v in catalog.hardware[view.context.platform]["cube_minimum"].items()}
        if dtype in catalog.dtypes:
            limits["K"] = int(catalog.dtypes[dtype or ""].get("cube_minimum_k", 16))
        for name, value in zip("MKN", (sizes[0], sizes[1], sizes[3]), strict=True):
            if value is not None and value < limits.get(name, 0):
                kind = f" for {dtype}" if name == "K" else ""
                message = f"{name} is {value}, the cube core needs at least {limits[name]}{kind}"
                yield Hit(operation.node, message + _shapes(view, operation), f"use a block of at least {limits[name]}")


def _shapes(view: View, operation: Operation) -> str:
    used = [view.kernel.buffers[o.name] for o in (*operation.reads, *operation.writes) if o.name in view.kernel.buffers]
    return view.note(*(node for buffer in used for node in buffer.shape_nodes))


@rule("TLA403", "capacity", "On-chip overflow is not diagnosed: the compiler crashes, or the device faults.")
def capacity(view: View) -> Iterator[Hit]:
    catalog = view.context.catalog
    if catalog is None:
        return
    apart = view.on("memory_planning") is False and not any(view.live("T.annotate_address"))
    divisor = 2 if _halved(view) else 1  # threads=2: each vector core gets half the rows
    for memory in MEMORIES:
        available = catalog.capacity(view.context.platform, memory) * (divisor if memory == "UB" else 1)
        found = [b for b in view.kernel.buffers.values() if b.memory == memory and b.bytes]
        groups: list[list[Buffer]] = [found] if apart else []
        for operation in view.live():
            names = {o.name for o in (*operation.reads, *operation.writes)}
            groups.append([b for b in found if b.name in names])
        together = max(groups, key=_total, default=[])
        needed = _total(together)
        scratch = {op.name for op in view.live()} & SCRATCH if memory == "UB" else set()
        if needed <= available and not (scratch and needed > 0.95 * available):
            continue
        largest = sorted(together, key=lambda b: -(b.bytes or 0))
        parts = ", ".join(f"{b.name} {b.bytes:,}" for b in largest[:4]) + view.note(
            *(node for b in together for node in b.shape_nodes)
        )
        use = f"{needed:,} of {available:,} bytes{' in two vector cores' if memory == 'UB' and divisor == 2 else ''}"
        if needed > available:
            how = "without memory planning" if apart else "used by one operation"
            fix = "use smaller blocks" + (", or switch TL_ASCEND_MEMORY_PLANNING on" if apart else "")
            yield Hit(largest[0].node, f"{memory} overflows: {use} {how} ({parts})", fix)
        else:
            message = f"UB is nearly full: {use} ({parts}), and {min(scratch)} needs scratch space"
            yield Hit(largest[0].node, message, "leave about 5 % free", severity="warning")


def _total(buffers: Sequence[Buffer]) -> int:
    return sum(buffer.bytes or 0 for buffer in buffers)


def _halved(view: View) -> bool:
    """Whether the compiler splits the rows of UB buffers between the two vector cores (``threads=2``)."""
    return any(launch.threads is not None and view.value(launch.threads) == 2 for launch in view.kernel.launches)


@rule("TLA404", "address", "Hand-placed buffers are not checked by the compiler.")
def address(view: View) -> Iterator[Hit]:
    catalog = view.context.catalog
    for operation in view.live("T.annotate_address") if catalog else ():
        assert catalog is not None
        table = operation.argument(0, "")
        for key, value in zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else ():
            buffer, offset = view.whole(key), view.value(value)
            if buffer is None or not isinstance(offset, int) or buffer.memory not in MEMORIES:
                continue
            memory, note = buffer.memory, view.note(value, *buffer.shape_nodes)
            align = catalog.alignment(view.context.platform, memory)
            limit = -(-catalog.capacity(view.context.platform, memory) // 1024) * 1024  # no planner, no reserve
            end = offset + (buffer.bytes or 0)
            if offset % align:
                message = f"{buffer.name} starts at {offset}, but {memory} wants multiples of {align} bytes{note}"
                yield Hit(value, message, f"use {-(-offset // align) * align}")
            elif end > limit:
                yield Hit(
                    value, f"{buffer.name} ends at {end:,}, beyond {memory}'s {limit:,} bytes{note}", "move it down"
                )


@rule(
    "TLA405", "wrong-memory", "Each unit reaches only its own memory; the compiler emits the instruction all the same."
)
def wrong_memory(view: View) -> Iterator[Hit]:
    for operation in view.live():
        name = operation.name
        pairs: list[tuple[Operand, str]] = []
        if name in CUBE:
            sides = ("L0A", "L0B") if name == "T.mma" else ("L1", "L1")
            pairs = [*zip(operation.reads[:2], sides, strict=False), *((o, "L0C") for o in operation.writes)]
        elif name in ELEMENTWISE or name.startswith("T.reduce_"):
            pairs = [(o, "UB") for o in (*operation.reads, *operation.writes)]
        for operand, memory in pairs:
            place = view.place(operand)
            scalar = not isinstance(operand.node, ast.Name) and not any(
                isinstance(n, ast.Slice) for n in ast.walk(operand.node)
            )
            if place not in (memory, None, "var") and not (place == "GM" and scalar):
                fix = f"copy it to {memory} first" if place == "GM" else f"allocate {operand.name} in {memory}"
                yield Hit(operand.node, f"{name} works on {memory}, but {operand.name} is in {place}", fix)


@rule("TLA406", "out-of-bounds", "Nothing checks indices: what lies beyond is read or overwritten.")
def out_of_bounds(view: View) -> Iterator[Hit]:
    for operation in view.live():
        for operand in (*operation.reads, *operation.writes):
            buffer, node = view.kernel.buffers.get(operand.name), operand.node
            if buffer is None or buffer.shape is None or not isinstance(node, ast.Subscript) or buffer.memory == "var":
                continue
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            for part, size in zip(parts, buffer.shape, strict=False):
                value = view.value(part.upper if isinstance(part, ast.Slice) else part)
                last = size if isinstance(part, ast.Slice) or size is None else size - 1
                if isinstance(value, int) and last is not None and not 0 <= value <= last:
                    message = f"index {value} of {operand.name}, which has {size} elements in that dimension"
                    yield Hit(node, message + view.note(*buffer.shape_nodes), f"stay within 0…{last}")


@rule("TLA407", "empty-buffer", "A dimension of zero or less allocates nothing.")
def empty_buffer(view: View) -> Iterator[Hit]:
    for buffer in view.kernel.buffers.values():
        if any(n is not None and n <= 0 for n in buffer.shape or ()):
            message = f"{buffer.name} has shape {buffer.shape}{view.note(*buffer.shape_nodes)}"
            yield Hit(buffer.node, message, "use a positive size")


@rule("TLA408", "uninitialised", "Memory on the chip holds what the last kernel left there.")
def uninitialised(view: View) -> Iterator[Hit]:
    if view.kernel.unknown_calls or any(view.live("T.annotate_address")):  # the latter may overlay buffers
        return
    written = {o.name for op in view.live() for o in op.writes}
    for buffer in view.kernel.buffers.values():
        first = next((o for op in view.live() for o in op.reads if o.name == buffer.name), None)
        if buffer.memory != "var" and first is not None and buffer.name not in written:
            yield Hit(first.node, f"{buffer.name} is read but nothing ever writes it", "fill it or copy into it first")


@rule("TLA409", "accumulator-init", "gemm_v0 adds to its accumulator unless init= says otherwise.")
def accumulator_init(view: View) -> Iterator[Hit]:
    operations = list(view.live())
    for buffer in view.kernel.buffers.values():
        writers = [op for op in operations if any(o.name == buffer.name for o in op.writes)]
        products = [op for op in writers if op.name in CUBE]
        starts = {op: op.argument(3 if op.name == "T.mma" else 5, "init") for op in products}
        if products == writers and products and all(_is(node, False) for node in starts.values()):
            message = f"nothing initialises the accumulator {buffer.name}"
            yield Hit(products[0].node, message, "write init=(k == 0), or init=True for a single product")
        for operation, node in starts.items():
            if node is None or not _is(node, True) or not operation.loops:
                continue
            loop = operation.loops[-1]
            within = [op for op in operations if loop in op.frames and op is not operation]
            readers = [op for op in operations if any(o.name == buffer.name for o in op.reads) and op not in within]
            branch = any(f.kind == "branch" for f in operation.frames[operation.frames.index(loop) :])
            used = any(o.name == buffer.name for op in within for o in (*op.reads, *op.writes))
            if readers and not branch and not used and loop.targets:
                message = f"init=True in the loop: only the last product is left in {buffer.name}"
                yield Hit(operation.node, message, f"write init=({loop.targets[0]} == 0)")


def _is(node: ast.expr | None, value: bool) -> bool:
    """Whether ``init=`` is this constant; absent means False."""
    return isinstance(node, ast.Constant) and node.value is value if node is not None else not value


@rule("TLA410", "unused-buffer", "An unused buffer still takes its place on the chip.", severity="warning")
def unused_buffer(view: View) -> Iterator[Hit]:
    nodes = [node for node in view.kernel.nodes if isinstance(node, ast.Name)]
    used = {node.id for node in nodes if isinstance(node.ctx, ast.Load)}
    for buffer in view.kernel.buffers.values():
        if buffer.name not in used:
            yield Hit(buffer.node, f"{buffer.name} is allocated but never used", "remove it")


@rule("TLA411", "operand-sizes", "Tile operations take as many elements as the destination has.")
def operand_sizes(view: View) -> Iterator[Hit]:
    for operation in view.live(*ELEMENTWISE):
        target = view.whole(operation.argument(0, "dst"))
        for node in operation.arguments[1:]:
            source = view.whole(node)
            if target is None or source is None or "var" in (source.memory, target.memory):
                continue
            a, b = (math.prod(n for n in x.shape or () if n is not None) for x in (target, source))
            if target.bytes is not None and source.bytes is not None and a != b:
                message = (
                    f"{operation.name}: {target.name} has {a} elements {target.shape}, {source.name} {b} {source.shape}"
                )
                fix = "bring the smaller one to size with T.tile.broadcast, or correct the shape"
                yield Hit(operation.node, message + _shapes(view, operation), fix)


@rule("TLA412", "product-shapes", "A mismatch inside gemm_v0 surfaces as an internal compiler error, or not at all.")
def product_shapes(view: View) -> Iterator[Hit]:
    for operation in view.live(*CUBE):
        sizes, target = product(view, operation), view.whole(operation.argument(2, "C"))
        if sizes is None:
            continue
        m, k, k_right, n = sizes
        note = _shapes(view, operation)
        if k is not None and k_right is not None and k != k_right:
            fix = "correct a shape, or set transpose_A or transpose_B"
            yield Hit(operation.node, f"K is {k} in the left operand and {k_right} in the right one{note}", fix)
        elif target is not None and target.shape and None not in (*target.shape, m, n) and target.shape != (m, n):
            message = f"the product is ({m}, {n}), but {target.name} is {target.shape}{note}"
            yield Hit(operation.node, message, f"allocate {target.name} as ({m}, {n})")


@rule(
    "TLA413", "parallel-extent", "T.Parallel becomes one vector instruction over its extents, however short the buffer."
)
def parallel_extent(view: View) -> Iterator[Hit]:
    for operation in view.live("T.assign"):
        extents: dict[str, ast.expr] = {}
        for frame in operation.loops:
            if frame.name == "T.Parallel" and isinstance(frame.node, ast.For) and isinstance(frame.node.iter, ast.Call):
                extents.update(zip(frame.targets, frame.node.iter.args, strict=False))
        for operand in (*operation.writes, *operation.reads):
            buffer, node = view.kernel.buffers.get(operand.name), operand.node
            if buffer is None or buffer.shape is None or not isinstance(node, ast.Subscript):
                continue
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            for part, size in zip(parts, buffer.shape, strict=False):
                extent = view.value(extents.get(part.id)) if isinstance(part, ast.Name) else None
                if isinstance(extent, int) and size is not None and extent > size:
                    message = f"T.Parallel runs {part.id} to {extent}, but {buffer.name} is {buffer.shape}"  # type: ignore[attr-defined]
                    note = view.note(extents[part.id], *buffer.shape_nodes)  # type: ignore[attr-defined]
                    yield Hit(node, message + note, f"use the buffer's size, {size}")


@rule(
    "TLA415",
    "tail-padding",
    "Beyond the edge of a tensor a tile holds 0, which is the largest of negative numbers.",
    package=True,
)
def tail_padding(view: View) -> Iterator[Hit]:
    operations = view.kernel.operations
    for reduction in view.kernel.named("T.reduce_max", "T.reduce_min"):
        sources = {operand.name for operand in reduction.reads[:1]}
        moves = [op for op in operations if op.name in ("T.copy", "T.tile.cast") and op.index < reduction.index]
        for move in reversed(moves):  # back through casts and copies on the chip
            if {o.name for o in move.writes} & sources:
                sources |= {o.name for o in move.reads if o.name in view.kernel.buffers}
        for load in moves:
            from_tensor = load.reads and load.reads[0].name not in view.kernel.buffers
            if not from_tensor or "pad_value" in load.keywords or not {o.name for o in load.writes} & sources:
                continue
            loop = next((f for f in load.loops if _runs_past(view, f, load.reads[0].node)), None)
            if loop is not None:
                neutral = "-T.infinity(dtype)" if reduction.name == "T.reduce_max" else "T.infinity(dtype)"
                line = getattr(reduction.node, "lineno", 0)
                message = f"{reduction.name} (line {line}) takes the zeros behind the last column for values"
                yield Hit(load.node, message, f"add pad_value={neutral} to this copy")


def _runs_past(view: View, loop: Frame, tensor: ast.expr) -> bool:
    """Whether the loop rounds up and its variable chooses the last dimension of the copied region."""
    if not isinstance(tensor, ast.Subscript) or not isinstance(loop.node, ast.For):
        return False
    last = tensor.slice.elts[-1] if isinstance(tensor.slice, ast.Tuple) else tensor.slice
    used = {n.id for n in ast.walk(last) if isinstance(n, ast.Name)}
    rounds_up = False
    for part in view.kernel.scope.behind(loop.node.iter):
        if isinstance(part, ast.Call) and view.module.resolve(part.func) == "T.ceildiv":
            values = [view.exact(argument) for argument in part.args]
            rounds_up |= not (all(isinstance(v, int) and v for v in values) and values[0] % values[1] == 0)
    return rounds_up and bool(used & set(loop.targets))
