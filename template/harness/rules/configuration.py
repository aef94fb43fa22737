"""1xx: the decorator, the switches, the parameter list and the launch."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator

from harness.rules.model import SWITCH_STRINGS, SWITCHES, Evaluator, Factory, Kernel, Module
from harness.rules.registry import Context, Edit, Hit, rule

SPELLED = {name: key for key, name in SWITCHES.items()}


def indices(module: Module, factory: Factory, option: str) -> tuple[list[int] | None, ast.expr | None]:
    """``out_idx`` or ``workspace_idx`` as integers (None when not known from the text) and its node."""
    node = factory.options.get(option)
    if node is None or (isinstance(node, ast.Constant) and node.value is None):
        return [], node
    value = Evaluator(module, factory.scope.parent or factory.scope)(node)
    if isinstance(value, int):
        return [value], node
    if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
        return list(value), node
    return None, node


def outputs(module: Module, factory: Factory, kernel: Kernel, option: str) -> set[str]:
    """Names of the parameters that ``option`` points at; indices out of range are left to their own rule."""
    found, _ = indices(module, factory, option)
    count = len(kernel.parameters)
    return {kernel.parameters[i].name for i in found or [] if -count <= i < count}


def _replace(node: ast.expr, text: str) -> Edit:
    return Edit(node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0, text)


@rule("TLA101", "pass-configs", "The scenario decides the four compiler switches.", package=True)
def pass_configs(module: Module, context: Context) -> Iterator[Hit]:
    wanted = context.switches()
    if wanted is None:
        return
    for factory in module.factories:
        if factory.decorator is None or factory.config.switches is None:
            continue
        wrong = {name: on for name, on in wanted.items() if factory.config.on(name) != on}
        if wrong:
            listed = ", ".join(f"{SPELLED[name]} is {'off' if on else 'on'}" for name, on in wrong.items())
            row = ", ".join(SPELLED[name] for name, on in wanted.items() if on) or "none of the four"
            yield Hit(
                factory.config.node or factory.decorator,
                f"scenario {context.scenario} (compiler era {context.era}) needs {row} on and the rest off; here {listed}",
                "set the switches to the scenario's row",
                _switch_edits(module, factory, wrong),
            )


def _switch_edits(module: Module, factory: Factory, wrong: dict[str, bool]) -> tuple[Edit, ...]:
    """Flip the wrong values of a literal dictionary and add what is missing."""
    node = factory.config.node
    if not isinstance(node, ast.Dict) or not node.keys or any(key is None for key in node.keys):
        return ()
    edits = []
    present: dict[str, ast.expr] = {}
    for (_, name), value in zip(factory.config.keys, node.values, strict=False):
        switch = SWITCHES.get(name) or SWITCH_STRINGS.get(name)
        if switch is not None:
            present[switch] = value
    missing = [name for name in wrong if name not in present]
    edits += [_replace(present[name], str(on)) for name, on in wrong.items() if name in present]
    if missing:
        first, last = node.keys[0], node.values[-1]
        assert first is not None
        prefix = ast.get_source_segment(module.text, first) or ""
        prefix = prefix.rsplit(".", 1)[0] + "." if "." in prefix and isinstance(first, ast.Attribute) else ""
        keys = {name: f"{prefix}{SPELLED[name]}" if prefix else repr(_string(name)) for name in missing}
        multiline = first.lineno != (node.end_lineno or first.lineno)
        joint = ",\n" + " " * first.col_offset if multiline else ", "
        text = "".join(f"{joint}{keys[name]}: {wrong[name]}" for name in missing)
        line, column = last.end_lineno or last.lineno, last.end_col_offset or 0
        edits.append(Edit(line, column, line, column, text))
    return tuple(edits)


def _string(name: str) -> str:
    return next(text for text, switch in SWITCH_STRINGS.items() if switch == name)


@rule("TLA102", "cv-sync-needs-combine", "Without AUTO_CV_COMBINE the compiler ignores AUTO_CV_SYNC without a word.")
def cv_sync_needs_combine(module: Module, context: Context) -> Iterator[Hit]:
    for factory in module.factories:
        if factory.config.on("auto_cv_sync") and factory.config.on("auto_cv_combine") is False:
            yield Hit(
                factory.config.node or factory.node,
                "TL_ASCEND_AUTO_CV_SYNC is on but TL_ASCEND_AUTO_CV_COMBINE is off: no cross-core synchronisation is inserted",
                "switch TL_ASCEND_AUTO_CV_COMBINE on, or AUTO_CV_SYNC off and synchronise by hand",
            )


@rule("TLA103", "unknown-switch", "A misspelt switch is an error at the first call, on the device machine.")
def unknown_switch(module: Module, context: Context) -> Iterator[Hit]:
    for factory in module.factories:
        for node, name in factory.config.keys:
            known = SWITCHES if name.upper().startswith("TL_ASCEND") else SWITCH_STRINGS
            if name.lower().startswith(("tl_ascend", "tl.ascend")) and name not in known:
                near = difflib.get_close_matches(name, known, 1, 0.5)
                fix = f"write {near[0]}" if near else f"one of {', '.join(known)}"
                yield Hit(node, f"{name} is not a switch of TileLang-Ascend", fix)


@rule(
    "TLA104",
    "negative-index",
    "The compiler appends its own workspaces to the parameters, so indices from the end point elsewhere.",
)
def negative_index(module: Module, context: Context) -> Iterator[Hit]:
    for factory in module.factories:
        if context.scenario is None and not any(_crosses_on_chip(k) for k in factory.kernels):
            continue
        counts = {len(kernel.parameters) for kernel in factory.kernels}
        for option in ("out_idx", "workspace_idx"):
            found, node = indices(module, factory, option)
            if node is None or not found or min(found) >= 0:
                continue
            fix, edits = "count from the front of the parameter list", tuple[Edit, ...]()
            if len(counts) == 1 and -min(found) <= (count := next(iter(counts))):
                text = f"[{', '.join(str(i % count) for i in found)}]"
                fix, edits = f"write {option}={text}", (_replace(node, text),)
            yield Hit(node, f"{option}={ast.unparse(node)} counts from the end of the parameter list", fix, edits)


def _crosses_on_chip(kernel: Kernel) -> bool:
    """Whether a copy joins the two kinds of core on the chip, for which the compiler appends a workspace."""
    for copy in kernel.named("T.copy"):
        places = [kernel.buffers[o.name].memory for o in (*copy.reads, *copy.writes) if o.name in kernel.buffers]
        if "UB" in places and {"L1", "L0C"} & set(places):
            return True
    return False


@rule("TLA105", "index-range", "The compiler does not compare out_idx and workspace_idx with the parameter list.")
def index_range(module: Module, context: Context) -> Iterator[Hit]:
    for factory in module.factories:
        seen: dict[int, str] = {}
        for option in ("out_idx", "workspace_idx"):
            found, node = indices(module, factory, option)
            for kernel in factory.kernels[:1] if found and node is not None else []:
                assert node is not None
                count = len(kernel.parameters)
                names = ", ".join(p.name for p in kernel.parameters)
                for index in found or []:
                    place = index % count if count and -count <= index < count else None
                    if place is None:
                        yield Hit(
                            node,
                            f"{option} has {index}, but {kernel.node.name} has {count} parameters: {names}",
                            "correct the index",
                        )
                    elif place in seen:
                        other = f"both {seen[place]} and {option}" if seen[place] != option else f"{option} twice"
                        yield Hit(
                            node,
                            f"parameter {place} ({kernel.parameters[place].name}) is in {other}",
                            "name every parameter once",
                        )
                    else:
                        seen[place] = option
                        if (
                            not kernel.parameters[place].is_tensor
                            and kernel.parameters[place].node.annotation is not None
                        ):
                            yield Hit(
                                node,
                                f"{option} has {index}, but {kernel.parameters[place].name} is not a tensor",
                                "correct the index",
                            )


@rule("TLA106", "workspace-index", "A workspace outside workspace_idx must be passed by every caller.", package=True)
def workspace_index(module: Module, context: Context) -> Iterator[Hit]:
    for factory in module.factories:
        found, _ = indices(module, factory, "workspace_idx")
        for kernel in factory.kernels if factory.decorator is not None and found is not None else []:
            listed = outputs(module, factory, kernel, "workspace_idx")
            for parameter in kernel.parameters:
                if "workspace" in parameter.name and parameter.name not in listed:
                    position = kernel.parameters.index(parameter)
                    yield Hit(
                        parameter.node,
                        f"{parameter.name} is parameter {position} but not in workspace_idx",
                        f"add {position} to workspace_idx",
                    )


@rule("TLA107", "workspace-name", "Automatic cross-core sync pairs only GM buffers whose name contains 'workspace'.")
def workspace_name(module: Module, context: Context) -> Iterator[Hit]:
    from harness.rules.cores import core

    for factory in module.factories:
        if not (factory.config.on("auto_cv_sync") and factory.config.on("auto_cv_combine")):
            continue
        for kernel in factory.kernels:
            for parameter in kernel.parameters:
                if "workspace" in parameter.name:
                    continue
                writers = {
                    core(kernel, op) for op in kernel.operations if any(o.name == parameter.name for o in op.writes)
                }
                readers = {
                    core(kernel, op) for op in kernel.operations if any(o.name == parameter.name for o in op.reads)
                }
                if ("C" in writers and "V" in readers) or ("V" in writers and "C" in readers):
                    yield Hit(
                        parameter.node,
                        f"{parameter.name} carries data between cube and vector cores, but its name does not contain"
                        " 'workspace': the compiler does not synchronise it",
                        f"rename it workspace_{parameter.name.lower()} (and list it in workspace_idx), or copy on chip",
                    )


@rule("TLA108", "output-not-written", "Outputs start uninitialised: one that is never written is returned as garbage.")
def output_not_written(module: Module, context: Context) -> Iterator[Hit]:
    for factory in module.factories:
        for kernel in factory.kernels:
            if kernel.unknown_calls:
                continue
            written = {o.name for op in kernel.operations for o in op.writes}
            for parameter in kernel.parameters:
                if parameter.name in outputs(module, factory, kernel, "out_idx") and parameter.name not in written:
                    yield Hit(
                        parameter.node,
                        f"output {parameter.name} is never written",
                        "copy the result to it, or drop it from out_idx",
                    )


@rule("TLA109", "workspace-one-way", "A workspace that only one side touches carries nothing.")
def workspace_one_way(module: Module, context: Context) -> Iterator[Hit]:
    for factory in module.factories:
        for kernel in factory.kernels:
            listed = outputs(module, factory, kernel, "workspace_idx")
            written = {o.name for op in kernel.operations for o in op.writes}
            read = {o.name for op in kernel.operations for o in op.reads}
            for parameter in kernel.parameters if not kernel.unknown_calls else []:
                if parameter.name not in listed:
                    continue
                if parameter.name in read and parameter.name not in written:
                    yield Hit(
                        parameter.node,
                        f"{parameter.name} is read but never written: it holds garbage",
                        "write it first, or remove it",
                    )
                elif parameter.name not in read:
                    yield Hit(
                        parameter.node, f"{parameter.name} is never read", "read it, or remove it", severity="warning"
                    )


@rule("TLA110", "output-index", "A result that is not in out_idx is not returned.", package=True)
def output_index(module: Module, context: Context) -> Iterator[Hit]:
    for factory in module.factories:
        found, _ = indices(module, factory, "out_idx")
        spaces, _ = indices(module, factory, "workspace_idx")
        for kernel in (
            factory.kernels if factory.decorator is not None and found is not None and spaces is not None else []
        ):
            listed = outputs(module, factory, kernel, "out_idx") | outputs(module, factory, kernel, "workspace_idx")
            written = {
                o.name
                for op in kernel.operations
                if op.name in ("T.copy", "T.assign", "T.tile.atomic_add")
                for o in op.writes
            }
            for position, parameter in enumerate(kernel.parameters):
                if parameter.name in written and parameter.name not in listed and "workspace" not in parameter.name:
                    yield Hit(
                        parameter.node,
                        f"{parameter.name} is written but is neither in out_idx nor in workspace_idx",
                        f"add {position} to out_idx",
                    )


@rule("TLA111", "target", "A5 has only the pto backend.")
def target(module: Module, context: Context) -> Iterator[Hit]:
    for factory in module.factories:
        node = factory.options.get("target")
        value = Evaluator(module, factory.scope)(node)
        if node is None or not isinstance(value, str):
            continue
        if value not in ("auto", "ascendc", "pto"):
            yield Hit(node, f"target {value!r} does not exist for Ascend", "write 'ascendc', 'pto' or nothing")
        elif context.platform == "A5" and value != "pto":
            yield Hit(
                node, f"target {value!r} on A5, which has only 'pto'", "write target='pto'", (_replace(node, '"pto"'),)
            )


@rule("TLA120", "launch-variables", "threads= decides whether the launch yields (cid) or (cid, vid).")
def launch_variables(module: Module, context: Context) -> Iterator[Hit]:
    for _, kernel in _kernels(module):
        for launch in kernel.launches:
            given = "threads" in launch.keywords and not _is_none(launch.keywords["threads"])
            wanted = 1 if given else 2
            variables = launch.node.items[0].optional_vars
            if launch.targets and len(launch.targets) != wanted:
                got = f"({', '.join(launch.targets)})"
                form = "as (cid)" if given else "as (cid, vid)"
                state = "given" if given else "absent"
                yield Hit(
                    variables or launch.node,
                    f"threads= is {state}, so the launch yields {wanted} variable{'s' * (wanted > 1)}, not {got}",
                    f"write {form}",
                )


def _kernels(module: Module) -> Iterator[tuple[Factory, Kernel]]:
    return ((factory, kernel) for factory in module.factories for kernel in factory.kernels)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


@rule("TLA121", "launch-threads", "An AI core has two vector cores: threads is 1 or 2.")
def launch_threads(module: Module, context: Context) -> Iterator[Hit]:
    for _, kernel in _kernels(module):
        for launch in kernel.launches:
            node = launch.keywords.get("threads")
            value = Evaluator(module, kernel.scope)(node)
            value = value[0] if isinstance(value, tuple) and len(value) == 1 else value
            if node is not None and value is not None and value not in (1, 2):
                yield Hit(
                    node,
                    f"threads={ast.unparse(node)}: only 1 or 2 vector cores belong to a cube core",
                    "write threads=2 or threads=1",
                )


@rule("TLA122", "launch-grid", "The grid of an NPU kernel has one dimension.")
def launch_grid(module: Module, context: Context) -> Iterator[Hit]:
    for _, kernel in _kernels(module):
        for launch in kernel.launches:
            count = len(launch.call.args)
            if count != 1:
                yield Hit(
                    launch.call,
                    f"T.Kernel has {count} grid dimensions",
                    "multiply them into one and take cid apart with // and %",
                )
            elif Evaluator(module, kernel.scope)(launch.call.args[0]) == 0:
                yield Hit(launch.call.args[0], "the grid is zero: nothing runs", "T.ceildiv rounds up; // rounds down")


@rule("TLA123", "launch-npu", "Without is_npu=True the launch is a GPU's.")
def launch_npu(module: Module, context: Context) -> Iterator[Hit]:
    for _, kernel in _kernels(module):
        for launch in kernel.launches:
            value = Evaluator(module, kernel.scope)(launch.keywords.get("is_npu"))
            if "is_npu" not in launch.keywords or value is False:
                call = launch.call
                edits: tuple[Edit, ...] = ()
                if "is_npu" not in launch.keywords and call.args:
                    end = call.keywords[-1].value if call.keywords else call.args[-1]
                    line, column = end.end_lineno or end.lineno, end.end_col_offset or 0
                    edits = (Edit(line, column, line, column, ", is_npu=True"),)
                yield Hit(call, "T.Kernel without is_npu=True", "add is_npu=True", edits)


@rule("TLA124", "grid-drops-tail", "M // block_M drops the last, partial tile.", package=True)
def grid_drops_tail(module: Module, context: Context) -> Iterator[Hit]:
    for factory, kernel in _kernels(module):
        dimensions = {ast.unparse(d) for p in kernel.parameters for d in p.shape or ()}
        exact = Evaluator(module, kernel.scope, defaults=False)
        guarded = _guards(factory)
        extents = [a for launch in kernel.launches for a in launch.call.args]
        extents += [a for op in kernel.operations for f in op.loops for a in _extent(f.node)]
        seen: set[tuple[int, int]] = set()
        for extent in extents:
            for division in _divisions(module, kernel, extent):
                size, block = ast.unparse(division.left), ast.unparse(division.right)
                place = (division.lineno, division.col_offset)
                if size not in dimensions or block in dimensions or place in seen or (size, block) in guarded:
                    continue
                values = exact(division.left), exact(division.right)
                if all(isinstance(v, int) and v for v in values) and values[0] % values[1] == 0:
                    continue
                seen.add(place)
                text = f"T.ceildiv({size}, {block})"
                yield Hit(
                    division,
                    f"{size} // {block} drops the tail when {block} does not divide {size}",
                    f"write {text}",
                    (_replace(division, text),),
                )


def _extent(node: ast.stmt) -> list[ast.expr]:
    return list(node.iter.args) if isinstance(node, ast.For) and isinstance(node.iter, ast.Call) else []


def _divisions(module: Module, kernel: Kernel, node: ast.expr, depth: int = 0) -> Iterator[ast.BinOp]:
    """Floor divisions in an extent, also behind names."""
    for part in ast.walk(node):
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.FloorDiv):
            yield part
        elif isinstance(part, ast.Name) and depth < 5:
            bound, _, is_default = kernel.scope.lookup(part.id)
            if bound is not None and not is_default:
                yield from _divisions(module, kernel, bound, depth + 1)


def _guards(factory: Factory) -> set[tuple[str, str]]:
    """Pairs (a, b) whose remainder the factory looks at, as in ``assert a % b == 0`` or ``if a % b: raise``."""
    found = set()
    for node in ast.walk(factory.node):
        test = node.test if isinstance(node, ast.Assert | ast.If | ast.IfExp) else None
        for part in ast.walk(test) if test is not None else []:
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
                found.add((ast.unparse(part.left), ast.unparse(part.right)))
    return found
