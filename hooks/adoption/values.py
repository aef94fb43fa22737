"""The arguments that a kernel file calls its factory with, as far as they can be read from the text."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

from harness.rules.model import ITEMSIZE, Evaluator, Factory, Module, Scope, normalise_dtype

SYMBOLIC = {"T.symbolic", "T.dynamic", "T.dyn", "T.var", "T.Var"}
MOST = 8  # argument sets that loops and parametrised tests are unrolled to
DEPTH = 3  # functions calling functions
NEW_TENSORS = {"empty", "full", "ones", "rand", "randint", "randn", "zeros"}
SAME_SHAPE = {"bfloat16", "clone", "contiguous", "cpu", "detach", "float", "half", "int", "long", "npu", "to", "type"}
PLAIN = (bool, int, float, str)


class Shape(tuple[int, ...]):
    """What is known of a tensor: its sizes."""


class Given(Evaluator):
    """Folds constants where some names have known values; knows argparse's defaults and the shapes of new tensors."""

    def __init__(self, module: Module, scope: Scope, known: Mapping[str, Any] | None = None) -> None:
        super().__init__(module, scope)
        self.known = known or {}

    def bound(self, name: str) -> tuple[ast.expr, Given] | None:
        """The expression that a name is bound to, and what to read it with."""
        node, scope, _ = self.scope.lookup(name)
        return None if node is None else (node, Given(self.module, scope, self.known))

    def _value(self, node: ast.expr, depth: int) -> Any:
        match node:
            case ast.Name(id=name):
                if name in self.known:
                    return self.known[name]
                found = self.bound(name)
                return None if found is None else found[1](found[0], depth)
            case ast.Dict(keys=keys, values=values):
                return {self(key, depth): self(value, depth) for key, value in zip(keys, values, strict=True)}
            case ast.Attribute(value=owner, attr=attribute):
                if self.module.resolve(node).startswith("torch.") and normalise_dtype(attribute) in ITEMSIZE:
                    return normalise_dtype(attribute)
                if attribute == "shape" and isinstance(shape := self(owner, depth), Shape):
                    return tuple(shape)
                options = self.bound(owner.id) if isinstance(owner, ast.Name) else None
                if options is not None and _is_parsed(options[0]):
                    return options[1](option_defaults(self.module).get(attribute), depth)
            case ast.Call(func=ast.Attribute(value=owner, attr=method), args=arguments):
                if self.module.resolve(node.func).startswith("torch."):
                    return self._new_tensor(method, node, depth)
                if isinstance(shape := self(owner, depth), Shape):
                    return self._method(shape, method, [self(argument, depth) for argument in arguments])
            case ast.Call(func=ast.Name(id="enumerate" | "zip" | "product"), args=arguments):
                return self._combined(node, [self(argument, depth) for argument in arguments])
            case ast.BoolOp(
                op=ast.Or(), values=values
            ):  # the value, not whether there is one; what is not known counts as not given
                return next((found for value in values if (found := self(value, depth))), None)
            case ast.BinOp(left=left, right=right):
                for side in (left, right):
                    if isinstance(shape := self(side, depth), Shape):
                        return shape
            case _:
                pass
        return super()._value(node, depth)

    @staticmethod
    def _combined(call: ast.Call, values: Sequence[Any]) -> tuple[Any, ...] | None:
        """Rounds of a loop over ``enumerate``, ``zip`` or ``itertools.product`` of literals."""
        kind = call.func.id if isinstance(call.func, ast.Name) else ""
        if not values or not all(isinstance(value, tuple) for value in values[: 1 if kind == "enumerate" else None]):
            return None
        made: Any = {"enumerate": lambda items, *_: enumerate(items), "zip": zip, "product": itertools.product}[kind]
        return tuple(itertools.islice(made(*values), MOST))

    def _new_tensor(self, function: str, call: ast.Call, depth: int) -> Shape | None:
        """The shape of ``torch.randn(2, 3)``, ``torch.full((2, 3), 1.0)``, ``torch.randint(0, 9, (2, 3))``."""
        if function not in NEW_TENSORS:
            return None
        size = next((keyword.value for keyword in call.keywords if keyword.arg == "size"), None)
        values = [self(size, depth)] if size is not None else [self(argument, depth) for argument in call.args]
        whole = next((value for value in values if isinstance(value, tuple)), None)
        return _shape(whole if whole is not None else values)

    @staticmethod
    def _method(shape: Shape, method: str, arguments: Sequence[Any]) -> Any:
        if method == "size":
            return shape[arguments[0]] if arguments else tuple(shape)
        if method in ("view", "reshape"):
            return _shape(arguments[0] if arguments and isinstance(arguments[0], tuple) else arguments)
        return shape if method in SAME_SHAPE else None


