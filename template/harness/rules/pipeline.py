"""3xx: T.Pipelined."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.rules.cores import core
from harness.rules.model import Frame
from harness.rules.registry import Hit, View, rule


def pipelines(view: View) -> list[tuple[Frame, ast.Call]]:
    """The pipelined loops; without ``num_stages`` T.Pipelined is a plain loop."""
    frames = dict.fromkeys(f for op in view.kernel.operations for f in op.loops if f.name == "T.Pipelined")
    found = [(f, f.node.iter) for f in frames if isinstance(f.node, ast.For) and isinstance(f.node.iter, ast.Call)]
    return [(frame, call) for frame, call in found if stages(view, call)[0] is not None]


def stages(view: View, call: ast.Call) -> tuple[ast.expr | None, object]:
    node = next((k.value for k in call.keywords if k.arg == "num_stages"), call.args[2] if len(call.args) > 2 else None)
    return node, view.value(node)


def crosses(view: View, frame: Frame) -> bool:
    """Whether the loop holds work of both kinds of core."""
    kinds = {core(view.kernel, op) for op in view.kernel.operations if frame in op.frames}
    return {"C", "V"} <= kinds


@rule(
    "TLA301",
    "pipeline-stages",
    "The pipeline is unrolled by its stages: fewer iterations than stages are not run rightly.",
)
def pipeline_stages(view: View) -> Iterator[Hit]:
    for _, call in pipelines(view):
        node, count = stages(view, call)
        extent = call.args[1] if len(call.args) > 1 else call.args[0] if call.args else None
        trips, note = view.value(extent), view.note(*(n for n in (extent, node) if n is not None))
        if isinstance(count, int) and count < 1:
            yield Hit(node or call, f"num_stages is {count}", "use 2 or more, or T.serial")
        elif isinstance(count, int) and isinstance(trips, int) and trips < count:
            yield Hit(call, f"{trips} iterations are fewer than {count} stages{note}", "use fewer stages or T.serial")


@rule("TLA302", "pipeline-divisible", "Iterations beyond the last whole round of stages are dropped between the cores.")
def pipeline_divisible(view: View) -> Iterator[Hit]:
    for frame, call in pipelines(view):
        _, count = stages(view, call)
        extent = call.args[0] if len(call.args) == 1 else None
        trips = view.value(extent)
        if (
            isinstance(count, int)
            and count > 0
            and isinstance(trips, int)
            and trips >= count
            and trips % count
            and crosses(view, frame)
        ):
            note = view.note(*(n for n in (extent,) if n is not None))
            yield Hit(
                call,
                f"{trips} iterations are not a multiple of {count} stages{note}",
                "pad the loop, or choose stages that divide it",
            )


@rule("TLA303", "pipeline-start", "A pipeline counts from 0.")
def pipeline_start(view: View) -> Iterator[Hit]:
    for _, call in pipelines(view):
        if len(call.args) > 1 and view.value(call.args[0]) != 0:
            yield Hit(
                call.args[0],
                f"T.Pipelined starts at {ast.unparse(call.args[0])}",
                "start at 0 and add the offset in the body",
            )


@rule("TLA304", "pipeline-nested", "Pipelines between cores and within a core cannot be nested.")
def pipeline_nested(view: View) -> Iterator[Hit]:
    staged = [frame for frame, _ in pipelines(view)]
    for operation in view.kernel.operations:
        nested = [frame for frame in operation.loops if frame in staged]
        if len(nested) > 1:
            yield Hit(
                nested[1].node,
                "T.Pipelined inside T.Pipelined",
                "make the inner loop T.serial with two buffers by hand",
            )


@rule("TLA305", "pipeline-switches", "A pipeline across cores needs AUTO_CV_COMBINE and AUTO_CV_SYNC.")
def pipeline_switches(view: View) -> Iterator[Hit]:
    missing = [name for name in ("auto_cv_combine", "auto_cv_sync") if view.on(name) is False]
    for frame, call in pipelines(view) if missing else ():
        scoped = any(op.in_scope for op in view.kernel.operations if frame in op.frames)
        if crosses(view, frame) and not scoped:
            names = " and ".join(f"TL_ASCEND_{name.upper()}" for name in missing)
            yield Hit(
                call,
                f"T.Pipelined holds cube and vector work while {names} {'is' if len(missing) == 1 else 'are'} off",
                f"switch {names} on",
            )


@rule("TLA306", "pipeline-single", "The compiler accepts one pipeline between the cores in a kernel.")
def pipeline_single(view: View) -> Iterator[Hit]:
    across = [call for frame, call in pipelines(view) if crosses(view, frame)]
    for call in across[1:] if view.on("auto_cv_combine") else ():
        yield Hit(
            call, f"a second pipeline across cores (the first is on line {across[0].lineno})", "make this loop T.serial"
        )


@rule("TLA307", "pipeline-dynamic", "A pipeline's number of iterations must be known when the kernel is compiled.")
def pipeline_dynamic(view: View) -> Iterator[Hit]:
    tensors = {p.name for p in view.kernel.parameters if p.is_tensor} | set(view.kernel.buffers)
    for _, call in pipelines(view):
        for extent in call.args[:2]:
            names = {n.id for n in ast.walk(extent) if isinstance(n, ast.Name)}
            for name in list(names):
                bound, _, _ = view.kernel.scope.lookup(name)
                names |= {n.id for n in ast.walk(bound) if isinstance(n, ast.Name)} if bound is not None else set()
            if names & tensors:
                yield Hit(extent, f"the number of iterations depends on {min(names & tensors)}", "use T.serial")
