"""2xx: scopes, flags and barriers against the switches and against each other."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from harness.rules.cores import core, places
from harness.rules.model import SYNCHRONISATION, Frame, Operation
from harness.rules.registry import Edit, Hit, Severity, View, replace, rule

PIPES = ("fix", "mte1", "mte2", "mte3", "m", "v", "s")
INTRA = ("T.set_flag", "T.wait_flag")
CROSS = ("T.set_cross_flag", "T.wait_cross_flag")
# Pipes of each core; the scalar pipe belongs to both.
CORE_PIPES = {"C": {"fix", "mte1", "mte2", "m", "s"}, "V": {"mte2", "mte3", "v", "s"}}


def scopes(view: View) -> list[Frame]:
    return list(dict.fromkeys(f for op in view.kernel.operations for f in op.frames if f.kind == "scope"))


@rule(
    "TLA201", "combine-with-scope", "AUTO_CV_COMBINE splits the kernel itself; a T.Scope in it miscomputes or crashes."
)
def combine_with_scope(view: View) -> Iterator[Hit]:
    found = scopes(view)
    # One kind of core only is guarded twice, which is harmless; a package follows the scenario all the same.
    if view.on("auto_cv_combine") and (view.context.scenario is not None or len({f.name for f in found}) > 1):
        for frame in found:
            message = f"T.Scope({frame.name!r}) while TL_ASCEND_AUTO_CV_COMBINE is on"
            yield Hit(frame.node, message, "remove T.Scope and dedent its body, or switch AUTO_CV_COMBINE off")


@rule("TLA202", "missing-scope", "Without AUTO_CV_COMBINE only T.Scope keeps an operation on its core.")
def missing_scope(view: View) -> Iterator[Hit]:
    if view.on("auto_cv_combine") is not False:
        return
    outside = [op for op in view.kernel.operations if not op.in_scope and core(view.kernel, op) is not None]
    cube = any(core(view.kernel, op) == "C" for op in view.kernel.operations)
    if outside and (cube or view.context.era != "0.1.4"):
        kind = core(view.kernel, outside[0])
        first = outside[0]
        why = "the code runs on both kinds of core" if cube else f"era {view.context.era} refuses it"
        message = f"{first.name} is outside T.Scope while TL_ASCEND_AUTO_CV_COMBINE is off: {why}"
        yield Hit(first.node, message, f'put it in with T.Scope("{kind}"):, or switch AUTO_CV_COMBINE on')


@rule("TLA203", "unknown-scope", "The compiler takes any scope but V for the cube core.")
def unknown_scope(view: View) -> Iterator[Hit]:
    for frame in scopes(view):
        if frame.name is not None and frame.name not in ("C", "V"):
            near = frame.name.strip().upper()[:1]
            edits: tuple[Edit, ...] = ()
            if near in ("C", "V") and isinstance(frame.node, ast.With):
                call = frame.node.items[0].context_expr
                edits = (replace(call.args[0], f'"{near}"'),) if isinstance(call, ast.Call) else ()
            yield Hit(frame.node, f"T.Scope({frame.name!r}): a scope is 'C' or 'V'", "write 'C' or 'V'", edits)


@rule("TLA204", "nested-scope", "A scope inside another one is dead code or runs twice.")
def nested_scope(view: View) -> Iterator[Hit]:
    for operation in view.kernel.operations:
        inner = [frame for frame in operation.frames if frame.kind == "scope"]
        if len(inner) > 1:
            yield Hit(
                inner[1].node, f"T.Scope({inner[1].name!r}) inside T.Scope({inner[0].name!r})", "end the outer one"
            )


@rule("TLA205", "wrong-core", "An operation in the other core's scope is dead code there.")
def wrong_core(view: View) -> Iterator[Hit]:
    for operation in view.kernel.operations:
        kind = core(view.kernel, operation)
        if kind is not None and operation.scope in ("C", "V") and kind != operation.scope:
            word = {"C": "cube", "V": "vector"}
            message = f"{operation.name} is {word[kind]} work in T.Scope({operation.scope!r})"
            yield Hit(operation.node, message, f'move it to T.Scope("{kind}")')


@rule(
    "TLA206",
    "superfluous-sync",
    "AUTO_SYNC inserts flags and barriers; further ones cost time and may clash.",
    severity="warning",
    package=True,
)
def superfluous_sync(view: View) -> Iterator[Hit]:
    if view.on("auto_sync"):
        for operation in view.kernel.named("T.barrier_all", "T.pipe_barrier", *INTRA):
            yield Hit(operation.node, f"{operation.name} while TL_ASCEND_AUTO_SYNC is on", "remove it")


@rule(
    "TLA207",
    "superfluous-cross-flag",
    "AUTO_CV_SYNC numbers its own cross-core flags: yours may be the same.",
    package=True,
)
def superfluous_cross_flag(view: View) -> Iterator[Hit]:
    if view.on("auto_cv_sync") and view.on("auto_cv_combine"):
        for operation in view.kernel.named(*CROSS):
            yield Hit(operation.node, f"{operation.name} while TL_ASCEND_AUTO_CV_SYNC is on", "remove it")


def _straight(view: View) -> Iterator[list[Operation]]:
    """Runs of operations that execute one after the other: same scope, same loops, same branch."""
    run: list[Operation] = []
    for operation in view.kernel.operations:
        if run and operation.frames != run[-1].frames:
            yield run
            run = []
        run.append(operation)
    yield run


def _pipe(view: View, operation: Operation) -> str | None:
    """The pipe an operation runs on; gemm_v0, which synchronises with its neighbours itself, counts as none."""
    if operation.name == "T.mma":
        return "m"
    if operation.name.startswith(("T.tile.", "T.reduce_")) and operation.name != "T.tile.atomic_add":
        return "v"
    if operation.name != "T.copy" or not operation.reads or not operation.writes:
        return None
    source, target = view.place(operation.reads[0]), view.place(operation.writes[0])
    routes = {("GM", "UB"): "mte2", ("GM", "L1"): "mte2", ("UB", "GM"): "mte3", ("UB", "L1"): "mte3", ("UB", "UB"): "v"}
    routes |= {("L1", "L0A"): "mte1", ("L1", "L0B"): "mte1", ("L0C", "GM"): "fix"}
    return routes.get((source or "", target or ""))


@rule("TLA208", "missing-sync", "Pipes run on their own: without a flag or barrier a reader overtakes the writer.")
def missing_sync(view: View) -> Iterator[Hit]:
    if view.on("auto_sync") is not False:
        return
    for run in _straight(view):
        writers: dict[str, tuple[str, Operation]] = {}
        for operation in run:
            pipe = _pipe(view, operation)
            if operation.name in SYNCHRONISATION or operation.name == "T.assign":
                writers = {}
            for operand in operation.reads if pipe is not None else ():
                source, writer = writers.get(operand.name, (pipe, operation))
                if source != pipe and view.place(operand) != "GM":
                    at = getattr(writer.node, "lineno", 0)
                    message = (
                        f"{operation.name} reads {operand.name} on pipe {pipe} while {writer.name} (line {at}) may"
                        f" still write it on pipe {source}: no barrier or flag is between them"
                    )
                    fix = f'T.set_flag("{source}", "{pipe}", 0) and T.wait_flag("{source}", "{pipe}", 0) between them'
                    yield Hit(operation.node, message, fix)
            for operand in operation.writes:
                if pipe is None:
                    writers.pop(operand.name, None)
                else:
                    writers[operand.name] = (pipe, operation)


@rule(
    "TLA209", "flag-range", "There are 8 flags per pair of pipes and 16 between cores; a higher number is another flag."
)
def flag_range(view: View) -> Iterator[Hit]:
    for operation in view.kernel.named(*INTRA, *CROSS):
        node = _flag_node(operation)
        value, limit = view.exact(node), 8 if operation.name in INTRA else 16
        if node is not None and isinstance(value, int) and not 0 <= value < limit:
            # Beyond what is documented, kernels have been seen to use up to 15 between pipes.
            severity: Severity | None = "warning" if 0 <= value < 16 else None
            message = f"flag {value} of {operation.name}: ids run from 0 to {limit - 1}"
            yield Hit(node, message, f"use 0 to {limit - 1}", severity=severity)


def _flag_node(operation: Operation) -> ast.expr | None:
    position = {"T.set_flag": 2, "T.wait_flag": 2, "T.set_cross_flag": 1, "T.wait_cross_flag": 0}[operation.name]
    return operation.argument(position, "eventId" if operation.name in INTRA else "flag")


def _pair(view: View, operation: Operation) -> tuple[str, ...]:
    names = ("src", "dst") if operation.name in INTRA else ("pipe",)
    values = (view.value(operation.argument(position, name)) for position, name in enumerate(names))
    return tuple(value.lower() if isinstance(value, str) else "?" for value in values)


@rule("TLA210", "pipe", "A pipe that the core does not have never answers.")
def pipe_name(view: View) -> Iterator[Hit]:
    for operation in view.kernel.named(*INTRA, "T.set_cross_flag", "T.pipe_barrier"):
        pair = _pair(view, operation) if operation.name != "T.pipe_barrier" else _pair(view, operation)[:1]
        bad = [pipe for pipe in pair if pipe not in (*PIPES, "?", "all")]
        if bad:
            yield Hit(
                operation.node, f"{operation.name}: there is no pipe {bad[0]!r}", f"use one of {', '.join(PIPES)}"
            )
        elif operation.name in INTRA and len(set(pair)) == 1 and "?" not in pair:
            yield Hit(
                operation.node, f"{operation.name} from pipe {pair[0]} to itself", "T.pipe_barrier orders one pipe"
            )
        elif operation.scope in CORE_PIPES and set(pair) - CORE_PIPES[operation.scope] - {"?", "all"}:
            missing = min(set(pair) - CORE_PIPES[operation.scope] - {"?", "all"})
            kind = {"C": "cube", "V": "vector"}[operation.scope]
            yield Hit(
                operation.node, f"{operation.name}: the {kind} core has no pipe {missing}", "use that core's pipes"
            )


@rule("TLA211", "unpaired-flag", "A wait nobody answers hangs the core; a set nobody waits for meets the next kernel.")
def unpaired_flag(view: View) -> Iterator[Hit]:
    groups: dict[tuple[str | None, tuple[str, ...]], list[Operation]] = defaultdict(list)
    for operation in view.kernel.named(*INTRA):
        groups[operation.scope, _pair(view, operation)].append(operation)
    for (_, pair), calls in groups.items():
        flags = {op: view.exact(_flag_node(op)) for op in calls}
        known = all(isinstance(value, int) for value in flags.values())
        for operation, flag in flags.items():
            others = [other for op, other in flags.items() if op.name != operation.name]
            if "?" not in pair and (not others or (known and flag not in others)):
                verb = "waits for" if operation.name == "T.set_flag" else "sets"
                shown = ast.unparse(_flag_node(operation) or ast.Constant("?"))
                message = f"nothing {verb} flag {shown} from {pair[0]} to {pair[1]} on this core"
                yield Hit(operation.node, message, "pair every T.set_flag with a T.wait_flag of the same pipes and id")


@rule("TLA212", "unpaired-cross-flag", "A cross-core flag is set on one kind of core and waited for on the other.")
def unpaired_cross_flag(view: View) -> Iterator[Hit]:
    if view.on("auto_cv_combine") is not False:
        return
    sets = [op for op in view.kernel.named("T.set_cross_flag") if view.value(op.argument(2, "mode")) in (None, 2)]
    waits = list(view.kernel.named("T.wait_cross_flag"))
    if len(sets) < sum(1 for _ in view.kernel.named("T.set_cross_flag")):
        return  # other modes join cores of one kind
    values = [[(op.scope, view.exact(_flag_node(op))) for op in side] for side in (sets, waits)]
    known = all(isinstance(value, int) and scope in ("C", "V") for side in values for scope, value in side)
    for side, own, other, verb in ((sets, values[0], values[1], "waits for"), (waits, values[1], values[0], "sets")):
        for operation, (scope, value) in zip(side, own, strict=True):
            opposite = {"C": "V", "V": "C"}.get(scope or "", "")
            if not other or (known and (opposite, value) not in other):
                kind = {"C": "vector", "V": "cube"}.get(scope or "", "other")
                flag = ast.unparse(_flag_node(operation) or ast.Constant("?"))
                yield Hit(
                    operation.node, f"the {kind} core never {verb} cross-core flag {flag}", "add its counterpart there"
                )


@rule("TLA213", "missing-cross-sync", "Cube and vector cores run on their own: data between them needs a flag.")
def missing_cross_sync(view: View) -> Iterator[Hit]:
    if (
        view.on("auto_cv_combine") is not False
        or any(view.kernel.named(*CROSS, "T.sync_all"))
        or view.kernel.unknown_calls
    ):
        return
    for parameter in view.kernel.parameters:
        writers = {
            op.scope: op for op in view.kernel.named("T.copy") if any(o.name == parameter.name for o in op.writes)
        }
        for operation in view.kernel.named("T.copy"):
            reads = any(o.name == parameter.name for o in operation.reads)
            opposite = {"C": "V", "V": "C"}.get(operation.scope or "", "")
            if reads and opposite in writers and places(view.kernel, operation):
                message = f"the other core writes {parameter.name} and no cross-core flag tells when"
                yield Hit(
                    operation.node, message, "T.set_cross_flag after the write, T.wait_cross_flag before the read"
                )
