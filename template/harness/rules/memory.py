"""4xx: where buffers live, how large they are, how they are aligned, and whether they hold anything."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from harness.catalog import MEMORIES
from harness.rules.cores import CUBE
from harness.rules.model import ITEMSIZE, SYNCHRONISATION, Buffer, Evaluator, Factory, Kernel, Module, Operand
from harness.rules.registry import Context, Hit, rule

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


def _kernels(module: Module) -> Iterator[tuple[Factory, Kernel]]:
    return ((factory, kernel) for factory in module.factories for kernel in factory.kernels)


def defaults_note(factory: Factory, *nodes: ast.expr) -> str:
    """`` (with the defaults block_M=64)`` for the parameters of the factory that the expressions use."""
    names = {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}
    pending, used = list(names), dict[str, str]()
    while pending:
        bound, _, is_default = factory.scope.lookup(pending.pop())
        if bound is not None and not is_default:
            pending += [n.id for n in ast.walk(bound) if isinstance(n, ast.Name) and n.id not in names]
            names |= set(pending)
    for name in sorted(names):
        bound, _, is_default = factory.scope.lookup(name)
        if bound is not None and is_default:
            used[name] = ast.unparse(bound)
    return (
        f" (with the default{'s' * (len(used) > 1)} {', '.join(f'{k}={v}' for k, v in used.items())})" if used else ""
    )


@rule("TLA401", "row-alignment", "A vector instruction reads whole 32-byte blocks: shorter rows run into each other.")
def row_alignment(module: Module, context: Context) -> Iterator[Hit]:
    if context.catalog is None:
        return
    align = context.catalog.alignment(context.platform, "UB")
    for factory, kernel in _kernels(module):
        for buffer in kernel.buffers.values():
            if buffer.memory != "UB" or buffer.shape is None or len(buffer.shape) < 2 or buffer.dtype not in ITEMSIZE:
                continue
            last = buffer.shape[-1]
            if last is None or last <= 1 or last * ITEMSIZE[buffer.dtype] % align == 0:
                continue
            step = align // ITEMSIZE[buffer.dtype]
            note = defaults_note(factory, *buffer.shape_nodes[-1:])
            yield Hit(
                buffer.node,
                f"rows of {buffer.name} are {last} × {buffer.dtype} = {last * ITEMSIZE[buffer.dtype]} bytes, not a multiple of {align}{note}",
                f"make the last dimension a multiple of {step}, for example {-(-last // step) * step}",
            )


@rule(
    "TLA402", "cube-minimum", "The cube core multiplies fractals: smaller operands are padded with whatever lies there."
)
def cube_minimum(module: Module, context: Context) -> Iterator[Hit]:
    if context.catalog is None:
        return
    smallest = context.catalog.hardware[context.platform]["cube_minimum"]
    for factory, kernel in _kernels(module):
        for operation in kernel.named(*CUBE):
            sizes = gemm_sizes(module, kernel, operation.arguments, operation.keywords)
            if sizes is None:
                continue
            m, k, _, n, dtype = sizes
            limits = {"M": int(smallest["M"]), "N": int(smallest["N"])}
            if dtype is not None and dtype in context.catalog.dtypes:
                limits["K"] = int(context.catalog.dtypes[dtype].get("cube_minimum_k", 16))
            for name, value in (("M", m), ("N", n), ("K", k)):
                if value is not None and name in limits and value < limits[name]:
                    note = defaults_note(
                        factory, *(kernel.buffers[o.name].node for o in operation.reads if o.name in kernel.buffers)
                    )
                    yield Hit(
                        operation.node,
                        f"{name} is {value}, the cube core needs at least {limits[name]}{' for ' + dtype if name == 'K' and dtype else ''}{note}",
                        f"use blocks of at least {limits[name]}",
                    )


def gemm_sizes(
    module: Module, kernel: Kernel, arguments: tuple[ast.expr, ...], keywords: object
) -> tuple[int | None, int | None, int | None, int | None, str | None] | None:
    """(M, K of A, K of B, N, dtype of A) of a product of whole buffers; None when an operand is not one."""
    named = dict(keywords) if isinstance(keywords, dict) else {}
    left = arguments[0] if arguments else named.get("A")
    right = arguments[1] if len(arguments) > 1 else named.get("B")
    a, b = (_whole(kernel, node) for node in (left, right))
    if a is None or b is None or len(a.shape or ()) != 2 or len(b.shape or ()) != 2:
        return None
    assert a.shape is not None and b.shape is not None
    evaluate = Evaluator(module, kernel.scope)
    flip_a = _flag(evaluate, arguments, named, 3, "transpose_A")
    flip_b = _flag(evaluate, arguments, named, 4, "transpose_B")
    if flip_a is None or flip_b is None:
        return None
    (m, k), (k_b, n) = (a.shape[::-1] if flip_a else a.shape), (b.shape[::-1] if flip_b else b.shape)
    return m, k, k_b, n, a.dtype


def _flag(
    evaluate: Evaluator, arguments: tuple[ast.expr, ...], keywords: dict[str, ast.expr], position: int, name: str
) -> bool | None:
    node = keywords.get(name) or (arguments[position] if len(arguments) > position else None)
    value = False if node is None else evaluate(node)
    return value if isinstance(value, bool) else None


def _whole(kernel: Kernel, node: ast.expr | None) -> Buffer | None:
    """The buffer when ``node`` names all of it."""
    return kernel.buffers.get(kernel.aliases.get(node.id, node.id)) if isinstance(node, ast.Name) else None


@rule("TLA403", "capacity", "On-chip overflow is not diagnosed: the compiler crashes, or the device faults.")
def capacity(module: Module, context: Context) -> Iterator[Hit]:
    if context.catalog is None:
        return
    for factory, kernel in _kernels(module):
        planned = factory.config.on("memory_planning") is not False
        placed = any(kernel.named("T.annotate_address"))
        for memory in MEMORIES:
            available = context.catalog.capacity(context.platform, memory)
            found = [b for b in kernel.buffers.values() if b.memory == memory and b.bytes]
            groups = [
                ({o.name for o in (*op.reads, *op.writes)}, op.node)
                for op in kernel.operations
                if op.name not in SYNCHRONISATION
            ]
            best, needed = list[Buffer](), 0
            if not planned and not placed:
                groups = [({b.name for b in found}, kernel.node)]
            for names, node in groups:
                alive = [b for b in found if b.name in names]
                total = sum(b.bytes or 0 for b in alive)
                if total > needed:
                    best, needed = alive, total
            if needed > available:
                largest = max(best, key=lambda b: b.bytes or 0)
                listed = ", ".join(f"{b.name} {b.bytes:,}" for b in sorted(best, key=lambda b: -(b.bytes or 0))[:4])
                note = defaults_note(factory, *(n for b in best for n in b.shape_nodes))
                together = "used together" if planned or placed else "without memory planning"
                yield Hit(
                    largest.node,
                    f"{memory} overflows: {needed:,} bytes {together} of {available:,} available ({listed}){note}",
                    "use smaller blocks" + ("" if planned else ", or switch TL_ASCEND_MEMORY_PLANNING on"),
                )
                continue
            scratch = {op.name for op in kernel.operations} & SCRATCH
            if memory == "UB" and scratch and needed > 0.95 * available:
                largest = max(best, key=lambda b: b.bytes or 0)
                yield Hit(
                    largest.node,
                    f"UB is nearly full ({needed:,} of {available:,} bytes) and {min(scratch)} needs scratch space",
                    "leave about 5 % free",
                    severity="warning",
                )


@rule("TLA404", "address", "Hand-placed buffers are not checked by the compiler.")
def address(module: Module, context: Context) -> Iterator[Hit]:
    if context.catalog is None:
        return
    for factory, kernel in _kernels(module):
        evaluate = Evaluator(module, kernel.scope)
        for operation in kernel.named("T.annotate_address"):
            table = operation.arguments[0] if operation.arguments else None
            for key, value in zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else []:
                buffer = kernel.buffers.get(key.id) if isinstance(key, ast.Name) else None
                offset = evaluate(value)
                if buffer is None or not isinstance(offset, int) or buffer.memory not in MEMORIES:
                    continue
                align, limit = (
                    context.catalog.alignment(context.platform, buffer.memory),
                    context.catalog.capacity(context.platform, buffer.memory),
                )
                note = defaults_note(factory, value)
                if offset % align:
                    yield Hit(
                        value,
                        f"{buffer.name} starts at {offset}, not a multiple of {align} bytes as {buffer.memory} needs{note}",
                        f"use {-(-offset // align) * align}",
                    )
                elif buffer.bytes and offset + buffer.bytes > limit + (256 if buffer.memory in ("UB", "L1") else 0):
                    yield Hit(
                        value,
                        f"{buffer.name} ends at {offset + buffer.bytes:,}, beyond the {limit:,} bytes of {buffer.memory}{note}",
                        "place it lower, or make it smaller",
                    )
        if (
            factory.config.on("memory_planning")
            and any(kernel.named("T.annotate_address"))
            and context.scenario is not None
        ):
            node = next(kernel.named("T.annotate_address")).node
            yield Hit(
                node,
                "T.annotate_address while TL_ASCEND_MEMORY_PLANNING is on: the planner decides the addresses",
                "remove it, or switch the planning off",
                severity="warning",
            )


@rule(
    "TLA405", "wrong-memory", "Each unit reaches its own memory only; the compiler emits the instruction all the same."
)
def wrong_memory(module: Module, context: Context) -> Iterator[Hit]:
    for _, kernel in _kernels(module):
        for operation in kernel.operations:
            name = operation.name
            wanted: list[tuple[Operand, str]] = []
            if name in ("T.gemm_v0", "T.gemm"):
                wanted = [(o, "L1") for o in operation.reads[:2]] + [(o, "L0C") for o in operation.writes]
            elif name == "T.mma":
                wanted = [
                    *zip(operation.reads[:2], ("L0A", "L0B"), strict=False),
                    *((o, "L0C") for o in operation.writes),
                ]
            elif name.startswith(("T.tile.", "T.reduce_")) and name != "T.tile.atomic_add" and "experiment" not in name:
                wanted = [(o, "UB") for o in (*operation.reads, *operation.writes)]
            for operand, memory in wanted:
                buffer = kernel.buffers.get(operand.name)
                place = "GM" if buffer is None else buffer.memory
                if place not in (memory, None, "var") and not (buffer is None and name == "T.reduce"):
                    if place == "GM" and not _is_region(operand.node):
                        continue  # a scalar read from a tensor is an operand like any other
                    yield Hit(
                        operand.node,
                        f"{name} works on {memory}, but {operand.name} is in {place}",
                        f"copy it to {memory} first" if place == "GM" else f"allocate {operand.name} in {memory}",
                    )


def _is_region(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) or any(isinstance(n, ast.Slice) for n in ast.walk(node))


@rule("TLA406", "out-of-bounds", "Nothing checks indices: what lies beyond is read or overwritten.")
def out_of_bounds(module: Module, context: Context) -> Iterator[Hit]:
    for factory, kernel in _kernels(module):
        evaluate = Evaluator(module, kernel.scope)
        for operation in kernel.operations:
            for operand in (*operation.reads, *operation.writes):
                buffer = kernel.buffers.get(operand.name)
                if (
                    buffer is None
                    or buffer.shape is None
                    or not isinstance(operand.node, ast.Subscript)
                    or buffer.memory == "var"
                ):
                    continue
                parts = operand.node.slice.elts if isinstance(operand.node.slice, ast.Tuple) else [operand.node.slice]
                for part, size in zip(parts, buffer.shape, strict=False):
                    value = evaluate(part.upper) if isinstance(part, ast.Slice) else evaluate(part)
                    limit = size if isinstance(part, ast.Slice) else (size - 1 if size is not None else None)
                    if (
                        isinstance(value, int)
                        and not isinstance(value, bool)
                        and limit is not None
                        and (value > limit or value < 0)
                    ):
                        note = defaults_note(factory, *buffer.shape_nodes)
                        yield Hit(
                            operand.node,
                            f"index {value} of {operand.name}, which has {size} elements in that dimension{note}",
                            f"stay within 0…{limit}",
                        )


@rule("TLA407", "empty-buffer", "A dimension of zero or less allocates nothing.")
def empty_buffer(module: Module, context: Context) -> Iterator[Hit]:
    for factory, kernel in _kernels(module):
        for buffer in kernel.buffers.values():
            if buffer.shape is not None and any(n is not None and n <= 0 for n in buffer.shape):
                yield Hit(
                    buffer.node,
                    f"{buffer.name} has shape {buffer.shape}{defaults_note(factory, *buffer.shape_nodes)}",
                    "use a positive size",
                )


@rule("TLA408", "uninitialised", "Memory on the chip holds what the last kernel left there.")
def uninitialised(module: Module, context: Context) -> Iterator[Hit]:
    for _, kernel in _kernels(module):
        if kernel.unknown_calls or any(kernel.named("T.annotate_address")):  # the latter may overlay buffers
            continue
        written = {o.name for op in kernel.operations for o in op.writes}
        for buffer in kernel.buffers.values():
            first = next(
                (
                    o
                    for op in kernel.operations
                    if op.name not in SYNCHRONISATION
                    for o in op.reads
                    if o.name == buffer.name
                ),
                None,
            )
            if buffer.memory != "var" and first is not None and buffer.name not in written:
                yield Hit(
                    first.node, f"{buffer.name} is read but nothing ever writes it", "fill it or copy into it first"
                )


@rule("TLA409", "accumulator-init", "gemm_v0 adds to its accumulator unless init= says otherwise.")
def accumulator_init(module: Module, context: Context) -> Iterator[Hit]:
    for _, kernel in _kernels(module):
        for buffer in kernel.buffers.values():
            products = [op for op in kernel.named(*CUBE) if any(o.name == buffer.name for o in op.writes)]
            others = [
                op for op in kernel.operations if op not in products and any(o.name == buffer.name for o in op.writes)
            ]
            if (
                products
                and not others
                and all(_never(op.argument(5 if op.name != "T.mma" else 3, "init")) for op in products)
            ):
                yield Hit(
                    products[0].node,
                    f"nothing initialises the accumulator {buffer.name}",
                    "write init=(k == 0), or init=True for a single product",
                )
                continue
            for product in products:
                init = product.argument(5 if product.name != "T.mma" else 3, "init")
                if not (isinstance(init, ast.Constant) and init.value is True) or not product.loops:
                    continue
                loop = product.loops[-1]
                inside = [
                    op
                    for op in kernel.operations
                    if loop in op.frames and any(o.name == buffer.name for o in op.reads) and op is not product
                ]
                same = [op for op in products if op is not product and loop in op.frames]
                branch = any(f.kind == "branch" for f in product.frames[product.frames.index(loop) :])
                if (
                    not inside
                    and not same
                    and not branch
                    and any(
                        o.name == buffer.name for op in kernel.operations for o in op.reads if loop not in op.frames
                    )
                ):
                    yield Hit(
                        product.node,
                        f"init=True in the loop: only the last iteration's product is left in {buffer.name}",
                        f"write init=({loop.targets[0] if loop.targets else 'k'} == 0)",
                    )


def _never(node: ast.expr | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value is False)


@rule("TLA410", "unused-buffer", "An unused buffer still takes its place on the chip.", severity="warning")
def unused_buffer(module: Module, context: Context) -> Iterator[Hit]:
    for _, kernel in _kernels(module):
        used = {
            n.id
            for node in ast.walk(kernel.node)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
            for n in [node]
        }
        for buffer in kernel.buffers.values():
            if buffer.name not in used:
                yield Hit(buffer.node, f"{buffer.name} is allocated but never used", "remove it")


@rule(
    "TLA411",
    "operand-sizes",
    "Tile operations take as many elements as the destination has, whatever the operands hold.",
)
def operand_sizes(module: Module, context: Context) -> Iterator[Hit]:
    for factory, kernel in _kernels(module):
        for operation in kernel.named(*ELEMENTWISE):
            target = _whole(kernel, operation.writes[0].node) if operation.writes else None
            for node in operation.arguments[1:]:
                source = _whole(kernel, node)
                if (
                    target is None
                    or source is None
                    or source.memory == "var"
                    or target.bytes is None
                    or source.bytes is None
                ):
                    continue
                sizes = [math.prod(n or 0 for n in b.shape or ()) for b in (target, source)]
                if sizes[0] != sizes[1]:
                    note = defaults_note(factory, *target.shape_nodes, *source.shape_nodes)
                    yield Hit(
                        operation.node,
                        f"{operation.name}: {target.name} has {sizes[0]} elements {target.shape}, {source.name} has {sizes[1]} {source.shape}{note}",
                        "T.tile.broadcast the smaller one first, or correct the shape",
                    )


@rule("TLA412", "product-shapes", "A mismatch inside gemm_v0 surfaces as an internal compiler error, or not at all.")
def product_shapes(module: Module, context: Context) -> Iterator[Hit]:
    for factory, kernel in _kernels(module):
        for operation in kernel.named(*CUBE):
            sizes = gemm_sizes(module, kernel, operation.arguments, operation.keywords)
            if sizes is None:
                continue
            m, k, k_b, n, _ = sizes
            target = _whole(kernel, operation.writes[0].node) if operation.writes else None
            nodes = [
                node
                for o in (*operation.reads, *operation.writes)
                if o.name in kernel.buffers
                for node in kernel.buffers[o.name].shape_nodes
            ]
            note = defaults_note(factory, *nodes)
            if k is not None and k_b is not None and k != k_b:
                yield Hit(
                    operation.node,
                    f"K is {k} in the left operand and {k_b} in the right one{note}",
                    "correct a shape, or set transpose_A / transpose_B",
                )
            elif (
                target is not None
                and target.shape is not None
                and None not in (*target.shape, m, n)
                and target.shape != (m, n)
            ):
                yield Hit(
                    operation.node,
                    f"the product is {m} × {n}, but {target.name} is {target.shape}{note}",
                    f"allocate {target.name} as ({m}, {n})",
                )
