"""Moves to L0A and L0B and the products of them become T.gemm_v0 on the L1 buffers."""

from __future__ import annotations

import ast
from dataclasses import dataclass

import libcst as cst

from harness.convert.syntax import (
    Statement,
    body_of,
    call_in,
    comments,
    expression,
    map_blocks,
    prepend,
    remark,
    statement,
    with_body,
)
from harness.rules.model import Kernel, Module, same


@dataclass(frozen=True)
class Fill:
    """A copy from L1 to L0A or L0B: where it stands in its block, what it reads, whether it transposes."""

    index: int
    source: ast.expr
    transposed: bool


class Products:
    """Rewrites the blocks of one kernel.

    Attributes:
        kept: Why products were left as they are.
    """

    def __init__(self, module: Module, kernel: Kernel) -> None:
        self.module, self.kernel = module, kernel
        self.kept: list[str] = []

    def rewrite(self, body: list[Statement]) -> list[Statement]:
        """The body without products of L0A and L0B, or as it was, with remarks, where one resists."""
        if not any(self.kernel.named("T.mma")):
            return body
        changed = self._block(body, None)[0]
        return self._drop(changed) if not self.kept else changed

    def _drop(self, body: list[Statement]) -> list[Statement]:
        """Remove the allocations of L0A and L0B."""
        kept: list[Statement] = []
        for node in body:
            target = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
            name = target.targets[0].target if isinstance(target, cst.Assign) else None
            if isinstance(name, cst.Name) and self._memory(name.value) in ("L0A", "L0B"):
                continue
            changed = map_blocks(node, self._drop)
            assert changed is not None
            kept.append(changed)
        return kept

    def _memory(self, name: str) -> str | None:
        buffer = self.kernel.buffers.get(name)
        return buffer.memory if buffer is not None else None

    def _block(self, body: list[Statement], loop: cst.For | None) -> tuple[list[Statement], bool]:
        """Rewrite a block; the flag says that the whole loop around it became one product."""
        fills: dict[str, Fill] = {}
        result: list[Statement | None] = []
        for node in body:
            call = call_in(node)
            name = self.module.resolve(expression(call.func)) if call is not None else ""
            arguments = [expression(a.value) for a in call.args if a.keyword is None] if call is not None else []
            if name == "T.copy" and len(arguments) > 1 and self._memory(_base(arguments[1])) in ("L0A", "L0B"):
                assert call is not None
                transposed = any(a.keyword is not None and a.keyword.value == "transpose" for a in call.args)
                fills[_base(arguments[1])] = Fill(len(result), arguments[0], transposed)
            elif name == "T.mma" and call is not None:
                product = self._product(call, arguments, fills, loop, len(body))
                if product is None:
                    reason = "T.mma is kept: its operands are not whole tiles of L1"
                    self.kept.append(reason)
                    said = any(reason in (line.comment.value if line.comment else "") for line in comments(node))
                    result.append(node if said else prepend(node, [remark(reason)]))
                    continue
                above = [
                    line for a in arguments[:2] if (old := result[fills[_base(a)].index]) for line in comments(old)
                ]
                for argument in arguments[:2]:
                    result[fills[_base(argument)].index] = None
                node = prepend(product, [*above, *comments(node)])
                if loop is not None and len(body) == 3 and self._depends(fills, loop):
                    return [node], True
            elif isinstance(node, cst.For):
                inner, whole = self._block(body_of(node), node)
                node = prepend(inner[0], comments(node)) if whole else with_body(node, inner)
            else:
                changed = map_blocks(node, lambda block: self._block(block, None)[0])
                assert changed is not None
                node = changed
            result.append(node)
        return [node for node in result if node is not None], False

    def _depends(self, fills: dict[str, Fill], loop: cst.For) -> bool:
        variable = loop.target.value if isinstance(loop.target, cst.Name) else ""
        return any(isinstance(n, ast.Name) and n.id == variable for f in fills.values() for n in ast.walk(f.source))

    def _product(
        self, call: cst.Call, arguments: list[ast.expr], fills: dict[str, Fill], loop: cst.For | None, length: int
    ) -> Statement | None:
        """The statement that replaces a T.mma, or None when its operands are not whole tiles of L1."""
        sides = []
        variable = loop.target.value if loop is not None and isinstance(loop.target, cst.Name) else ""
        advanced = False
        for position, argument in enumerate(arguments[:2]):
            fill = fills.get(_base(argument))
            if fill is None or self._memory(_base(fill.source)) != "L1":
                return None
            inner = 1 - position if not fill.transposed else position  # which of the last two dimensions is K
            region, steps = self._region(fill, _base(argument), inner, loop)
            if region is None:
                return None
            advanced |= steps
            sides.append((region, fill.transposed))
        if len(sides) != 2 or len(arguments) < 3 or (advanced and length != 3):
            return None
        given = {a.keyword.value: expression(a.value) for a in call.args if a.keyword is not None}
        init = given.get("init") or (arguments[3] if len(arguments) > 3 else None)
        start = _without(init, variable) if advanced else init
        if advanced and init is not None and start is None:
            return None
        options = [f"transpose_{n}=True" for n, (_, flip) in zip("AB", sides, strict=True) if flip]
        if start is not None:
            text = ast.unparse(start)
            options.append(f"init=({text})" if isinstance(start, ast.Compare | ast.BoolOp) else f"init={text}")
        text = ", ".join([sides[0][0], sides[1][0], ast.unparse(arguments[2]), *options])
        language = ast.unparse(expression(call.func)).rsplit(".", 1)[0]
        return statement(f"{language}.gemm_v0({text})")

    def _region(self, fill: Fill, target: str, inner: int, loop: cst.For | None) -> tuple[str | None, bool]:
        """The whole L1 tile that a copy reads from, and whether the loop runs through it along K."""
        source = fill.source
        name = _base(source)
        big, small = self.kernel.buffers[name], self.kernel.buffers[target]
        scope = self.kernel.scope
        outer_sizes, inner_sizes = big.shape_nodes[-2:], small.shape_nodes[-2:][:: -1 if fill.transposed else 1]
        if len(outer_sizes) != 2 or len(inner_sizes) != 2:
            return None, False
        equal = [same(self.module, scope, a, b) for a, b in zip(outer_sizes, inner_sizes, strict=True)]
        if isinstance(source, ast.Name):
            return (name, False) if all(equal) else (None, False)
        assert isinstance(source, ast.Subscript)
        index = list(source.slice.elts) if isinstance(source.slice, ast.Tuple) else [source.slice]
        lead, last = index[:-2], index[-2:]
        if len(index) != len(big.shape_nodes) or len(last) != 2 or not _whole(last[1 - inner]) or not equal[1 - inner]:
            return None, False
        region = f"{name}[{', '.join([*map(ast.unparse, lead), ':', ':'])}]" if lead else name
        if _whole(last[inner]) and equal[inner]:
            return region, False
        if loop is None or not isinstance(loop.target, cst.Name):
            return None, False
        step = ast.BinOp(ast.Name(loop.target.value), ast.Mult(), inner_sizes[inner])
        trips = expression(loop.iter)
        count = trips.args[0] if isinstance(trips, ast.Call) and len(trips.args) == 1 else None
        sizes = f"{ast.unparse(outer_sizes[inner])}, {ast.unparse(inner_sizes[inner])}"
        # The slices cover the tile exactly when the trip count is one of these; else the kernel is wrong already.
        wanted = (f"T.ceildiv({sizes})", f"T.floordiv({sizes})")
        covers = count is not None and any(self._same(count, ast.parse(w, mode="eval").body) for w in wanted)
        along = same(self.module, scope, last[inner], step, **{loop.target.value: 3})
        return (region, True) if along and covers else (None, False)

    def _same(self, a: ast.expr, b: ast.expr) -> bool:
        return same(self.module, self.kernel.scope, a, b)


def _base(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _whole(node: ast.expr) -> bool:
    """Whether an index is 0 or a full slice: the whole of a dimension."""
    if isinstance(node, ast.Slice):
        return node.lower is None and node.upper is None
    return isinstance(node, ast.Constant) and node.value == 0


def _without(init: ast.expr | None, variable: str) -> ast.expr | None:
    """``init`` of the first of a loop's products: ``T.And(k == 0, kk == 0)`` becomes ``k == 0``."""

    def first(node: ast.expr) -> bool:
        text = ast.unparse(node)
        return text in (f"{variable} == 0", f"0 == {variable}")

    if init is None:
        return None
    if first(init):
        return ast.Constant(True)
    parts = init.args if isinstance(init, ast.Call) and ast.unparse(init.func).endswith(".And") else []
    parts = init.values if isinstance(init, ast.BoolOp) and isinstance(init.op, ast.And) else parts
    rest = [part for part in parts if not first(part)]
    if len(parts) == len(rest) + 1 and len(rest) == 1:
        return rest[0]
    if isinstance(init, ast.Constant) and init.value is False:
        return init
    return None
