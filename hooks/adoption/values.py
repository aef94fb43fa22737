"""The arguments that a kernel file calls its factory with, as far as they can be read from the text."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from harness.rules.model import ITEMSIZE, Evaluator, Factory, Module, Scope, normalise_dtype

SYMBOLIC = {"T.symbolic", "T.dynamic", "T.dyn", "T.var", "T.Var"}
MOST = 8  # argument sets that loops and parametrised tests are unrolled to
DEPTH = 3  # functions calling functions
PLAIN = (bool, int, float, str)


class Given(Evaluator):
    """Folds constants where some names have known values; knows the defaults of argparse."""

    def __init__(self, module: Module, scope: Scope, known: Mapping[str, Any] | None = None) -> None:
        super().__init__(module, scope)
        self.known = known or {}

    def _value(self, node: ast.expr, depth: int) -> Any:
        match node:
            case ast.Name(id=name) if name in self.known:
                return self.known[name]
            case ast.Name(id=name):
                bound, scope, _ = self.scope.lookup(name)
                return None if bound is None else Given(self.module, scope, self.known)(bound, depth)
            case ast.Dict(keys=keys, values=values):
                return {self(key, depth): self(value, depth) for key, value in zip(keys, values, strict=True)}
            case ast.Attribute(value=ast.Name(id=owner), attr=attribute):
                dotted = self.module.resolve(node)
                if dotted.startswith("torch.") and normalise_dtype(attribute) in ITEMSIZE:
                    return normalise_dtype(attribute)
                bound, scope, _ = self.scope.lookup(owner)
                if isinstance(bound, ast.Call) and getattr(bound.func, "attr", "") == "parse_args":
                    default = option_defaults(self.module).get(attribute)
                    return None if default is None else Given(self.module, scope)(default, depth)
                return super()._value(node, depth)
            case _:
                return super()._value(node, depth)


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
            for known, scope in self._situations(call, 0):
                arguments = self._bind(call, Given(self.module, scope, known))
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

    def _situations(self, node: ast.AST, depth: int) -> Iterator[tuple[dict[str, Any], Scope]]:
        """Values of loop variables and parameters around a node, every combination, and the scope to read it in."""
        around = self._around(node)
        scope = self.module.scope
        for owner in around:
            if isinstance(owner, ast.FunctionDef):
                scope = self.module.scope_of(owner, scope)
        choices: list[list[dict[str, Any]]] = []
        for owner in around:
            if isinstance(owner, ast.FunctionDef):
                choices.append(list(itertools.islice(self._parameters(owner, depth), MOST)) or [{}])
        for owner in around:
            if isinstance(owner, ast.For):
                for earlier in list(itertools.islice(_combinations(choices), MOST)):
                    values = Given(self.module, scope, earlier)(owner.iter)
                    rounds = [_targets(owner.target, v) for v in values] if isinstance(values, tuple) else []
                    choices.append(rounds[:MOST] or [{}])
                    break
        for known in itertools.islice(_combinations(choices), MOST):
            yield known, scope

    def _parameters(self, function: ast.FunctionDef, depth: int) -> Iterator[dict[str, Any]]:
        """What a function is called with: by pytest, by the file itself, or by its defaults."""
        outer = self.module.scope
        names = [argument.arg for argument in function.args.args]
        defaults = {
            argument.arg: value
            for argument, node in zip(reversed(function.args.args), reversed(function.args.defaults), strict=False)
            if (value := Given(self.module, outer)(node)) is not None
        }
        tables = [_parametrised(Given(self.module, outer), decorator) for decorator in function.decorator_list]
        tables = [table for table in tables if table]
        if tables:
            yield from (defaults | known for known in _combinations(tables))
            return
        called = False
        for call in self._calls_of(function.name) if depth < DEPTH else ():
            for known, scope in self._situations(call, depth + 1):
                value = Given(self.module, scope, known)
                called = True
                given = dict(zip(names, map(value, call.args), strict=False))
                given |= {keyword.arg: value(keyword.value) for keyword in call.keywords if keyword.arg}
                yield defaults | {name: item for name, item in given.items() if item is not None}
        if not called:
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
    if isinstance(value, tuple):
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
