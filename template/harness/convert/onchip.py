"""Joins what was written for the cube and for the vector cores.

Scopes go. Where every step is sure, cube and vector loops become one, the compiler splits the rows between the vector
cores (``threads=2``, no ``vid``), and tiles pass between the cores by one copy on the chip instead of two through GM.
Otherwise the workspaces stay, which the compiler synchronises by their name.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

import libcst as cst

from harness.convert.syntax import (
    Block,
    Statement,
    body_of,
    call_in,
    code,
    comments,
    expression,
    footer_of,
    map_blocks,
    parse,
    prepend,
    statement,
    walk,
    with_body,
)
from harness.rules.cores import core
from harness.rules.model import Kernel, Module, Trial, same
from harness.rules.threads import RESIZED


class Unsure(Exception):
    """A step that a person must take; the message says why."""


@dataclass
class Outcome:
    """What became of a kernel.

    Attributes:
        body: The prim_func's new statements.
        kept: What was left as it is, and why.
        refusal: Why the kernel cannot be converted at all; empty when it was.
        removed: Parameters (by position) that are not needed any more.
        rows: For every UB buffer, its rows in both vector cores; empty unless the launch now yields ``cid`` only.
    """

    body: list[Statement]
    kept: list[str] = field(default_factory=list)
    refusal: str = ""
    removed: list[int] = field(default_factory=list)
    rows: dict[str, str] = field(default_factory=dict)

    @property
    def threads(self) -> bool:
        """Whether the launch is ``T.Kernel(n, threads=2, is_npu=True) as (cid)`` now."""
        return bool(self.rows)


def join(module: Module, kernel: Kernel, body: list[Statement]) -> Outcome:
    """Remove the scopes of a prim_func's body and, where it is sure, its workspaces."""
    carriers = exchanged(kernel)
    if not carriers:
        return Outcome(flatten(module, body))
    try:
        return _OnChip(module, kernel, carriers).convert(body)
    except Unsure as reason:
        unnamed = sorted(name for name in carriers if "workspace" not in name)
        if unnamed:
            why = (
                f"{unnamed[0]} passes between the cores, is not called workspace, and cannot be done without: {reason}"
            )
            return Outcome(body, refusal=why)
        return Outcome(flatten(module, body), [f"the workspaces and (cid, vid) are kept: {reason}"])


def exchanged(kernel: Kernel) -> set[str]:
    """Tensors that one kind of core writes and the other reads."""
    sides: dict[str, tuple[set[str | None], set[str | None]]] = {}
    for operation in kernel.operations:
        kind = operation.scope or core(kernel, operation)
        for part, operands in enumerate((operation.writes, operation.reads)):
            for operand in operands:
                if operand.name not in kernel.buffers:
                    sides.setdefault(operand.name, (set(), set()))[part].add(kind)
    return {n for n, (w, r) in sides.items() if ("C" in w and "V" in r) or ("V" in w and "C" in r)}


def _scope(module: Module, node: Statement) -> str | None:
    """The letter of a ``with T.Scope(...)``."""
    if not isinstance(node, cst.With) or len(node.items) != 1:
        return None
    call = expression(node.items[0].item)
    if not isinstance(call, ast.Call) or module.resolve(call.func) != "T.Scope" or not call.args:
        return None
    return str(getattr(call.args[0], "value", "?"))


def flatten(module: Module, body: list[Statement]) -> Block:
    """Replace every scope by its statements."""
    result = Block(footer=getattr(body, "footer", ()))
    for node in body:
        if _scope(module, node) is None:
            changed = map_blocks(node, lambda block: flatten(module, block))
            assert changed is not None
            result.append(changed)
        else:
            inner = flatten(module, body_of(node))
            result += [prepend(first, comments(node)) for first in inner[:1]] + inner[1:]
            result.footer += footer_of(node)
    return result