class At(Given):
    """As Given, at a line of a function: where a name is bound several times, the last binding above it counts.

    Args:
        module: The file.
        owners: The module and the functions around the line, outermost first.
        line: The line.
        known: Values of names.
    """

    def __init__(
        self, module: Module, owners: Sequence[ast.Module | ast.FunctionDef], line: int, known: Mapping[str, Any]
    ) -> None:
        super().__init__(module, module.scope, known)
        self.owners, self.line = owners, line

    def bound(self, name: str) -> tuple[ast.expr, Given] | None:
        for count in range(len(self.owners), 0, -1):
            found = [(line, node) for line, bound, node in _bindings(self.owners[count - 1]) if bound == name]
            if found:
                line, node = ([pair for pair in found if pair[0] < self.line] or found)[-1]
                return None if node is None else (node, At(self.module, self.owners[:count], line, self.known))
        return None


@cache
def _bindings(owner: ast.Module | ast.FunctionDef) -> list[tuple[int, str, ast.expr | None]]:
    """What a function or module binds itself, in order: line, name, expression (None where there is none)."""
    found: list[tuple[int, str, ast.expr | None]] = []

    def bind(target: ast.expr, value: ast.expr | None, line: int) -> None:
        if isinstance(target, ast.Name):
            found.append((line, target.id, value))
        elif isinstance(target, ast.Tuple | ast.List):
            for position, part in enumerate(target.elts):
                item: ast.expr | None = None
                if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
                    item = value.elts[position]
                elif value is not None:
                    item = ast.Subscript(value, ast.Constant(position), ast.Load())
                bind(part, item, line)

    def visit(body: Sequence[ast.stmt]) -> None:
        for statement in body:
            match statement:
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        bind(target, value, statement.lineno)
                case ast.AnnAssign(target=target, value=value):
                    bind(target, value, statement.lineno)
                case ast.AugAssign(target=target):
                    bind(target, None, statement.lineno)
                case ast.FunctionDef() | ast.ClassDef():
                    continue
                case _:
                    pass
            for block in ("body", "orelse", "finalbody"):
                visit(getattr(statement, block, ()))

    visit(owner.body)
    return found


def _shape(sizes: Sequence[Any]) -> Shape | None:
    known = sizes and all(isinstance(size, int) and size > 0 for size in sizes)
    return Shape(sizes) if known else None


def _is_parsed(node: ast.expr) -> bool:
    """Whether an expression is what argparse made of the command line."""
    match node:
        case ast.Call(func=ast.Attribute(attr="parse_args")):
            return True
        case ast.Subscript(value=ast.Call(func=ast.Attribute(attr="parse_known_args")), slice=ast.Constant(value=0)):
            return True
        case _:
            return False


def option_defaults(module: Module) -> dict[str, ast.expr]:
    """The defaults of ``add_argument`` calls, by destination."""
    found: dict[str, ast.expr] = {}
    for node in module.nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            long = next((name for name in names if name.startswith("--")), names[0] if names else "")
            destination = keywords.get("dest")
            name = destination.value if isinstance(destination, ast.Constant) else long.lstrip("-").replace("-", "_")
            if "default" in keywords:
                found[str(name)] = keywords["default"]
    return found


def is_symbolic(module: Module, node: ast.expr) -> bool:
    """Whether an expression stands for a size that is known only when the kernel runs: ``T.symbolic("M")``."""
    part = node.func if isinstance(node, ast.Call) else node.value if isinstance(node, ast.Subscript) else None
    return part is not None and module.resolve(part) in SYMBOLIC


