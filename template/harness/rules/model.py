"""A TileLang file as the rules see it: parsed once, with names, constants, factories and tile operations resolved.

Nothing is executed. What cannot be known from the text is represented as ``None`` together with a reason, so that a
rule stays silent (or says that it cannot tell) rather than guessing.
"""

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

SWITCHES = {
    "TL_ASCEND_AUTO_SYNC": "auto_sync",
    "TL_ASCEND_MEMORY_PLANNING": "memory_planning",
    "TL_ASCEND_AUTO_CV_COMBINE": "auto_cv_combine",
    "TL_ASCEND_AUTO_CV_SYNC": "auto_cv_sync",
}
"""PassConfigKey member -> the name the scenario table uses."""
SWITCH_STRINGS = {
    "tl.ascend_auto_sync": "auto_sync",
    "tl.ascend_memory_planning": "memory_planning",
    "tl.ascend_auto_cv_combine": "auto_cv_combine",
    "tl.ascend_auto_cross_core_sync": "auto_cv_sync",
}
DTYPES = {"float": "float32", "half": "float16", "int": "int32", "bfloat": "bfloat16"}
ITEMSIZE = {
    **dict.fromkeys(("int8", "uint8", "bool", "float8_e4m3", "float8_e5m2", "e4m3_float8", "e5m2_float8"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64"), 8),
}
ALLOCATIONS = {
    "T.alloc_ub": "UB",
    "T.alloc_L1": "L1",
    "T.alloc_L0A": "L0A",
    "T.alloc_L0B": "L0B",
    "T.alloc_L0C": "L0C",
    "T.alloc_shared": "shared",
    "T.alloc_fragment": "fragment",
    "T.alloc_var": "var",
}
_SYNC = ("barrier_all", "pipe_barrier", "set_flag", "wait_flag", "set_cross_flag", "wait_cross_flag", "sync_all")
SYNCHRONISATION = {f"T.{name}" for name in _SYNC}
LOOPS = {"T.serial", "T.unroll", "T.vectorized", "T.Parallel", "T.Pipelined", "T.Persistent", "T.grid", "range"}
_READ_FIRST = {"T.copy", "T.reduce_sum", "T.reduce_max", "T.reduce_min"}
_DESTINATION_LAST = {"T.gemm_v0", "T.gemm", "T.mma"}
_READS_DESTINATION = {"T.tile.axpy", "T.tile.mul_add_dst", "T.tile.atomic_add"}
_DEPTH = 8  # macros calling macros


def normalise_dtype(text: str) -> str:
    """``float`` and ``half`` spelt as the compiler resolves them."""
    return DTYPES.get(text, text)


# --- values ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Scope:
    """Names of one function (or the module) that are bound exactly once, with the expression they are bound to."""

    names: dict[str, ast.expr] = field(default_factory=dict)
    defaults: dict[str, ast.expr] = field(default_factory=dict)
    opaque: set[str] = field(default_factory=set)
    parent: Scope | None = None

    def lookup(self, name: str) -> tuple[ast.expr | None, Scope, bool]:
        """Return (bound expression or None, the scope to read it in, whether it is only a parameter's default)."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.opaque:
                return None, scope, False
            if name in scope.names:
                return scope.names[name], scope, False
            if name in scope.defaults:
                return scope.defaults[name], scope, True
            scope = scope.parent
        return None, self, False

    def behind(self, node: ast.expr) -> Iterator[ast.expr]:
        """The parts of an expression, also behind the names in it, but not behind defaults of parameters."""
        pending, followed = [node], set[str]()  # a name may be bound to an expression of itself
        while pending:
            for part in ast.walk(pending.pop()):
                if isinstance(part, ast.expr):
                    yield part
                if isinstance(part, ast.Name) and part.id not in followed:
                    followed.add(part.id)
                    bound, _, is_default = self.lookup(part.id)
                    pending += [bound] if bound is not None and not is_default else []


_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Div: lambda a, b: a / b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a**b if abs(b) < 64 and abs(a) < 1 << 32 else None,
    ast.LShift: lambda a, b: a << b if 0 <= b < 64 else None,
}
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


class Evaluator:
    """Folds constants; ``None`` means "not known from the text"."""

    def __init__(self, module: Module, scope: Scope, *, defaults: bool = True) -> None:
        self.module, self.scope, self.defaults = module, scope, defaults

    def __call__(self, node: ast.expr | None, depth: int = 0) -> Any:
        if node is None or depth > 40:
            return None
        try:
            return self._value(node, depth + 1)
        except (ArithmeticError, TypeError, ValueError, IndexError, KeyError, AttributeError):
            return None

    def _value(self, node: ast.expr, depth: int) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                expression, scope, is_default = self.scope.lookup(name)
                if expression is None or (is_default and not self.defaults):
                    return None
                value = Evaluator(self.module, scope, defaults=self.defaults)(expression, depth)
                return None if is_default and value == 0 and value is not False else value  # 0 stands for "not given"
            case ast.BinOp(left=left, op=op, right=right):
                a, b = self(left, depth), self(right, depth)
                return None if a is None or b is None or type(op) not in _BINARY else _BINARY[type(op)](a, b)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self(operand, depth)
                return None if value is None else -value
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                value = self(operand, depth)
                return None if value is None else not value
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                a, b = self(left, depth), self(right, depth)
                return None if a is None or b is None or type(op) not in _COMPARE else _COMPARE[type(op)](a, b)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                value = self(test, depth)
                return None if value is None else self(body if value else orelse, depth)
            case ast.BoolOp(op=op, values=values):
                known = [self(value, depth) for value in values]
                decisive = isinstance(op, ast.Or)
                if any(value is not None and bool(value) is decisive for value in known):
                    return decisive
                return None if None in known else not decisive
            case ast.Tuple(elts=items) | ast.List(elts=items):
                return tuple(self(item, depth) for item in items)
            case ast.Subscript(value=base, slice=index):
                sequence, position = self(base, depth), self(index, depth)
                return None if sequence is None or position is None else sequence[position]
            case ast.Attribute(attr="bits", value=ast.Call(args=[argument])):
                dtype = self(argument, depth)
                return ITEMSIZE[normalise_dtype(dtype)] * 8
            case ast.Attribute():
                dotted = self.module.resolve(node)
                short = dotted.removeprefix("T.")
                return short if dotted.startswith("T.") and normalise_dtype(short) in ITEMSIZE else None
            case ast.Call(args=arguments) if not node.keywords:
                given: list[Any] = [self(argument, depth) for argument in arguments]
                if None in given:
                    return None
                name = self.module.resolve(node.func)
                if name in ("T.ceildiv", "tilelang.cdiv"):
                    return -(-given[0] // given[1])
                if name == "T.floordiv":
                    return given[0] // given[1]
                if name in ("min", "max", "len", "int", "abs", "sum", "float"):
                    return getattr(builtins, name)(*given)
                if name in ("T.min", "T.max"):
                    return getattr(builtins, name[2:])(*given)
                return None
            case _:
                return None


class Trial(Evaluator):
    """Evaluates index expressions with an even number for every name that stands for no constant."""

    def __init__(self, module: Module, scope: Scope, trial: int = 0, fixed: Mapping[str, int] | None = None) -> None:
        super().__init__(module, scope)
        self.trial, self.fixed = trial, fixed or {}

    def _value(self, node: ast.expr, depth: int) -> Any:
        if not isinstance(node, ast.Name):
            return super()._value(node, depth)
        if node.id in self.fixed:
            return self.fixed[node.id]
        bound, where, is_default = self.scope.lookup(node.id)
        value = Trial(self.module, where, self.trial, self.fixed)(bound, depth) if not is_default else None
        if value is not None:
            return value
        return 32 * (1 + (sum(map(ord, node.id)) * 7 + len(node.id) * 13 + self.trial**2 * 31) % 97)


def same(module: Module, scope: Scope, a: ast.expr, b: ast.expr, **fixed: int) -> bool:
    """Whether two index expressions agree for several choices of the names in them."""
    for trial in range(4):
        values = [Trial(module, scope, trial, fixed)(node) for node in (a, b)]
        if not isinstance(values[0], int) or values[0] != values[1]:
            return False
    return True


# --- the parts of a file ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Frame:
    """One construct around an operation: a scope, a loop or a branch.

    Attributes:
        kind: ``scope``, ``loop`` or ``branch``.
        name: The scope's letter (``C``/``V``, None when not a literal), or the loop's kind (``T.serial`` …).
        node: The statement.
        targets: Loop variables.
        arm: 0 for the body of an ``if``, 1 for its ``else``.
        dead: A branch not taken with the factory's defaults.
    """

    kind: str
    name: str | None
    node: ast.stmt
    targets: tuple[str, ...] = ()
    arm: int = 0
    dead: bool = False


@dataclass(frozen=True, eq=False)
class Operand:
    """A buffer or tensor as an operation names it: ``a``, ``a[i, :]``."""

    name: str
    node: ast.expr


@dataclass(frozen=True, eq=False)
class Operation:
    """A TileLang call, or an element assignment (``T.assign``), inside a kernel; macros are expanded in place."""

    name: str
    node: ast.expr | ast.stmt
    frames: tuple[Frame, ...]
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]
    arguments: tuple[ast.expr, ...] = ()
    keywords: Mapping[str, ast.expr] = field(default_factory=dict)
    index: int = 0

    @property
    def scope(self) -> str | None:
        """The innermost ``T.Scope``'s letter, or None outside any."""
        return next((frame.name for frame in reversed(self.frames) if frame.kind == "scope"), None)

    @property
    def in_scope(self) -> bool:
        return any(frame.kind == "scope" for frame in self.frames)

    @property
    def live(self) -> bool:
        """Whether it is reached with the factory's defaults."""
        return not any(frame.dead for frame in self.frames)

    @property
    def loops(self) -> tuple[Frame, ...]:
        return tuple(frame for frame in self.frames if frame.kind == "loop")

    def argument(self, position: int, keyword: str) -> ast.expr | None:
        return self.keywords.get(keyword) or (self.arguments[position] if position < len(self.arguments) else None)


@dataclass(eq=False)
class Buffer:
    """An on-chip allocation. ``memory`` is UB, L1, L0A, L0B, L0C, ``var``, or None when the use does not decide."""

    name: str
    function: str
    memory: str | None
    shape: tuple[int | None, ...] | None
    dtype: str | None
    node: ast.Call
    shape_nodes: tuple[ast.expr, ...] = ()

    @property
    def bytes(self) -> int | None:
        if self.shape is None or self.dtype not in ITEMSIZE or any(not isinstance(n, int) for n in self.shape):
            return None
        return math.prod(n for n in self.shape if n is not None) * ITEMSIZE[self.dtype]


@dataclass(frozen=True, eq=False)
class Parameter:
    """A parameter of the prim_func."""

    name: str
    node: ast.arg
    shape: tuple[ast.expr, ...] | None
    dtype: str | None
    is_tensor: bool


@dataclass(eq=False)
class Launch:
    """``with T.Kernel(...) as ...``."""

    node: ast.With
    call: ast.Call
    targets: tuple[str, ...]

    @property
    def keywords(self) -> dict[str, ast.expr]:
        return {keyword.arg: keyword.value for keyword in self.call.keywords if keyword.arg}

    @property
    def threads(self) -> ast.expr | None:
        """The ``threads`` argument; None when absent or ``None``."""
        node = self.keywords.get("threads")
        return None if isinstance(node, ast.Constant) and node.value is None else node


@dataclass(eq=False)
class Kernel:
    """A prim_func."""

    node: ast.FunctionDef
    scope: Scope
    parameters: list[Parameter]
    launches: list[Launch] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    unknown_calls: list[ast.Call] = field(default_factory=list)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the prim_func."""
        return list(ast.walk(self.node))

    def parameter(self, name: str) -> Parameter | None:
        return next((p for p in self.parameters if p.name == name), None)

    def named(self, *names: str) -> Iterator[Operation]:
        return (operation for operation in self.operations if operation.name in names)


@dataclass(eq=False)
class Config:
    """The switches of a factory: known, or unknown with the reason."""

    switches: dict[str, bool] | None
    reason: str = ""
    node: ast.expr | None = None
    keys: list[tuple[ast.expr, str]] = field(default_factory=list)

    def on(self, switch: str) -> bool | None:
        return None if self.switches is None else self.switches.get(switch, False)


@dataclass(eq=False)
class Factory:
    """A function that builds prim_funcs, decorated with ``jit`` or not.

    ``entry`` is the name under which the decorated function is reached: another than its own in
    ``fast = tilelang.jit(...)(slow)``.
    """

    name: str
    node: ast.FunctionDef
    decorator: ast.expr | None
    config: Config
    scope: Scope
    kernels: list[Kernel] = field(default_factory=list)
    entry: str = ""

    def __post_init__(self) -> None:
        self.entry = self.entry or self.name

    @property
    def options(self) -> dict[str, ast.expr]:
        if isinstance(self.decorator, ast.Call):
            return {keyword.arg: keyword.value for keyword in self.decorator.keywords if keyword.arg}
        return {}

    @property
    def parameters(self) -> list[ast.arg]:
        arguments = self.node.args
        return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


class Module:
    """A parsed file.

    Args:
        path: The file; used in messages only when ``text`` is given.
        text: The source; read from ``path`` when None.

    Raises:
        SyntaxError: The text is not Python, or has null bytes.
        UnicodeDecodeError: The file is not UTF-8.
        OSError: The file cannot be read.
    """

    def __init__(self, path: Path, text: str | None = None) -> None:
        self.path = path
        self.text = path.read_bytes().decode("utf-8-sig") if text is None else text
        try:
            self.tree = ast.parse(self.text, str(path))
        except (ValueError, RecursionError, MemoryError) as error:
            raise SyntaxError(str(error) or type(error).__name__) from error
        self.lines = self.text.encode().splitlines()
        self.nodes = list(ast.walk(self.tree))
        self.names: dict[str, str] = {}
        self._read_imports()
        self.scope = self.scope_of(self.tree, None)
        self.functions: dict[str, ast.FunctionDef] = {}
        self.factories: list[Factory] = []
        self._applied = self._applications()
        self._find_factories(self.tree.body, None, self.scope)

    # names

    def _read_imports(self) -> None:
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    target = alias.name if alias.asname else alias.name.split(".")[0]
                    self.names[alias.asname or target] = target
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self.names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        for statement in self.tree.body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute() as value):
                    dotted = self.resolve(value)
                    if dotted == "T":
                        self.names[name] = "tilelang.language"

    def resolve(self, node: ast.expr) -> str:
        """Dotted name of ``node`` with import aliases undone: ``T.copy``, ``tilelang.jit``; "" when it has none."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        dotted = ".".join([self.names.get(node.id, node.id), *reversed(parts)])
        if dotted == "tilelang.language" or dotted.startswith("tilelang.language."):
            dotted = "T" + dotted.removeprefix("tilelang.language")
        elif dotted.startswith(("T.", "T ")) and self.names.get("T", "tilelang.language") != "tilelang.language":
            return ""
        return dotted

    def is_jit(self, decorator: ast.expr) -> bool:
        name = self.resolve(decorator.func if isinstance(decorator, ast.Call) else decorator)
        return name.startswith("tilelang.") and name.rsplit(".", 1)[-1] == "jit"

    def _applications(self) -> dict[str, tuple[str, ast.expr]]:
        """Functions decorated after the fact, ``g = tilelang.jit(...)(f)``: f -> (g, the decorator)."""
        found: dict[str, tuple[str, ast.expr]] = {}
        for statement in self.tree.body:
            match statement:
                case ast.Assign(
                    targets=[ast.Name(id=entry)], value=ast.Call(func=decorator, args=[ast.Name(id=function)])
                ) if self.is_jit(decorator):
                    found[function] = (entry, decorator)
        return found

    def _is_prim(self, node: ast.AST) -> bool:
        return isinstance(node, ast.FunctionDef) and any(
            self._decorator(d) == "T.prim_func" for d in node.decorator_list
        )

    def _decorator(self, node: ast.expr) -> str:
        return self.resolve(node.func if isinstance(node, ast.Call) else node)

    # scopes

    def scope_of(self, node: ast.Module | ast.FunctionDef, parent: Scope | None) -> Scope:
        """The names that a module or function binds itself."""
        scope = Scope(parent=parent)
        counts: dict[str, int] = {}

        def bind(target: ast.expr, value: ast.expr | None) -> None:
            match target:
                case ast.Name(id=name):
                    counts[name] = counts.get(name, 0) + 1
                    if value is None:
                        scope.opaque.add(name)
                    else:
                        scope.names[name] = value
                case ast.Tuple(elts=items) | ast.List(elts=items):
                    values: Sequence[ast.expr | None] = [None] * len(items)
                    if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(items):
                        values = value.elts
                    for item, part in zip(items, values, strict=True):
                        bind(item, part)
                case ast.Starred(value=inner):
                    bind(inner, None)
                case _:
                    pass

        def visit(body: Sequence[ast.stmt]) -> None:
            for statement in body:
                match statement:
                    case ast.Assign(targets=targets, value=value):
                        for target in targets:
                            bind(target, value)
                    case ast.AnnAssign(target=target, value=value):
                        bind(target, value)
                    case ast.AugAssign(target=target):
                        bind(target, None)
                    case ast.For(target=target):
                        bind(target, None)
                    case ast.With(items=items):
                        for item in items:
                            if item.optional_vars is not None:
                                bind(item.optional_vars, None)
                    case _:
                        pass
                for name in ("body", "orelse", "finalbody"):
                    inner = getattr(statement, name, None)
                    if isinstance(inner, list) and not isinstance(statement, ast.FunctionDef | ast.ClassDef):
                        visit(inner)

        visit(node.body)
        for name, count in counts.items():
            if count > 1:
                scope.names.pop(name, None)
                scope.opaque.add(name)
        if isinstance(node, ast.FunctionDef):
            arguments = node.args
            positional = [*arguments.posonlyargs, *arguments.args]
            for argument in [*positional, *arguments.kwonlyargs]:
                if argument.arg not in scope.names:
                    scope.opaque.add(argument.arg)
            pairs = [
                *zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True),
                *((a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None),
            ]
            for argument, default in pairs:
                if counts.get(argument.arg, 0) == 0:
                    scope.opaque.discard(argument.arg)
                    scope.defaults[argument.arg] = default
        return scope

    # factories

    def _find_factories(self, body: Sequence[ast.stmt], owner: Factory | None, scope: Scope) -> None:
        for statement in body:
            if isinstance(statement, ast.FunctionDef):
                self.functions.setdefault(statement.name, statement)
                if self._is_prim(statement):
                    if owner is None:
                        owner_of_one = Factory(
                            statement.name, statement, None, Config(None, "a prim_func without a factory"), scope
                        )
                        self.factories.append(owner_of_one)
                        self._add_kernel(owner_of_one, statement, scope)
                    else:
                        self._add_kernel(owner, statement, scope)
                    continue
                inner = self.scope_of(statement, scope)
                decorator = next((d for d in statement.decorator_list if self.is_jit(d)), None)
                entry = statement.name
                if decorator is None and owner is None and scope is self.scope:
                    entry, decorator = self._applied.get(statement.name, (entry, None))
                builds = decorator is not None or (owner is None and any(map(self._is_prim, ast.walk(statement))))
                found = owner
                if builds:
                    config = self._config(decorator, inner)
                    found = Factory(statement.name, statement, decorator, config, inner, entry=entry)
                    self.factories.append(found)
                self._find_factories(statement.body, found, inner)
            else:
                for name in ("body", "orelse", "finalbody"):
                    nested = getattr(statement, name, None)
                    if isinstance(nested, list):
                        self._find_factories(nested, owner, scope)

    def _config(self, decorator: ast.expr | None, scope: Scope) -> Config:
        if decorator is None:
            return Config(None, "the factory has no @tilelang.jit; whoever compiles it chooses the switches")
        if not isinstance(decorator, ast.Call):
            return Config({})
        if any(keyword.arg is None for keyword in decorator.keywords):
            return Config(None, "the decorator's arguments are unpacked from a value", decorator)
        value = next((keyword.value for keyword in decorator.keywords if keyword.arg == "pass_configs"), None)
        if value is None:
            return Config({})
        outer = scope.parent or scope
        config = Config({}, node=value)
        self._read_config(value, outer, config)
        return config

    def _read_config(self, value: ast.expr, scope: Scope, config: Config) -> None:
        def unknown(reason: str) -> None:
            config.switches, config.reason = None, config.reason or reason

        match value:
            case ast.Constant(value=None):
                return
            case ast.Name(id=name):
                bound, where, _ = scope.lookup(name)
                changed = next((n for n in self.nodes if _mutates(n, name)), None)
                if bound is None:
                    unknown(f"{name} is not bound to one literal dictionary")
                elif changed is not None:
                    unknown(f"{name} is changed at run time (line {getattr(changed, 'lineno', '?')})")
                else:
                    config.node = bound
                    self._read_config(bound, where, config)
            case ast.Dict(keys=keys, values=values):
                for key, item in zip(keys, values, strict=True):
                    if key is None:
                        self._read_config(item, scope, config)
                        config.node = value
                        continue
                    spelt = self._config_key(key, scope)
                    if spelt is None:
                        unknown(f"the key on line {key.lineno} is not a literal")
                        continue
                    config.keys.append((key, spelt))
                    switch = SWITCHES.get(spelt) or SWITCH_STRINGS.get(spelt)
                    if switch is None:
                        continue
                    setting = Evaluator(self, scope)(item)
                    if not isinstance(setting, bool | int):
                        unknown(f"the value of {switch} on line {item.lineno} is not a literal")
                    elif config.switches is not None:
                        config.switches[switch] = bool(setting)
            case _:
                unknown(f"pass_configs is built at run time (line {value.lineno})")

    def _config_key(self, key: ast.expr, scope: Scope) -> str | None:
        if isinstance(key, ast.Attribute):
            node = key.value if key.attr == "value" and isinstance(key.value, ast.Attribute) else key
            dotted = self.resolve(node)
            return dotted.rsplit(".", 1)[-1] if "PassConfigKey" in dotted else None
        text = Evaluator(self, scope)(key)
        return text if isinstance(text, str) else None

    # kernels

    def _add_kernel(self, factory: Factory, node: ast.FunctionDef, scope: Scope) -> None:
        inner = self.scope_of(node, scope)
        evaluate = Evaluator(self, scope)
        parameters = []
        for argument in node.args.args:
            shape: tuple[ast.expr, ...] | None = None
            dtype: str | None = None
            is_tensor = False
            if isinstance(argument.annotation, ast.Call) and self.resolve(argument.annotation.func) in (
                "T.Tensor",
                "T.Buffer",
            ):
                is_tensor = True
                call = argument.annotation
                shape = self.sequence(call.args[0], scope) if call.args else None
                dtype_node = (
                    call.args[1]
                    if len(call.args) > 1
                    else next((k.value for k in call.keywords if k.arg == "dtype"), None)
                )
                dtype = _dtype(evaluate(dtype_node))
            parameters.append(Parameter(argument.arg, argument, shape, dtype, is_tensor))
        kernel = Kernel(node, inner, parameters)
        _Walker(self, factory, kernel).walk()
        _resolve_memories(kernel)
        factory.kernels.append(kernel)

    def sequence(self, node: ast.expr, scope: Scope, depth: int = 0) -> tuple[ast.expr, ...] | None:
        """Elements of a tuple or list expression, also through a name."""
        if isinstance(node, ast.Tuple | ast.List):
            return tuple(node.elts)
        if isinstance(node, ast.IfExp):
            value = Evaluator(self, scope)(node.test)
            return None if value is None else self.sequence(node.body if value else node.orelse, scope, depth + 1)
        if isinstance(node, ast.Name) and depth < 10:
            bound, where, _ = scope.lookup(node.id)
            return None if bound is None else self.sequence(bound, where, depth + 1)
        return None


def _dtype(value: object) -> str | None:
    return normalise_dtype(value) if isinstance(value, str) else None


def _mutates(node: ast.AST, name: str) -> Any:
    """Whether ``node`` changes the dictionary called ``name``."""
    match node:
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=target))]) if target == name:
            return True
        case ast.AugAssign(target=ast.Name(id=target)) if target == name:
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id=target), attr="update" | "setdefault" | "pop")) if (
            target == name
        ):
            return True
        case _:
            return False


