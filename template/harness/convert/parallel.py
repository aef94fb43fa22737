"""Optional: ``T.tile`` arithmetic on whole buffers as T.Parallel loops."""

from __future__ import annotations

import ast

import libcst as cst

from harness.convert.onchip import Outcome
from harness.convert.syntax import Statement, call_in, expression, map_blocks, prepend
from harness.rules.model import Kernel, Module

FORMS = {
    "exp": "{T}.exp({0})", "ln": "{T}.log({0})", "abs": "{T}.abs({0})", "sqrt": "{T}.sqrt({0})",
    "rsqrt": "{T}.rsqrt({0})", "relu": "{T}.max({0}, 0)", "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}",
    "div": "{0} / {1}", "max": "{T}.max({0}, {1})", "min": "{T}.min({0}, {1})",
}  # fmt: skip


def to_parallel(module: Module, kernel: Kernel, outcome: Outcome, body: list[Statement]) -> list[Statement]:
    """Rewrite ``T.tile.exp(dst, src)`` as ``for i, j in T.Parallel(...): dst[i, j] = T.exp(src[i, j])``."""
    result = []
    for node in body:
        changed = _loop(module, kernel, outcome, node)
        if changed is None:
            changed = map_blocks(node, lambda block: to_parallel(module, kernel, outcome, block))
            assert changed is not None
        result.append(changed)
    return result


def _loop(module: Module, kernel: Kernel, outcome: Outcome, node: Statement) -> Statement | None:
    call = call_in(node)
    if call is None or any(argument.keyword is not None for argument in call.args):
        return None
    name = module.resolve(expression(call.func))
    form = FORMS.get(name.removeprefix("T.tile.")) if name.startswith("T.tile.") else None
    arguments = [expression(argument.value) for argument in call.args]
    target = kernel.buffers.get(arguments[0].id) if arguments and isinstance(arguments[0], ast.Name) else None
    if form is None or target is None or len(target.shape_nodes) not in (1, 2):
        return None
    extents = [ast.unparse(size) for size in target.shape_nodes]
    if outcome.threads:
        extents[0] = outcome.rows[target.name]
    variables = ["i", "j"][: len(extents)]
    taken = {n.id for n in ast.walk(kernel.node) if isinstance(n, ast.Name)}
    variables = [next(v for v in (v, f"{v}_", f"{v}_{v}") if v not in taken) for v in variables]
    index = ", ".join(variables)
    operands = []
    for argument in arguments[1:]:
        buffer = kernel.buffers.get(argument.id) if isinstance(argument, ast.Name) else None
        if buffer is not None and [ast.unparse(s) for s in buffer.shape_nodes] != [
            ast.unparse(s) for s in target.shape_nodes
        ]:
            return None
        scalar = isinstance(argument, ast.Constant | ast.UnaryOp | ast.Name)
        if buffer is None and not scalar:
            return None
        operands.append(f"{ast.unparse(argument)}[{index}]" if buffer is not None else ast.unparse(argument))
    language = ast.unparse(expression(call.func)).split(".tile.")[0]
    value = form.format(*operands, T=language)
    text = f"for {index} in {language}.Parallel({', '.join(extents)}):\n    {target.name}[{index}] = {value}\n"
    loop = cst.parse_statement(text)
    assert isinstance(loop, cst.For)
    return prepend(loop, node.leading_lines)  # type: ignore[attr-defined]