class _OnChip:
    """Converts one kernel as far as on-chip copies, or raises Unsure."""

    def __init__(self, module: Module, kernel: Kernel, carriers: set[str]) -> None:
        self.module, self.kernel, self.carriers = module, kernel, carriers
        launch = kernel.launches[0]
        if launch.threads is not None or len(launch.targets) != 2:
            raise Unsure("T.Kernel is not of the form as (cid, vid)")
        self.vid = launch.targets[1]
        self.full = self._full_rows()
        self._check_operations()

    def convert(self, body: list[Statement]) -> Outcome:
        merged, found = self._merge(body)
        if not found:
            raise Unsure("there is no pair of T.Scope('C') and T.Scope('V') next to each other")
        removed: set[str] = set()
        rows = self._direct([self._rows(node) for node in merged], removed)
        if removed != self.carriers:
            left = min(self.carriers - removed)
            raise Unsure(f"{left} is not one copy out of and one copy into on-chip memory")
        outputs = {p.name for p in self.kernel.parameters} - {
            p.name for p in self.kernel.parameters if "workspace" in p.name
        }
        gone = [i for i, p in enumerate(self.kernel.parameters) if p.name in removed - outputs]
        return Outcome(rows, removed=gone, rows=self.full)

    # what must hold

    def _full_rows(self) -> dict[str, str]:
        """For every UB buffer, the rows that both vector cores have together."""
        found = {}
        for buffer in self.kernel.buffers.values():
            if buffer.memory != "UB":
                continue
            first = buffer.shape_nodes[0] if buffer.shape_nodes else None
            parts = self.kernel.scope.behind(first) if first is not None else ()
            node = next((part for part in parts if not isinstance(part, ast.Name)), None)
            two = isinstance(node, ast.BinOp) and Trial(self.module, self.kernel.scope)(node.right) == 2
            if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.FloorDiv) or not two:
                raise Unsure(f"the rows of {buffer.name} are not half of a block")
            found[buffer.name] = ast.unparse(node.left)
        return found

    def _check_operations(self) -> None:
        for operation in self.kernel.operations:
            if operation.name.startswith("T.tile.") and operation.name not in RESIZED:
                raise Unsure(f"{operation.name} is not split between the vector cores with threads=2")
            if operation.name.startswith("T.reduce_"):
                axis = operation.argument(2, "dim")
                if axis is not None and Trial(self.module, self.kernel.scope)(axis) not in (-1, 1):
                    raise Unsure(f"{operation.name} does not work along the rows")
            for operand in (*operation.reads, *operation.writes):
                index = _indices(operand.node)
                if operand.name in self.full and index and isinstance(index[0], ast.Constant):
                    raise Unsure(f"{operand.name} is used row by row at fixed rows")

    # cube and vector statements in one stream

    def _merge(self, body: list[Statement]) -> tuple[Block, bool]:
        """Merge the scopes C and V that stand next to each other, at any depth."""
        result = Block(footer=getattr(body, "footer", ()))
        index, found = 0, False
        while index < len(body):
            node = body[index]
            after = body[index + 1] if index + 1 < len(body) else None
            pair = {_scope(self.module, node), _scope(self.module, after) if after is not None else None}
            if pair == {"C", "V"} and after is not None:
                first, second = (node, after) if _scope(self.module, node) == "C" else (after, node)
                merged = self._interleave(body_of(first), body_of(second))
                above = [line for line in comments(after) if line.comment is not None]
                result.append(prepend(merged[0], [*comments(node), *above]))
                result += merged[1:]
                result.footer += [*footer_of(first), *footer_of(second)]
                index, found = index + 2, True
                continue
            if _scope(self.module, node) is not None:
                raise Unsure("a T.Scope has no partner next to it")
            inner = [False]

            def change(block: list[Statement], inner: list[bool] = inner) -> list[Statement]:
                changed, some = self._merge(block)
                inner[0] |= some
                return changed

            changed = map_blocks(node, change)
            assert changed is not None
            result.append(changed)
            found |= inner[0]
            index += 1
        return result, found

    def _uses(self, node: Statement) -> tuple[list[str], list[str]]:
        """The exchanged tensors that a statement reads and writes."""
        reads, writes = [], []
        for part in walk([node]):
            call = call_in(part)
            if call is None:
                continue
            arguments = [expression(a.value) for a in call.args]
            names = [_base(a) for a in arguments[:2]]
            if self.module.resolve(expression(call.func)) == "T.copy" and len(names) == 2:
                reads += [names[0]] if names[0] in self.carriers else []
                writes += [names[1]] if names[1] in self.carriers else []
            elif self.carriers & {n.id for a in arguments for n in ast.walk(a) if isinstance(n, ast.Name)}:
                raise Unsure(f"{code(call)} uses a tensor that passes between the cores")
        return reads, writes

    def _interleave(self, cube: list[Statement], vector: list[Statement]) -> list[Statement]:
        """One order that both sides agree with: a tile is read after it is written."""
        queues = {"C": list(cube), "V": list(vector)}
        ready: dict[str, int] = {}
        result: list[Statement] = []
        side = "C"
        while queues["C"] or queues["V"]:
            other = "V" if side == "C" else "C"
            moved = False
            while queues[side]:
                node = queues[side][0]
                reads, writes = self._uses(node)
                if isinstance(node, cst.For) and (reads or writes):
                    partner = queues[other][0] if queues[other] else None
                    if isinstance(partner, cst.For) and any(self._uses(partner)):
                        result.append(self._fuse(node, partner) if side == "C" else self._fuse(partner, node))
                        queues[side].pop(0)
                        queues[other].pop(0)
                        moved = True
                    break
                if any(not ready.get(name) for name in reads):
                    break
                for name in reads:
                    ready[name] -= 1
                for name in writes:
                    ready[name] = ready.get(name, 0) + 1
                result.append(queues[side].pop(0))
                moved = True
            blocked = not moved and not self._can_move(queues[other], ready)
            if blocked:
                raise Unsure("the cube's and the vector cores' statements do not fit together")
            side = other
        return result

    def _can_move(self, queue: list[Statement], ready: dict[str, int]) -> bool:
        if not queue:
            return False
        reads, writes = self._uses(queue[0])
        if isinstance(queue[0], cst.For) and (reads or writes):
            return False
        return all(ready.get(name) for name in reads)

    def _fuse(self, cube: cst.For, vector: cst.For) -> Statement:
        if code(cube.iter) != code(vector.iter) or not isinstance(cube.target, cst.Name):
            raise Unsure(f"the loops over {code(cube.iter)} and {code(vector.iter)} cannot be one")
        body = body_of(vector)
        if isinstance(vector.target, cst.Name) and vector.target.value != cube.target.value:
            renamed = _Rename(vector.target.value, cube.target.value)
            body = [node for old in body if isinstance(node := old.visit(renamed), cst.BaseStatement)]
        above = [line for line in comments(vector) if line.comment is not None]
        return prepend(with_body(cube, self._interleave(body_of(cube), body)), above)

    # rows of both vector cores

    def _rows(self, node: Statement) -> Statement:
        changed = node.visit(_WholeRows(self))
        assert isinstance(changed, cst.BaseStatement)
        inside = body_of(changed) or [changed]  # not the launch, which binds the name
        if any(isinstance(n, cst.Name) and n.value == self.vid for part in inside for n in _names(part)):
            raise Unsure(f"{self.vid} is used for more than choosing rows")
        return changed

    def without_vid(self, node: ast.expr) -> ast.expr | None:
        """An index without its share of ``vid``; None when nothing is left, Unsure when vid does something else."""
        if not any(isinstance(n, ast.Name) and n.id == self.vid for n in ast.walk(node)):
            return node
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self.without_vid(node.left), self.without_vid(node.right)
            if left is None or right is None:
                return left or right
            return ast.BinOp(left, ast.Add(), right)
        values = [Trial(self.module, self.kernel.scope, 1, {self.vid: v})(node) for v in (0, 1)]
        halves = [
            Trial(self.module, self.kernel.scope, 1)(ast.parse(f"({rows}) // 2", mode="eval").body)
            for rows in self.full.values()
        ]
        if values[0] != 0 or values[1] is None or values[1] not in halves:
            raise Unsure(f"{ast.unparse(node)} is not the first row of a vector core")
        return None

    # copies on the chip

    def _direct(self, body: list[Statement], removed: set[str]) -> list[Statement]:
        """Turn a copy out and the copy in of the same tile, in one block, into one copy on the chip."""
        result: list[Statement | None] = []
        out: dict[str, tuple[int, ast.expr, ast.expr]] = {}
        for node in body:
            call = call_in(node)
            arguments = [expression(a.value) for a in call.args] if call is not None else []
            names = [_base(a) for a in arguments[:2]]
            if call is not None and len(names) == 2 and self.module.resolve(expression(call.func)) == "T.copy":
                if names[1] in self.carriers and names[1] not in out and names[1] not in removed:
                    out[names[1]] = (len(result), arguments[0], arguments[1])
                elif names[0] in out:
                    index, source, region = out.pop(names[0])
                    if not self._same_tile(region, arguments[0]):
                        raise Unsure(f"{names[0]} is written and read at different places")
                    old = result[index]
                    result[index] = None
                    above = comments(old) if old is not None else []
                    language = code(call.func).rsplit(".", 1)[0]
                    text = f"{language}.copy({ast.unparse(source)}, {ast.unparse(arguments[1])})"
                    node = prepend(statement(text), [*above, *node.leading_lines])  # type: ignore[attr-defined]
                    removed.add(names[0])
                elif names[0] in self.carriers:
                    raise Unsure(f"{names[0]} is read more than once, or before it is written")
            elif not isinstance(node, cst.SimpleStatementLine):
                changed = map_blocks(node, lambda block: self._direct(block, removed))
                assert changed is not None
                node = changed
            result.append(node)
        if out and any(name not in removed for name in out):
            raise Unsure(f"{min(out)} is not read where it is written")
        return [node for node in result if node is not None]

    def _same_tile(self, a: ast.expr, b: ast.expr) -> bool:
        first, second = _indices(a), _indices(b)
        if len(first) != len(second):
            return False
        return all(
            ast.unparse(x) == ast.unparse(y) or (_full(x) and _full(y)) for x, y in zip(first, second, strict=True)
        )