class _Walker:
    """Collects launches, buffers and operations of one kernel in program order."""

    def __init__(self, module: Module, factory: Factory, kernel: Kernel) -> None:
        self.module, self.factory, self.kernel = module, factory, kernel
        self.locals = {
            node.name: node
            for node in ast.walk(factory.node)
            if isinstance(node, ast.FunctionDef) and node is not kernel.node
        }
        self.bindings: dict[str, ast.expr] = {}
        self.depth = 0

    def walk(self) -> None:
        self._body(self.kernel.node.body, ())

    def _body(self, body: Sequence[ast.stmt], frames: tuple[Frame, ...]) -> None:
        for statement in body:
            self._statement(statement, frames)

    def _statement(self, statement: ast.stmt, frames: tuple[Frame, ...]) -> None:
        match statement:
            case ast.With(items=items, body=body):
                for item in items:
                    frames = self._with(statement, item, frames)
                self._body(body, frames)
            case ast.For(target=target, iter=iterator, body=body, orelse=orelse):
                name = self.module.resolve(iterator.func) if isinstance(iterator, ast.Call) else ""
                self._expression(iterator, frames, skip=True)
                targets = tuple(n.id for n in ast.walk(target) if isinstance(n, ast.Name))
                self._body(body, (*frames, Frame("loop", name, statement, targets)))
                self._body(orelse, frames)
            case ast.While(body=body):
                self._body(body, (*frames, Frame("loop", "while", statement)))
            case ast.If(test=test, body=body, orelse=orelse):
                self._expression(test, frames, skip=True)
                value = Evaluator(self.module, self.kernel.scope)(test)
                for arm, part in enumerate((body, orelse)):
                    dead = isinstance(value, bool) and value is bool(arm)
                    self._body(part, (*frames, Frame("branch", None, statement, arm=arm, dead=dead)))
            case ast.Expr(value=value):
                self._expression(value, frames)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call) if self._allocate(name, call):
                pass
            case ast.Assign(targets=[target], value=value):
                self._assign(statement, target, value, frames, augmented=False)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self._assign(statement, target, value, frames, augmented=False)
            case ast.AugAssign(target=target, value=value):
                self._assign(statement, target, value, frames, augmented=True)
            case _:
                pass

    def _with(self, statement: ast.With, item: ast.withitem, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        call = item.context_expr
        if not isinstance(call, ast.Call):
            return frames
        name = self.module.resolve(call.func)
        if name == "T.Kernel":
            variables = item.optional_vars
            targets = (
                tuple(n.id for n in ast.walk(variables) if isinstance(n, ast.Name)) if variables is not None else ()
            )
            self.kernel.launches.append(Launch(statement, call, targets))
        elif name == "T.Scope":
            letter = Evaluator(self.module, self.kernel.scope)(call.args[0]) if call.args else None
            return (*frames, Frame("scope", letter if isinstance(letter, str) else None, statement))
        elif name in ("T.If", "T.Then", "T.Else"):
            return (*frames, Frame("branch", None, statement, arm=int(name == "T.Else")))
        return frames

    def _allocate(self, name: str, call: ast.Call) -> bool:
        function = self.module.resolve(call.func)
        memory = ALLOCATIONS.get(function)
        if memory is None:
            return False
        evaluate = Evaluator(self.module, self.kernel.scope)
        keywords = {k.arg: k.value for k in call.keywords if k.arg}
        if memory == "var":
            dtype = evaluate(call.args[0] if call.args else keywords.get("dtype"))
            self.kernel.buffers[name] = Buffer(name, function, "var", (1,), _dtype(dtype), call)
            return True
        shape_node = call.args[0] if call.args else keywords.get("shape")
        dtype_node = call.args[1] if len(call.args) > 1 else keywords.get("dtype")
        nodes = self.module.sequence(shape_node, self.kernel.scope) if shape_node is not None else None
        shape = None
        if nodes is not None:
            values = [evaluate(node) for node in nodes]
            shape = tuple(int(v) if isinstance(v, int) else None for v in values)
        known = memory if memory not in ("shared", "fragment") else None
        self.kernel.buffers[name] = Buffer(
            name, function, known, shape, _dtype(evaluate(dtype_node)), call, nodes or ()
        )
        return True

    def _assign(
        self, statement: ast.stmt, target: ast.expr, value: ast.expr, frames: tuple[Frame, ...], *, augmented: bool
    ) -> None:
        self._expression(value, frames, skip=True)
        writes = self._operands(target) if isinstance(target, ast.Subscript) else []
        if isinstance(target, ast.Name) and target.id in self.kernel.buffers:
            writes = [Operand(target.id, target)]
        if isinstance(target, ast.Name) and isinstance(value, ast.Name | ast.Subscript):
            base = value.value if isinstance(value, ast.Subscript) else value
            if isinstance(base, ast.Name) and _known(self.kernel, base.id) and _is_region(value):
                self.kernel.aliases[target.id] = base.id
        if writes:
            reads = [o for node in ast.walk(value) for o in self._operands(node, shallow=True)]
            if augmented:
                reads = [*writes, *reads]
            self._add("T.assign", statement, frames, reads, writes)

    def _expression(self, node: ast.expr, frames: tuple[Frame, ...], *, skip: bool = False) -> None:
        """Record the calls in an expression; ``skip`` leaves out bare value expressions such as T.ceildiv."""
        if not isinstance(node, ast.Call):
            if skip:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self._expression(child, frames, skip=True)
            return
        name = self.module.resolve(node.func)
        if name.startswith("T."):
            if not skip:
                self._call(name, node, frames)
            return
        if name in self.locals and self.depth < _DEPTH:
            self._expand(self.locals[name], node, frames)
        elif not skip:
            self.kernel.unknown_calls.append(node)
            operands = [
                o for a in [*node.args, *(k.value for k in node.keywords)] for o in self._operands(self._bound(a))
            ]
            self._add(name or "?", node, frames, operands, operands)

    def _expand(self, function: ast.FunctionDef, call: ast.Call, frames: tuple[Frame, ...]) -> None:
        """Walk a macro or helper in the caller's frames, its parameters standing for the caller's arguments."""
        saved = self.bindings
        names = [argument.arg for argument in function.args.args]
        bound = dict(zip(names, (self._bound(a) for a in call.args), strict=False))
        bound.update({k.arg: self._bound(k.value) for k in call.keywords if k.arg})
        self.bindings = bound
        self.depth += 1
        for statement in function.body:
            if isinstance(statement, ast.Return) and statement.value is not None:
                self._expression(statement.value, frames)
            elif isinstance(statement, ast.If):
                for inner in (*statement.body, *statement.orelse):
                    if isinstance(inner, ast.Return) and inner.value is not None:
                        self._expression(inner.value, (*frames, Frame("branch", None, statement)))
                self._statement(statement, frames)
            else:
                self._statement(statement, frames)
        self.depth -= 1
        self.bindings = saved

    def _bound(self, node: ast.expr) -> ast.expr:
        """``node`` with macro parameters replaced by the caller's expressions (outermost name only)."""
        if isinstance(node, ast.Name):
            return self.bindings.get(node.id, node)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in self.bindings:
            base = self.bindings[node.value.id]
            if isinstance(base, ast.Name):
                return ast.copy_location(ast.Subscript(base, node.slice, node.ctx), node)
            return base
        return node

    def _call(self, name: str, node: ast.Call, frames: tuple[Frame, ...]) -> None:
        arguments = tuple(self._bound(a) for a in node.args)
        keywords = {k.arg: self._bound(k.value) for k in node.keywords if k.arg}
        operands = [self._operands(a) for a in arguments]
        everything = [o for part in operands for o in part] + [o for v in keywords.values() for o in self._operands(v)]
        reads, writes = everything, []
        if name in _READ_FIRST:
            source = self._operands(arguments[0] if arguments else keywords.get("src"))
            target = arguments[1] if len(arguments) > 1 else keywords.get("dst") or keywords.get("out")
            reads, writes = source, self._operands(target)
            clear = keywords.get("clear")
            if clear is not None and not (isinstance(clear, ast.Constant) and clear.value is True):
                reads = [*reads, *writes]
        elif name in _DESTINATION_LAST:
            target = arguments[2] if len(arguments) > 2 else keywords.get("C")
            writes = self._operands(target)
            reads = [o for a in arguments[:2] for o in self._operands(a)]
            reads += [o for key in ("A", "B") if key in keywords for o in self._operands(keywords[key])]
        elif name.startswith("T.tile.") or name in ("T.reinterpretcast", "T.fill", "T.clear"):
            writes = self._operands(arguments[0] if arguments else next(iter(keywords.values()), None))
            reads = [o for o in everything if o not in writes and not any(o.node is w.node for w in writes)]
            if name in _READS_DESTINATION:
                reads = [*writes, *reads]
            if name.endswith("_experiment"):  # scratch operands stand among the others
                writes = everything
        elif name in SYNCHRONISATION or name in ("T.annotate_address", "T.annotate_layout", "T.func_attr", "T.printf"):
            reads = []
        elif name == "T.dump_tensor":
            writes = []
        else:
            writes = everything
        self._add(name, node, frames, reads, writes, arguments, keywords)

    def _operands(self, node: ast.expr | ast.AST | None, *, shallow: bool = False) -> list[Operand]:
        if isinstance(node, ast.Subscript):
            base = node.value
            if isinstance(base, ast.Name):
                base = self._bound(base)
            if isinstance(base, ast.Subscript):
                base = base.value
            if isinstance(base, ast.Name):
                name = self.kernel.aliases.get(base.id, base.id)
                return [Operand(name, node)] if _known(self.kernel, name) else []
        elif isinstance(node, ast.Name) and not shallow:
            name = self.kernel.aliases.get(node.id, node.id)
            return [Operand(name, node)] if _known(self.kernel, name) else []
        elif isinstance(node, ast.Call) and not shallow:
            return [o for a in node.args for o in self._operands(self._bound(a))]
        return []

    def _add(
        self,
        name: str,
        node: ast.expr | ast.stmt,
        frames: tuple[Frame, ...],
        reads: Sequence[Operand],
        writes: Sequence[Operand],
        arguments: tuple[ast.expr, ...] = (),
        keywords: Mapping[str, ast.expr] | None = None,
    ) -> None:
        operations = self.kernel.operations
        operations.append(
            Operation(name, node, frames, tuple(reads), tuple(writes), arguments, keywords or {}, len(operations))
        )


def _known(kernel: Kernel, name: str) -> bool:
    parameter = kernel.parameter(name)
    return name in kernel.buffers or (parameter is not None and parameter.is_tensor)


def _is_region(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) or any(isinstance(n, ast.Slice) for n in ast.walk(node))


def _resolve_memories(kernel: Kernel) -> None:
    """Decide from their use where ``alloc_shared`` and ``alloc_fragment`` buffers live, as the compiler does."""
    buffers = kernel.buffers
    for operation in kernel.named("T.gemm_v0", "T.mma", "T.gemm"):
        left, right = ("L1", "L1") if operation.name != "T.mma" else ("L0A", "L0B")
        for operand, memory in zip(operation.reads[:2], (left, right), strict=False):
            _place(buffers, operand.name, memory)
        for operand in operation.writes:
            _place(buffers, operand.name, "L0C")
    for operation in kernel.operations:
        if operation.name.startswith(("T.tile.", "T.reduce_")) or operation.name == "T.assign":
            for operand in (*operation.reads, *operation.writes):
                _place(buffers, operand.name, "UB")


def _place(buffers: Mapping[str, Buffer], name: str, memory: str) -> None:
    buffer = buffers.get(name)
    if buffer is not None and buffer.memory is None:
        buffer.memory = memory
