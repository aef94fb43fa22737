"""5xx: element types."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator

from harness.rules.cores import CUBE
from harness.rules.memory import ELEMENTWISE
from harness.rules.model import ITEMSIZE, Evaluator
from harness.rules.registry import Hit, View, rule

FLOATS = ("float16", "bfloat16", "float32")
FLOAT_ONLY = {
    f"T.tile.{name}" for name in ("exp", "ln", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "sigmoid", "silu")
}
MIXED = {
    "T.tile.compare",
    "T.tile.select",
    "T.tile.bitwise_lshift",
    "T.tile.bitwise_rshift",
    "T.tile.mul_add_dst",
    "T.tile.axpy",
}


def dtype_of(view: View, name: str) -> str | None:
    buffer = view.kernel.buffers.get(name)
    parameter = view.kernel.parameter(name)
    return buffer.dtype if buffer is not None else parameter.dtype if parameter is not None else None


def typed(view: View) -> Iterator[tuple[str, ast.AST]]:
    """The element types of buffers and tensors, where they are known."""
    named: list[tuple[str | None, ast.AST]] = [(b.dtype, b.node) for b in view.kernel.buffers.values()]
    for dtype, node in [*named, *((p.dtype, p.node) for p in view.kernel.parameters)]:
        if dtype is not None:
            yield dtype, node


@rule("TLA501", "unknown-dtype", "The compiler knows each element type under one name.")
def unknown_dtype(view: View) -> Iterator[Hit]:
    near = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "double": "float32", "float64": "float32"}
    for dtype, node in typed(view):
        known = dtype in ITEMSIZE or dtype.startswith(("int4", "uint4", "float4", "float8", "e4m3", "e5m2"))
        if not known or dtype == "float64":
            what = "is not supported by the NPU" if dtype in ("float64", "double") else "is not an element type"
            better = near.get(dtype) or next(iter(difflib.get_close_matches(dtype, ITEMSIZE, 1)), "float32")
            yield Hit(node, f"{dtype!r} {what}", f"write {better!r}")


@rule("TLA502", "platform-dtype", "float8 exists only on A5.", package=True)
def platform_dtype(view: View) -> Iterator[Hit]:
    for dtype, node in typed(view):
        if "float8" in dtype and view.context.platform != "A5":
            fix = "use float16 or bfloat16, or platform A5"
            yield Hit(node, f"{dtype} on {view.context.platform}, which does not have it", fix)


@rule("TLA503", "accumulator-dtype", "The cube core sums in float32, or in int32 for int8.")
def accumulator_dtype(view: View) -> Iterator[Hit]:
    for operation in view.live(*CUBE):
        left = dtype_of(view, operation.reads[0].name) if operation.reads else None
        wanted = "int32" if left in ("int8", "uint8") else "float32"
        for operand in operation.writes:
            buffer = view.kernel.buffers.get(operand.name)
            if left is not None and buffer is not None and buffer.dtype not in (None, wanted):
                message = f"accumulator {buffer.name} is {buffer.dtype}; products of {left} need {wanted}"
                yield Hit(buffer.node, message, f"allocate it as {wanted!r}")


@rule("TLA504", "product-dtypes", "Both operands of a product have one type; the compiler does not look.")
def product_dtypes(view: View) -> Iterator[Hit]:
    for operation in view.live(*CUBE):
        types = [dtype_of(view, o.name) for o in operation.reads[:2]]
        if len(types) == 2 and None not in types and types[0] != types[1]:
            yield Hit(operation.node, f"{operation.name} multiplies {types[0]} by {types[1]}", "cast one operand first")
        elif types[:1] == ["float32"] and view.context.scenario is not None:
            yield Hit(
                operation.node,
                f"{operation.name} on float32 gives NaN or Inf (open upstream)",
                "use float16 or bfloat16",
            )


@rule("TLA505", "operand-dtypes", "Tile operations read every operand as the destination's type.")
def operand_dtypes(view: View) -> Iterator[Hit]:
    for operation in view.live(*(ELEMENTWISE - MIXED)):
        target = dtype_of(view, operation.writes[0].name) if operation.writes else None
        for operand in operation.reads:
            source = dtype_of(view, operand.name)
            region = isinstance(operand.node, ast.Name) or any(isinstance(n, ast.Slice) for n in ast.walk(operand.node))
            buffer = view.kernel.buffers.get(operand.name)
            if region and target and source and source != target and buffer is not None and buffer.memory != "var":
                yield Hit(
                    operation.node,
                    f"{operation.name}: {operand.name} is {source}, the destination {target}",
                    "cast it first (T.tile.cast or T.copy between UB buffers)",
                )


@rule("TLA506", "copy-dtype", "A copy between GM and UB or L1 moves bytes: it does not convert.")
def copy_dtype(view: View) -> Iterator[Hit]:
    for operation in view.live("T.copy"):
        if len(operation.reads) != 1 or len(operation.writes) != 1:
            continue
        ends = (operation.reads[0], operation.writes[0])
        memories, types = [view.place(o) for o in ends], [dtype_of(view, o.name) for o in ends]
        if None not in types and types[0] != types[1] and "GM" in memories and {"UB", "L1"} & set(memories):
            yield Hit(
                operation.node,
                f"T.copy from {ends[0].name} ({types[0]}, {memories[0]}) to {ends[1].name} ({types[1]}, {memories[1]})",
                "copy to a buffer of the same type, then cast on chip",
            )


@rule("TLA507", "float-function", "exp, sqrt and their like exist for floating-point types only.")
def float_function(view: View) -> Iterator[Hit]:
    for operation in view.live(*FLOAT_ONLY):
        dtype = dtype_of(view, operation.writes[0].name) if operation.writes else None
        if dtype in ITEMSIZE and dtype not in FLOATS:
            yield Hit(operation.node, f"{operation.name} on {dtype}", "cast to float32 first")


@rule(
    "TLA508", "reduce-dtype", "A sum of many half-precision numbers loses its low bits; float32 does not.", package=True
)
def reduce_dtype(view: View) -> Iterator[Hit]:
    for operation in view.live("T.reduce_sum"):
        for operand in operation.reads[:1]:
            dtype = dtype_of(view, operand.name)
            if dtype in ("float16", "bfloat16"):
                yield Hit(
                    operation.node,
                    f"T.reduce_sum on {dtype} ({operand.name})",
                    "cast to float32 first, and back afterwards",
                )


@rule("TLA509", "numpy-scalar", "A numpy scalar is not a TileLang constant.", severity="warning")
def numpy_scalar(view: View) -> Iterator[Hit]:
    for node in view.kernel.nodes:
        if isinstance(node, ast.Call):
            name = view.module.resolve(node.func)
            if name.startswith("numpy.") and not isinstance(Evaluator(view.module, view.kernel.scope)(node), int):
                yield Hit(
                    node, f"{name} inside a prim_func", "compute it in the factory and wrap it in float() or int()"
                )