class _WholeRows(cst.CSTTransformer):
    """Buffers, loops and indices of one vector core become those of both."""

    def __init__(self, owner: _OnChip) -> None:
        super().__init__()
        self.owner = owner

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign:
        target = original_node.targets[0].target
        value = updated_node.value
        if isinstance(target, cst.Name) and target.value in self.owner.full and isinstance(value, cst.Call):
            shape = value.args[0].value
            if isinstance(shape, cst.Tuple | cst.List):
                rows = parse(self.owner.full[target.value])
                elements = [shape.elements[0].with_changes(value=rows), *shape.elements[1:]]
                first = value.args[0].with_changes(value=shape.with_changes(elements=elements))
                return updated_node.with_changes(value=value.with_changes(args=[first, *value.args[1:]]))
            raise Unsure(f"the shape of {target.value} is not written where it is allocated")
        text = self._index(expression(value)) if self._mentions(value) else None
        return updated_node.with_changes(value=parse(text)) if text is not None else updated_node

    def leave_For(self, original_node: cst.For, updated_node: cst.For) -> cst.For:
        owner = self.owner
        loop = expression(original_node.iter)
        if not isinstance(loop, ast.Call) or not loop.args:
            return updated_node
        targets = [n.value for n in _names(original_node.target) if isinstance(n, cst.Name)]
        arguments = list(updated_node.iter.args) if isinstance(updated_node.iter, cst.Call) else []
        for position, name in enumerate(targets):
            rows = {
                owner.full[_base(expression(n))]
                for n in _subscripts(original_node.body)
                if _base(expression(n)) in owner.full
                and ast.unparse((_indices(expression(n)) or [ast.Constant(0)])[0]) == name
            }
            if not rows:
                continue
            whole = rows.pop()
            half = ast.parse(f"({whole}) // 2", mode="eval").body
            single = owner.module.resolve(loop.func) != "T.Parallel"
            if (
                rows
                or (single and len(loop.args) != 1)
                or not same(owner.module, owner.kernel.scope, loop.args[position], half)
            ):
                raise Unsure(f"the loop over {name} is not over all rows of a vector core")
            arguments[position] = arguments[position].with_changes(value=parse(whole))
        if not arguments:
            return updated_node
        assert isinstance(updated_node.iter, cst.Call)
        return updated_node.with_changes(iter=updated_node.iter.with_changes(args=arguments))

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> cst.BaseExpression:
        if not self._mentions(updated_node):
            return updated_node
        node = expression(updated_node)
        assert isinstance(node, ast.Subscript)
        parts = []
        for part in _indices(node):
            if not any(isinstance(n, ast.Name) and n.id == self.owner.vid for n in ast.walk(part)):
                parts.append(ast.unparse(part))
            else:
                parts.append(self._slice(part) if isinstance(part, ast.Slice) else self._index(part))
        return parse(f"{ast.unparse(node.value)}[{', '.join(parts)}]")

    def _mentions(self, node: cst.CSTNode) -> bool:
        return any(n.value == self.owner.vid for n in _names(node) if isinstance(n, cst.Name))

    def _index(self, node: ast.expr) -> str:
        rest = self.owner.without_vid(node)
        return ast.unparse(rest) if rest is not None else "0"

    def _slice(self, node: ast.Slice) -> str:
        owner = self.owner
        if node.lower is None or node.upper is None or node.step is not None:
            raise Unsure(f"{ast.unparse(node)} is not the rows of a vector core")
        lower = owner.without_vid(node.lower)
        for rows in dict.fromkeys(owner.full.values()):
            half = ast.parse(f"({rows}) // 2", mode="eval").body
            length = ast.BinOp(node.upper, ast.Sub(), node.lower)
            if all(same(owner.module, owner.kernel.scope, length, half, **{owner.vid: v}) for v in (0, 1)):
                start = ast.unparse(lower) if lower is not None else ""
                return f"{start} : {start} + {rows}" if start else ":"
        raise Unsure(f"{ast.unparse(node)} is not the rows of a vector core")


class _Rename(cst.CSTTransformer):
    def __init__(self, old: str, new: str) -> None:
        super().__init__()
        self.old, self.new = old, new

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        return updated_node.with_changes(value=self.new) if updated_node.value == self.old else updated_node


def _names(node: cst.CSTNode) -> list[cst.CSTNode]:
    found: list[cst.CSTNode] = [node] if isinstance(node, cst.Name) else []
    for child in node.children:
        found += _names(child)
    return found


def _subscripts(node: cst.CSTNode) -> list[cst.CSTNode]:
    found: list[cst.CSTNode] = [node] if isinstance(node, cst.Subscript) else []
    for child in node.children:
        found += _subscripts(child)
    return found


def _base(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _indices(node: ast.expr) -> list[ast.expr]:
    if not isinstance(node, ast.Subscript):
        return []
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def _full(node: ast.expr) -> bool:
    return isinstance(node, ast.Slice) and node.lower is None and node.upper is None