class Calls:
    """The calls of a factory in its file."""

    def __init__(self, module: Module, factory: Factory) -> None:
        self.module, self.factory = module, factory

    def argument_sets(self) -> list[dict[str, Any]]:
        """Arguments of every call by parameter, those that cannot be read left out; each set once, in file order."""
        found: list[dict[str, Any]] = []
        for call in self._calls_of(self.factory.name, self.factory.entry):
            if any(part is call for part in ast.walk(self.factory.node)):
                continue
            for value in self._situations(call, 0):
                arguments = self._bind(call, value)
                if arguments is not None and arguments not in found:
                    found.append(arguments)
        return found[:MOST]

    def _calls_of(self, *names: str) -> list[ast.Call]:
        calls = [node for node in self.module.nodes if isinstance(node, ast.Call)]
        return sorted((c for c in calls if self.module.resolve(c.func) in names), key=lambda call: call.lineno)

    def _bind(self, call: ast.Call, value: Given) -> dict[str, Any] | None:
        """The call's arguments by the factory's parameters; None where there are too many."""
        positional: list[Any] = []
        for argument in call.args:
            if isinstance(argument, ast.Starred):
                several = value(argument.value)
                if not isinstance(several, tuple):
                    break
                positional += several
            else:
                positional.append(value(argument))
        parameters = self.factory.parameters
        if len(positional) > len(parameters):
            return None
        bound = dict(zip((parameter.arg for parameter in parameters), positional, strict=False))
        for keyword in call.keywords:
            several = value(keyword.value)
            bound |= {keyword.arg: several} if keyword.arg else several if isinstance(several, dict) else {}
        return {name: item for name, item in bound.items() if _is_plain(item)}

    # What names stand for at a call.

    def _situations(self, node: ast.expr, depth: int) -> Iterator[At]:
        """What names stand for at a node: one evaluator for every combination of parameters and loop variables."""
        around = self._around(node)
        owners: list[ast.Module | ast.FunctionDef] = [self.module.tree]
        owners += [owner for owner in around if isinstance(owner, ast.FunctionDef)]
        known: list[dict[str, Any]] = [{}]
        for owner in around:
            if isinstance(owner, ast.FunctionDef):
                choices = list(itertools.islice(self._parameters(owner, depth), MOST))
                known = [earlier | choice for earlier in known for choice in choices][:MOST]
            elif isinstance(owner, ast.For):
                known = [rounds for earlier in known for rounds in self._rounds(owner, owners, earlier)][:MOST]
        for names in known:
            yield At(self.module, owners, node.lineno, names)

    def _rounds(
        self, loop: ast.For, owners: Sequence[ast.Module | ast.FunctionDef], known: dict[str, Any]
    ) -> list[dict[str, Any]]:
        values = At(self.module, owners, loop.lineno, known)(loop.iter)
        return [known | _targets(loop.target, value) for value in values] if isinstance(values, tuple) else [known]

    def _parameters(self, function: ast.FunctionDef, depth: int) -> Iterator[dict[str, Any]]:
        """What a function is called with: by pytest, by the file itself, or by its defaults."""
        names = [argument.arg for argument in function.args.args]
        outer = At(self.module, [self.module.tree], function.lineno, {})
        defaults = {
            argument.arg: value
            for argument, node in zip(reversed(function.args.args), reversed(function.args.defaults), strict=False)
            if (value := outer(node)) is not None
        }
        tables = [table for decorator in function.decorator_list if (table := _parametrised(outer, decorator))]
        if tables:
            yield from (defaults | known for known in _combinations(tables))
            return
        calls = self._calls_of(function.name) if depth < DEPTH else []
        for call in calls:
            for value in self._situations(call, depth + 1):
                given = dict(zip(names, map(value, call.args), strict=False))
                given |= {keyword.arg: value(keyword.value) for keyword in call.keywords if keyword.arg}
                yield defaults | {name: item for name, item in given.items() if item is not None}
        if not calls:
            yield defaults

    def _around(self, node: ast.AST) -> Sequence[ast.AST]:
        """The functions and loops around a node, outermost first."""
        found: list[ast.AST] = []
        while (parent := self._parents.get(node)) is not None:
            if isinstance(parent, ast.FunctionDef | ast.For):
                found.append(parent)
            node = parent
        return found[::-1]

    @cached_property
    def _parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in self.module.nodes for child in ast.iter_child_nodes(node)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple) and not isinstance(value, Shape):
        return all(map(_is_plain, value))
    return isinstance(value, PLAIN)


def _combinations(choices: Sequence[Sequence[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    for chosen in itertools.product(*choices):
        yield {name: value for part in chosen for name, value in part.items()}


def _targets(target: ast.expr, value: Any) -> dict[str, Any]:
    """Loop variables for one round of the loop."""
    if isinstance(target, ast.Name):
        return {target.id: value}
    if isinstance(target, ast.Tuple) and isinstance(value, tuple) and len(value) == len(target.elts):
        pairs = zip(target.elts, value, strict=True)
        return {name: item for part, inner in pairs for name, item in _targets(part, inner).items()}
    return {}


def _parametrised(value: Given, decorator: ast.expr) -> list[dict[str, Any]]:
    """The rows of ``@pytest.mark.parametrize``."""
    match decorator:
        case ast.Call(func=ast.Attribute(attr="parametrize"), args=[names, rows, *_]):
            spelt, table = value(names), value(rows)
        case _:
            return []
    columns = [part.strip() for part in spelt.split(",")] if isinstance(spelt, str) else list(spelt or ())
    if not isinstance(table, tuple):
        return []
    if len(columns) == 1:
        return [{columns[0]: row} for row in table]
    return [dict(zip(columns, row, strict=False)) for row in table if isinstance(row, tuple)]
