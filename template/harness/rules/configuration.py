"""1xx: the decorator, the switches, the parameter list and the launch."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator

from harness.rules.cores import core, crosses_on_chip
from harness.rules.model import SWITCH_STRINGS, SWITCHES, SYNCHRONISATION, Evaluator, same
from harness.rules.registry import Edit, Hit, View, insert_after, replace, rule

SPELLED = {name: key for key, name in SWITCHES.items()}
OPTIONS = ("out_idx", "workspace_idx")
CROSS = {"T.set_cross_flag", "T.wait_cross_flag", "T.sync_all"}
ADOPT = (
    "make a package of its own of it: python hooks/adopt.py FILE DESTINATION, in the template (docs/adopting.md);"
    " or write the synchronisation by hand"
)


def indices(view: View, option: str) -> tuple[list[int] | None, ast.expr | None]:
    """``out_idx`` or ``workspace_idx`` as integers (None when not known from the text), and its node."""
    node = view.factory.options.get(option)
    if node is None or (isinstance(node, ast.Constant) and node.value is None):
        return [], node
    value = Evaluator(view.module, view.factory.scope.parent or view.factory.scope)(node)
    value = (value,) if isinstance(value, int) else value
    known = isinstance(value, tuple) and all(isinstance(item, int) for item in value)
    return (list(value) if known else None), node


def listed(view: View, option: str) -> set[str]:
    """Names of the parameters that ``option`` points at."""
    found, _ = indices(view, option)
    parameters = view.kernel.parameters
    return {parameters[i].name for i in found or [] if -len(parameters) <= i < len(parameters)}


def touched(view: View) -> tuple[set[str], set[str]]:
    """Names that some operation reads, and names that one writes."""
    operations = view.kernel.operations
    return {o.name for op in operations for o in op.reads}, {o.name for op in operations for o in op.writes}


@rule("TLA101", "pass-configs", "The scenario decides the four compiler switches.", package=True)
def pass_configs(view: View) -> Iterator[Hit]:
    wanted, config = view.context.switches(), view.factory.config
    if wanted is None or view.factory.decorator is None or config.switches is None:
        return
    wrong = {name: on for name, on in wanted.items() if config.on(name) != on}
    if wrong:
        states = ", ".join(f"{SPELLED[name]} is {'off' if on else 'on'}" for name, on in wrong.items())
        row = ", ".join(SPELLED[name] for name, on in wanted.items() if on) or "none"
        where = f"{view.context.scenario} (compiler era {view.context.era})"
        message = f"of the four switches scenario {where} needs {row}; here {states}"
        at = config.node or view.factory.decorator
        missed = [SPELLED[name] for name, on in wrong.items() if not on and _not_by_hand(view, name)]
        if missed and not view.kernel.unknown_calls and view.kernel.operations:
            message += f": the kernel is written for another scenario, it has nothing in place of {', '.join(missed)}"
            yield Hit(at, message, ADOPT)
            return
        yield Hit(at, message, "set the switches to the scenario's row", () if missed else _switch_edits(view, wrong))


def _not_by_hand(view: View, switch: str) -> bool:
    """Whether the kernel lacks what has to be written by hand where a switch is off."""
    kernel = view.kernel
    both = {"C", "V"} <= {operation.scope or core(kernel, operation) for operation in kernel.operations}
    match switch:
        case "auto_sync":
            return not any(kernel.named(*SYNCHRONISATION - CROSS))
        case "auto_cv_combine":
            return both and not any(operation.in_scope for operation in kernel.operations)
        case "auto_cv_sync":
            return both and not any(kernel.named(*CROSS))
    return False


def _switch_edits(view: View, wrong: dict[str, bool]) -> tuple[Edit, ...]:
    """Flip the wrong values of a literal dictionary and add what is missing."""
    node = view.factory.config.node
    if not isinstance(node, ast.Dict) or not node.keys or None in node.keys:
        return ()
    present = {}
    for (_, name), value in zip(view.factory.config.keys, node.values, strict=False):
        present[SWITCHES.get(name) or SWITCH_STRINGS.get(name) or name] = value
    edits = [replace(present[name], str(on)) for name, on in wrong.items() if name in present]
    missing = [name for name in wrong if name not in present]
    if missing:
        first = node.keys[0]
        assert first is not None
        source = ast.get_source_segment(view.module.text, first) or ""
        prefix = source.rsplit(".", 1)[0] + "." if isinstance(first, ast.Attribute) else ""
        text = {switch: string for string, switch in SWITCH_STRINGS.items()}
        keys = {name: prefix + SPELLED[name] if prefix else repr(text[name]) for name in missing}
        joint = ",\n" + " " * first.col_offset if first.lineno != node.end_lineno else ", "
        edits.append(insert_after(node.values[-1], "".join(f"{joint}{keys[n]}: {wrong[n]}" for n in missing)))
    return tuple(edits)


@rule("TLA102", "cv-sync-needs-combine", "Without AUTO_CV_COMBINE the compiler ignores AUTO_CV_SYNC without a word.")
def cv_sync_needs_combine(view: View) -> Iterator[Hit]:
    if view.on("auto_cv_sync") and view.on("auto_cv_combine") is False:
        by_hand = any(view.kernel.named("T.set_cross_flag", "T.wait_cross_flag"))
        yield Hit(
            view.factory.config.node or view.factory.node,
            "TL_ASCEND_AUTO_CV_SYNC is on but TL_ASCEND_AUTO_CV_COMBINE is off: no cross-core flag is inserted",
            "switch AUTO_CV_COMBINE on too, or AUTO_CV_SYNC off and synchronise by hand",
            severity="warning" if by_hand else None,
        )


@rule("TLA103", "unknown-switch", "A misspelt switch is an error at the first call, on the device machine.")
def unknown_switch(view: View) -> Iterator[Hit]:
    for node, name in view.factory.config.keys:
        known = SWITCHES if name.upper().startswith("TL_ASCEND") else SWITCH_STRINGS
        if name.lower().startswith(("tl_ascend", "tl.ascend")) and name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            fix = f"write {near[0]}" if near else f"use one of {', '.join(known)}"
            yield Hit(node, f"{name} is not a switch of TileLang-Ascend", fix)


@rule("TLA104", "negative-index", "The compiler appends workspaces to the parameters: indices from the end shift.")
def negative_index(view: View) -> Iterator[Hit]:
    if view.context.scenario is None and not crosses_on_chip(view.kernel):
        return
    for option in OPTIONS:
        found, node = indices(view, option)
        if node is None or not found or min(found) >= 0:
            continue
        fix, edits = "count from the front of the parameter list", tuple[Edit, ...]()
        counts = {len(kernel.parameters) for kernel in view.factory.kernels}
        if len(counts) == 1 and -min(found) <= (count := counts.pop()):
            text = f"[{', '.join(str(i % count) for i in found)}]"
            fix, edits = f"write {option}={text}", (replace(node, text),)
        yield Hit(node, f"{option}={ast.unparse(node)} counts from the end of the parameter list", fix, edits)


@rule("TLA105", "index-range", "The compiler does not compare out_idx and workspace_idx with the parameter list.")
def index_range(view: View) -> Iterator[Hit]:
    parameters, seen = view.kernel.parameters, dict[int, str]()
    names = ", ".join(p.name for p in parameters)
    for option in OPTIONS if parameters else ():
        found, node = indices(view, option)
        for index in found or []:
            assert node is not None
            if not -len(parameters) <= index < len(parameters):
                message = f"{option} has {index}, but the kernel has {len(parameters)} parameters: {names}"
                yield Hit(node, message, "correct the index")
                continue
            place = index % len(parameters)
            name = parameters[place].name
            if place in seen:
                both = f"{option} twice" if seen[place] == option else f"both {seen[place]} and {option}"
                yield Hit(node, f"parameter {place} ({name}) is in {both}", "name every parameter once")
            elif not parameters[place].is_tensor and parameters[place].node.annotation is not None:
                yield Hit(node, f"{option} has {index}, but {name} is not a tensor", "correct the index")
            seen[place] = option


@rule("TLA106", "workspace-index", "A workspace outside workspace_idx must be passed by every caller.", package=True)
def workspace_index(view: View) -> Iterator[Hit]:
    found, _ = indices(view, "workspace_idx")
    for position, parameter in enumerate(view.kernel.parameters):
        known = found is not None and view.factory.decorator is not None
        if known and "workspace" in parameter.name and parameter.name not in listed(view, "workspace_idx"):
            message = f"{parameter.name} is parameter {position} but not in workspace_idx"
            yield Hit(parameter.node, message, f"add {position} to workspace_idx")


@rule("TLA107", "workspace-name", "Automatic cross-core sync pairs only GM buffers whose name contains 'workspace'.")
def workspace_name(view: View) -> Iterator[Hit]:
    if not (view.on("auto_cv_sync") and view.on("auto_cv_combine")):
        return
    for parameter in view.kernel.parameters:
        name, sides = parameter.name, []
        for part in ("writes", "reads"):
            using = [op for op in view.kernel.operations if any(o.name == name for o in getattr(op, part))]
            sides.append({core(view.kernel, op) for op in using})
        crossing = ("C" in sides[0] and "V" in sides[1]) or ("V" in sides[0] and "C" in sides[1])
        if crossing and "workspace" not in name:
            yield Hit(
                parameter.node,
                f"{name} carries data between cube and vector cores but 'workspace' is not in its name:"
                " the compiler does not synchronise it",
                f"rename it workspace_{name.lower()} and list it in workspace_idx, or copy on chip",
            )


@rule("TLA108", "output-not-written", "Outputs start uninitialised: one that is never written is returned as garbage.")
def output_not_written(view: View) -> Iterator[Hit]:
    _, written = touched(view)
    for parameter in view.kernel.parameters if not view.kernel.unknown_calls else ():
        if parameter.is_tensor and parameter.name in listed(view, "out_idx") - written:
            fix = "copy the result to it, or correct out_idx"
            yield Hit(parameter.node, f"output {parameter.name} is never written", fix)


@rule("TLA109", "workspace-one-way", "A workspace that only one side touches carries nothing.")
def workspace_one_way(view: View) -> Iterator[Hit]:
    read, written = touched(view)
    spaces = listed(view, "workspace_idx") if not view.kernel.unknown_calls else set()
    for parameter in view.kernel.parameters:
        name = parameter.name
        if name in spaces & read - written:
            yield Hit(parameter.node, f"{name} is read but never written: it holds garbage", "write it first")
        elif name in spaces - read:
            yield Hit(parameter.node, f"{name} is never read", "read it, or remove it", severity="warning")


@rule("TLA110", "output-index", "A result that is not in out_idx is not returned.", package=True)
def output_index(view: View) -> Iterator[Hit]:
    known = all(indices(view, option)[0] is not None for option in OPTIONS)
    for position, parameter in enumerate(view.kernel.parameters if known and view.factory.decorator else ()):
        written = [op for op in view.kernel.operations if any(o.name == parameter.name for o in op.writes)]
        sure = any(op.name in ("T.copy", "T.assign", "T.tile.atomic_add") for op in written)
        named = listed(view, "out_idx") | listed(view, "workspace_idx")
        if sure and parameter.name not in named and "workspace" not in parameter.name:
            message = f"{parameter.name} is written but is in neither out_idx nor workspace_idx"
            yield Hit(parameter.node, message, f"add {position} to out_idx (or to workspace_idx)")


@rule("TLA111", "target", "A5 has only the pto backend.")
def target(view: View) -> Iterator[Hit]:
    node = view.factory.options.get("target")
    value = view.value(node)
    if node is None or not isinstance(value, str):
        return
    if value not in ("auto", "ascendc", "pto"):
        yield Hit(node, f"target {value!r} does not exist for Ascend", "write 'ascendc', 'pto' or nothing")
    elif view.context.platform == "A5" and value != "pto":
        edit = replace(node, '"pto"')
        yield Hit(node, f"target {value!r} on A5, which has only 'pto'", "write target='pto'", (edit,))


@rule(
    "TLA112",
    "not-decorated",
    "Only a decorated factory compiles, and only its decorator carries the switches.",
    package=True,
)
def not_decorated(view: View) -> Iterator[Hit]:
    if view.factory.decorator is None:
        message = f"{view.factory.name} builds a prim_func but has no @tilelang.jit"
        yield Hit(view.factory.node, message, "decorate it with @tilelang.jit(out_idx=[…], pass_configs=pass_configs)")


@rule(
    "TLA113", "workspace-slot", "Each core has its own slot of a workspace: reader and writer must mean the same one."
)
def workspace_slot(view: View) -> Iterator[Hit]:
    spaces, kernel = listed(view, "workspace_idx"), view.kernel
    fixed = {name: 0 for launch in kernel.launches for name in launch.targets[1:]}  # vid: both halves of one slot
    cores = {name for launch in kernel.launches for name in launch.targets[:1]}
    grids = [a for launch in kernel.launches for a in launch.call.args[:1]]
    for parameter in (p for p in kernel.parameters if p.name in spaces):
        slots: dict[str, list[ast.expr]] = {"writes": [], "reads": []}
        for part, found in slots.items():
            for operation in kernel.named("T.copy"):
                for operand in getattr(operation, part):
                    index = _first_index(operand.node) if operand.name == parameter.name else None
                    loops = {name for frame in operation.loops for name in frame.targets}
                    used = _names(view, index) if index is not None else loops
                    if index is not None and used & cores and not used & loops:
                        found.append(index)
        for read in slots["reads"]:
            if slots["writes"] and not any(same(view.module, kernel.scope, read, w, **fixed) for w in slots["writes"]):
                message = (
                    f"{parameter.name}[{ast.unparse(read)}] is read, [{ast.unparse(slots['writes'][0])}] is written"
                )
                yield Hit(read, message, "use one index on both sides, cid where every core has a slot")
        sizes = view.value(parameter.shape[0]) if parameter.shape else None, view.value(grids[0]) if grids else None
        by_core = any(isinstance(w, ast.Name) and w.id in cores for w in slots["writes"])
        if by_core and isinstance(sizes[0], int) and isinstance(sizes[1], int) and sizes[0] < sizes[1]:
            note = view.note(*(parameter.shape or ())[:1], *grids)
            message = f"{parameter.name} has {sizes[0]} slots for {sizes[1]} cores{note}"
            yield Hit(parameter.node, message, "give it as many slots as the grid has cores")


def _names(view: View, node: ast.expr) -> set[str]:
    """Names that an expression rests on, also behind names."""
    return {part.id for part in view.kernel.scope.behind(node) if isinstance(part, ast.Name)}


def _first_index(node: ast.expr) -> ast.expr | None:
    """The first index of ``a[i, j]``; None for a slice or a whole tensor."""
    if not isinstance(node, ast.Subscript):
        return None
    index = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
    return None if isinstance(index, ast.Slice) else index


@rule("TLA120", "launch-variables", "threads= decides whether the launch yields (cid) or (cid, vid).")
def launch_variables(view: View) -> Iterator[Hit]:
    for launch in view.kernel.launches:
        given = launch.threads is not None
        wanted = 1 if given else 2
        if launch.targets and len(launch.targets) != wanted:
            state, got = "given" if given else "absent", ", ".join(launch.targets)
            at = launch.node.items[0].optional_vars or launch.node
            message = f"threads= is {state}, so the launch yields {wanted} variable{'s' * (wanted - 1)}, not ({got})"
            yield Hit(at, message, "write as (cid)" if given else "write as (cid, vid)")


@rule("TLA121", "launch-threads", "An AI core has two vector cores: threads is 1 or 2.")
def launch_threads(view: View) -> Iterator[Hit]:
    for launch in view.kernel.launches:
        node = launch.keywords.get("threads")
        value = view.value(node)
        value = value[0] if isinstance(value, tuple) and len(value) == 1 else value
        if node is not None and value is not None and value not in (1, 2):
            message = f"threads={ast.unparse(node)}: a cube core has only two vector cores"
            yield Hit(node, message, "write threads=2 or threads=1")


@rule("TLA122", "launch-grid", "The grid of an NPU kernel has one dimension.")
def launch_grid(view: View) -> Iterator[Hit]:
    for launch in view.kernel.launches:
        count = len(launch.call.args)
        if count != 1:
            fix = "multiply them into one; take cid apart with // and %"
            yield Hit(launch.call, f"T.Kernel has {count} grid dimensions", fix)
        elif view.value(launch.call.args[0]) == 0:
            note = view.note(launch.call.args[0])
            yield Hit(launch.call.args[0], f"the grid is zero: nothing runs{note}", "round up with T.ceildiv")


@rule("TLA123", "launch-npu", "Without is_npu=True the launch is a GPU's.")
def launch_npu(view: View) -> Iterator[Hit]:
    for launch in view.kernel.launches:
        call, given = launch.call, "is_npu" in launch.keywords
        if not given or view.value(launch.keywords["is_npu"]) is False:
            last = [*call.args, *(keyword.value for keyword in call.keywords)][-1:]
            edits = tuple(insert_after(node, ", is_npu=True") for node in last) if not given else ()
            yield Hit(call, "T.Kernel without is_npu=True", "add is_npu=True", edits)


@rule("TLA124", "grid-drops-tail", "M // block_M drops the last, partial tile.", package=True)
def grid_drops_tail(view: View) -> Iterator[Hit]:
    spaces = listed(view, "workspace_idx")
    dimensions = {ast.unparse(d) for p in view.kernel.parameters if p.name not in spaces for d in p.shape or ()}
    grid = [d for launch in view.kernel.launches for a in launch.call.args for d in _divisions(view, a)]
    # In a loop only a block size counts: other divisors (lanes, chunks) are the kernel's own business.
    blocks = {argument.arg for argument in view.factory.parameters}
    loops = [f.node.iter for op in view.kernel.operations for f in op.loops if isinstance(f.node, ast.For)]
    inner = [d for call in loops if isinstance(call, ast.Call) for a in call.args for d in _divisions(view, a)]
    divisions = [*grid, *(d for d in inner if ast.unparse(d.right) in blocks)]
    guarded = {  # pairs (a, b) whose remainder the factory looks at, as in assert a % b == 0
        (ast.unparse(part.left), ast.unparse(part.right))
        for node in ast.walk(view.factory.node)
        if isinstance(node, ast.Assert | ast.If | ast.IfExp)
        for part in ast.walk(node.test)
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)
    }
    for division in dict.fromkeys(divisions):
        size, block = ast.unparse(division.left), ast.unparse(division.right)
        values = view.exact(division.left), view.exact(division.right)
        divides = all(isinstance(v, int) and v for v in values) and values[0] % values[1] == 0
        if size in dimensions and block not in dimensions and (size, block) not in guarded and not divides:
            text = f"T.ceildiv({size}, {block})"
            message = f"{size} // {block} drops the tail where {block} does not divide {size}"
            yield Hit(division, message, f"write {text}", (replace(division, text),))


def _divisions(view: View, node: ast.expr) -> Iterator[ast.BinOp]:
    """Floor divisions in an extent, also behind names."""
    for part in view.kernel.scope.behind(node):
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.FloorDiv):
            yield part
