"""6xx: Python that means something else, or nothing, inside a prim_func."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.rules.model import LOOPS, Module
from harness.rules.registry import Context, Edit, Hit, View, module_rule, replace, rule

UNSUPPORTED: dict[type[ast.AST], str] = {
    ast.Try: "try", ast.Raise: "raise", ast.Import: "import", ast.ImportFrom: "import", ast.Global: "global",
    ast.Nonlocal: "nonlocal", ast.Delete: "del", ast.Return: "return", ast.ClassDef: "class", ast.AsyncFor: "async for",
    ast.AsyncWith: "async with", ast.Match: "match", ast.Assert: "assert",
}  # fmt: skip


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a prim_func, without those of functions defined in it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            continue
        if isinstance(child, ast.stmt):
            yield child
        if not isinstance(child, ast.expr):
            yield from statements(child)


@rule("TLA601", "print", "print runs once, when the kernel is traced, not on the device.")
def print_call(view: View) -> Iterator[Hit]:
    for node in view.kernel.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield Hit(node, "print in a prim_func", "T.printf prints on the device; remove it when done")


@rule("TLA602", "unsupported-statement", "The DSL's parser refuses it, with a message about itself.")
def unsupported_statement(view: View) -> Iterator[Hit]:
    for node in statements(view.kernel.node):
        word = UNSUPPORTED.get(type(node))
        if isinstance(node, ast.Break | ast.Continue) and view.context.era == "0.1.4":
            word = type(node).__name__.lower()
        if isinstance(node, ast.Assert):
            word = "assert" if _variables(view) & {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} else None
        if word is not None:
            yield Hit(node, f"{word} in a prim_func", "do it in the factory, or use an if around what follows")
    for part in view.kernel.nodes:
        if isinstance(part, ast.FunctionDef) and part is not view.kernel.node and not part.decorator_list:
            fix = "define it in the factory, with @T.macro if it holds operations"
            yield Hit(part, f"def {part.name} in a prim_func", fix)
        elif isinstance(part, _EXPRESSIONS):
            yield Hit(part, f"{type(part).__name__} in a prim_func", "compute it in the factory")


# Functions that T.Parallel makes vector instructions of.
ELEMENTWISE = frozenset({"T.exp", "T.log", "T.sqrt", "T.rsqrt", "T.abs"})
_EXPRESSIONS = (
    ast.Lambda,
    ast.ListComp,
    ast.DictComp,
    ast.SetComp,
    ast.GeneratorExp,
    ast.NamedExpr,
    ast.Yield,
    ast.Await,
)


def _variables(view: View) -> set[str]:
    """Names that stand for device values: launch and loop variables, and buffers."""
    found = {name for launch in view.kernel.launches for name in launch.targets} | set(view.kernel.buffers)
    return found | {name for op in view.kernel.operations for frame in op.loops for name in frame.targets}


@rule("TLA603", "loop-form", "Loops run over T.serial, T.Parallel, T.Pipelined, T.unroll or range(stop) only.")
def loop_form(view: View) -> Iterator[Hit]:
    for node in statements(view.kernel.node):
        if isinstance(node, ast.For):
            iterator = node.iter
            name = view.module.resolve(iterator.func) if isinstance(iterator, ast.Call) else "?"
            own = name in view.module.functions or name.startswith("T.") or not name
            if name not in LOOPS and not own:
                yield Hit(iterator, f"a loop over {ast.unparse(iterator)}", "loop over T.serial(n) and index")
            elif name in ("range", "T.serial") and isinstance(iterator, ast.Call) and len(iterator.args) > 2:
                yield Hit(iterator, f"{name} with a step", "write T.serial(count) and compute the index")
            if node.orelse:
                yield Hit(
                    node.orelse[0],
                    "else of a for loop: the DSL drops it without a word",
                    "write the statements after the loop",
                )


@rule("TLA604", "lost-assignment", "A name is bound once: assigning it again in a loop or branch is lost at its end.")
def lost_assignment(view: View) -> Iterator[Hit]:
    names = [node for node in view.kernel.nodes if isinstance(node, ast.Name)]
    # In a statement the value is read before the name is bound.
    events = sorted((node.lineno, isinstance(node.ctx, ast.Store), node.id) for node in names)

    def read_next(name: str, line: int) -> bool:
        """Whether the first thing done with ``name`` below ``line`` is to read it."""
        return next((not store for at, store, other in events if at > line and other == name), False)

    def judge(statement: ast.stmt, name: str, value: ast.expr) -> Iterator[Hit]:
        depth = bound.get(name, len(blocks))
        if name in variables or depth >= len(blocks):
            return
        block, loops = blocks[depth], [b for b in blocks[depth:] if isinstance(b, ast.For | ast.While)]
        carried = bool(loops) and any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(value))
        if carried or read_next(name, block.end_lineno or block.lineno):
            kind = "loop" if isinstance(block, ast.For | ast.While) else "branch"
            message = f"{name} is assigned again inside a {kind}: the DSL forgets it at the end of the {kind}"
            yield Hit(statement, message, f'write {name} = T.alloc_var("int32", init=…) before it')

    bound: dict[str, int] = {}  # name -> how many blocks surround the place that binds it
    variables = {b.name for b in view.kernel.buffers.values() if b.memory == "var"}
    blocks: list[ast.stmt] = []

    def walk(body: list[ast.stmt]) -> Iterator[Hit]:
        for statement in body:
            match statement:
                case ast.Assign(targets=targets, value=value):
                    for node in (n for target in targets for n in ast.walk(target)):
                        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                            yield from judge(statement, node.id, value)
                            bound.setdefault(node.id, len(blocks))
                case ast.AugAssign(target=ast.Name(id=name) as target):
                    yield from judge(statement, name, target)
                case ast.With():
                    yield from walk(statement.body)
                case ast.For() | ast.While() | ast.If():
                    saved = dict(bound)
                    blocks.append(statement)
                    for part in (statement.body, statement.orelse):
                        bound.clear()
                        bound.update(saved)
                        if isinstance(statement, ast.For):
                            bound.update(
                                {n.id: len(blocks) for n in ast.walk(statement.target) if isinstance(n, ast.Name)}
                            )
                        yield from walk(part)
                    blocks.pop()
                    bound.clear()
                    bound.update(saved)
                case _:
                    pass

    yield from walk(view.kernel.node.body)


@rule("TLA605", "endless-while", "A while condition of Python values never changes on the device.")
def endless_while(view: View) -> Iterator[Hit]:
    cells = {buffer.name for buffer in view.kernel.buffers.values()} | {p.name for p in view.kernel.parameters}
    for node in statements(view.kernel.node):
        if isinstance(node, ast.While) and not cells & {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}:
            yield Hit(
                node,
                f"while {ast.unparse(node.test)} is decided once: it never ends, or never runs",
                'use T.alloc_var("int32", init=…) in the condition, or T.serial',
            )


_CALLS = {
    "min": "T.min",
    "max": "T.max",
    "abs": "T.abs",
    "round": "T.round",
    "int": "T.cast",
    "float": "T.cast",
    "bool": "T.cast",
}


@rule(
    "TLA606",
    "device-value-in-python",
    "Python's min, int, a < b < c and x if y else z need values; here are expressions.",
)
def device_value_in_python(view: View) -> Iterator[Hit]:
    variables = _variables(view)
    for node in view.kernel.nodes:
        if isinstance(node, ast.IfExp):
            part, what, fix = node.test, "a conditional expression", "write T.if_then_else(condition, a, b)"
        elif isinstance(node, ast.Compare) and len(node.ops) > 1:
            part, what, fix = node, "a chained comparison", "write T.And(a < b, b < c)"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS:
            part, what, fix = node, f"{node.func.id}()", f"write {_CALLS[node.func.id]}(…)"
        else:
            continue
        used = variables & {n.id for n in ast.walk(part) if isinstance(n, ast.Name)}
        if used:
            yield Hit(node, f"{what} on {min(used)}, which is known only on the device", fix)


@rule("TLA607", "parallel-branch", "A condition turns T.Parallel into a scalar loop.", severity="warning", package=True)
def parallel_branch(view: View) -> Iterator[Hit]:
    for operation in view.kernel.named("T.assign"):
        parallel = [frame for frame in operation.loops if frame.name == "T.Parallel"]
        inner = operation.frames[operation.frames.index(parallel[0]) :] if parallel else ()
        tests = [f.node.test for f in inner if isinstance(f.node, ast.If)]
        if any(_variables(view) & {n.id for n in ast.walk(test) if isinstance(n, ast.Name)} for test in tests):
            fix = "use T.tile.compare and T.tile.select, or arithmetic"
            yield Hit(operation.node, "an if inside T.Parallel: the tile is worked on element by element", fix)


@rule("TLA610", "parallel-select", "A conditional value inside T.Parallel generates code that does not compile.")
def parallel_select(view: View) -> Iterator[Hit]:
    for operation in view.kernel.named("T.assign"):
        value = getattr(operation.node, "value", None)
        for node in (
            ast.walk(value) if value is not None and any(f.name == "T.Parallel" for f in operation.loops) else ()
        ):
            if isinstance(node, ast.Call) and view.module.resolve(node.func) == "T.if_then_else":
                fix = "use T.tile.compare and T.tile.select, or arithmetic"
                yield Hit(node, "T.if_then_else inside T.Parallel", fix)


@rule("TLA611", "parallel-function", "Inside T.Parallel a function takes an element of a tile, not an expression.")
def parallel_function(view: View) -> Iterator[Hit]:
    for operation in view.kernel.named("T.assign"):
        value = getattr(operation.node, "value", None)
        if value is None or not any(frame.name == "T.Parallel" for frame in operation.loops):
            continue
        calls = [n for n in ast.walk(value) if isinstance(n, ast.Call) and view.module.resolve(n.func) in ELEMENTWISE]
        for call in calls:
            if call.args and not isinstance(call.args[0], ast.Subscript | ast.Name):
                fix = "compute the argument in a statement of its own before"
                yield Hit(call, f"{ast.unparse(call)}: the argument is an expression", fix)
        for sum_ in (n for n in ast.walk(value) if isinstance(n, ast.BinOp) and isinstance(n.left, ast.Constant)):
            if any(call in calls for call in ast.walk(sum_.right)):
                fix = "write the constant on the right"
                yield Hit(sum_, f"{ast.unparse(sum_)}: a constant on the left of a function", fix)


@module_rule(
    "TLA608",
    "cache-at-import",
    "Clearing the kernel cache on import makes everybody's kernels compile again.",
    package=True,
)
def cache_at_import(module: Module, context: Context) -> Iterator[Hit]:
    for statement in module.tree.body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            name = module.resolve(statement.value.func)
            if name in ("tilelang.cache.clear_cache", "tilelang.disable_cache", "tilelang.clear_cache"):
                edits: tuple[Edit, ...] = (
                    Edit(statement.lineno, 0, (statement.end_lineno or statement.lineno) + 1, 0, ""),
                )
                if (statement.end_lineno or 0) >= len(module.lines) or statement.col_offset:
                    edits = (replace(statement, "pass"),)
                yield Hit(
                    statement,
                    f"{name}() when the module is imported",
                    "call it in the main of a test or benchmark",
                    edits,
                )


@module_rule(
    "TLA609", "work-at-import", "Importing the kernel must not compile it, nor touch the device.", package=True
)
def work_at_import(module: Module, context: Context) -> Iterator[Hit]:
    factories = {factory.name for factory in module.factories}
    for statement in module.tree.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef) or _is_main(statement):
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                name = module.resolve(node.func)
                if name in factories or name.startswith(("torch.", "argparse.")):
                    yield Hit(
                        node,
                        f"{name}() when the module is imported",
                        'move it to a test, or under if __name__ == "__main__":',
                    )


def _is_main(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)
