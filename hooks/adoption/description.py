"""What a package needs to know of a kernel: its tensors, sizes, options, scenario and problems to try."""

from __future__ import annotations

import ast
import keyword
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adoption.problem import CannotAdopt
from adoption.scenario import Choice, choose_scenario
from adoption.values import Calls, Given, is_symbolic
from harness.catalog import Catalog
from harness.rules.model import ITEMSIZE, Factory, Module, Parameter, Scope, normalise_dtype

UNKNOWN_SIZE = 256  # of a symbolic dimension that the file says nothing about
RESERVED = {
    "case",
    "computed",
    "device",
    "inputs",
    "moved",
    "np",
    "rng",
    "values",
    "wanted",
}  # names that the written files use themselves
FLOAT8 = {"e4m3_float8": "float8_e4m3", "e5m2_float8": "float8_e5m2"}  # the compiler's names, to the catalog's
LARGEST = 2**30  # bytes of tensors that a case may have; a problem in the file above that is left out
NAMED = ("name", "expression")
DIVISIONS = {"T.ceildiv", "tilelang.cdiv"}


@dataclass(frozen=True)
class Dim:
    """One dimension of a tensor.

    Attributes:
        text: Its name, its number of elements, or the Python expression it is computed by.
        kind: ``name`` (read off the tensor), ``number``, ``expression``, or ``unknown`` (of an output only).
    """

    text: str
    kind: str


@dataclass(frozen=True)
class Tensor:
    """A tensor parameter of the kernel; ``host`` is its name in Python."""

    name: str
    host: str
    dims: tuple[Dim, ...]
    dtype: str


@dataclass(frozen=True)
class Option:
    """A parameter of the factory that no tensor tells: its value in the first problem."""

    name: str
    value: Any


@dataclass(frozen=True)
class Problem:
    """One problem: sizes by name, options that differ from the first problem's, and the level it belongs to."""

    level: str
    sizes: Mapping[str, int]
    options: Mapping[str, Any]
    why: str = ""


@dataclass
class Description:
    """Everything that is read from a kernel file.

    Attributes:
        factory: The factory.
        entry: The name that holds the decorated function.
        inputs: Tensors that a caller passes.
        outputs: Tensors that the kernel returns.
        workspaces: Names of workspaces.
        sizes: Names of dimensions that are read off tensors, in order.
        arguments: Parameters of the factory that are sizes.
        options: Parameters of the factory that callers may set.
        constants: Parameters of the factory that decide element types: a package has one.
        problems: What to try.
        scenario: The scenario and why.
        dtype: Element type of the package.
        backend: The decorator's target, or empty.
        platform: The decorator's platform, or empty.
        notes: What a person should know.
    """

    factory: Factory
    entry: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    workspaces: list[str]
    sizes: list[str]
    arguments: list[str]
    options: list[Option]
    constants: list[Option]
    problems: list[Problem]
    scenario: Choice
    dtype: str
    backend: str
    platform: str
    notes: list[str] = field(default_factory=list)


class Describer:
    """Describes one factory.

    Args:
        module: The file.
        factory: The factory.
        given: Arguments that the user gave for it; also sizes of symbolic dimensions.
        shapes: Shapes that the user gave, by tensor.
        catalog: The template's catalog.
        era: The compiler era, or None to find the one that fits the switches.
    """

    def __init__(
        self,
        module: Module,
        factory: Factory,
        given: Mapping[str, Any],
        shapes: Mapping[str, Sequence[int]],
        catalog: Catalog,
        era: str | None,
    ) -> None:
        self.module, self.factory, self.given, self.shapes = module, factory, given, shapes
        self.catalog, self.era = catalog, era
        self.kernel = factory.kernels[0]
        self.parameters = [parameter.arg for parameter in factory.parameters]
        self.notes: list[str] = []

    def describe(self) -> Description:
        """Reads everything.

        Raises:
            CannotAdopt: Something that the package needs cannot be read from the file.
        """
        self._check_given()
        out, spaces = self._indices("out_idx"), self._indices("workspace_idx")
        sets = self._argument_sets()
        sets = self._sensible(sets, self._tensors(sets[0], out, spaces))
        first = sets[0]
        tensors = self._tensors(first, out, spaces)
        sets = self._of_one_type(sets, tensors, out, spaces)
        for position in (*out, *spaces):
            if position >= len(tensors):
                raise self._cannot(
                    f"out_idx or workspace_idx names parameter {position}, the kernel has {len(tensors)}",
                    "correct the index",
                )
        inputs = [t for i, t in enumerate(tensors) if i not in out and i not in spaces]
        outputs = [tensors[i] for i in out]
        if not outputs:
            names = ", ".join(t.name for t in inputs)
            self.notes.append(
                f"{self.factory.name} has no out_idx, so it returns nothing to compare: add out_idx=[…] to its "
                f"decorator (parameters: {names})"
            )
        sizes = list(dict.fromkeys(d.text for t in inputs for d in t.dims if d.kind == "name"))
        arguments = [name for name in self.parameters if name in sizes]
        # A dimension computed from an option needs it, whether or not the factory has a default.
        computed = {n for t in (*inputs, *outputs) for d in t.dims if d.kind in NAMED for n in names_in(d.text)}
        options = [
            Option(name, first[name])
            for name in self.parameters
            if name not in sizes and name in first and (name in computed or not self._left_to_factory(name, sets))
        ]
        typed = self._element_types()
        constants = [option for option in options if option.name in typed]
        options = [option for option in options if option.name not in typed]
        clash = next((n for n in (*sizes, *(option.name for option in options)) if n in RESERVED), None)
        if clash is not None:
            raise self._cannot(f"the package's own code uses the name {clash}", f"rename {clash}, for example {clash}_")
        scenario = choose_scenario(self.factory, self.catalog, self.era)
        self.notes += scenario.notes
        dtype = next((t.dtype for t in inputs if t.dtype in self.catalog.dtypes), "float16")
        return Description(
            factory=self.factory,
            entry=self.factory.entry,
            inputs=inputs,
            outputs=outputs,
            workspaces=[tensors[i].name for i in spaces],
            sizes=sizes,
            arguments=arguments,
            options=options,
            constants=constants,
            problems=self._problems(sets, sizes, options),
            scenario=scenario,
            dtype=dtype,
            backend=self._text_option("target", ("ascendc", "pto")),
            platform=self._text_option("platform", tuple(self.catalog.hardware)),
            notes=self.notes,
        )

    def _cannot(self, why: str, remedy: str, node: ast.AST | None = None) -> CannotAdopt:
        line = getattr(node or self.factory.node, "lineno", 0)
        return CannotAdopt(self.module.path, line, why, remedy)

    def _check_given(self) -> None:
        tensors = [parameter.name for parameter in self.kernel.parameters]
        wrong = next((name for name in self.shapes if name not in tensors), None)
        if wrong is not None:
            raise self._cannot(f"no tensor {wrong}; there are {', '.join(tensors)}", "correct --shape")
        text = ast.unparse(self.factory.node)
        wrong = next((n for n in self.given if n not in self.parameters and f"{n}" not in text), None)
        if wrong is not None:
            known = ", ".join(self.parameters) or "none"
            raise self._cannot(f"no parameter {wrong} of {self.factory.name}; there are: {known}", "correct --argument")

    # The decorator.

    def _indices(self, option: str) -> list[int]:
        node = self.factory.options.get(option)
        if node is None:
            return []
        found = Given(self.module, self.module.scope)(node)
        values = (found,) if isinstance(found, int) else found
        if not isinstance(values, tuple) or not all(isinstance(value, int) for value in values):
            if isinstance(node, ast.Constant) and node.value is None:
                return []
            raise self._cannot(
                f"can't tell {option}, because {ast.unparse(node)} is computed at run time",
                f"write {option} as a list of numbers",
                node,
            )
        count = len(self.kernel.parameters)
        return [value + count if value < 0 else value for value in values]

    def _text_option(self, option: str, known: tuple[str, ...]) -> str:
        value = Given(self.module, self.module.scope)(self.factory.options.get(option))
        return value if value in known else ""

    # Arguments of the factory.

    def _argument_sets(self) -> list[dict[str, Any]]:
        """Complete arguments of the factory: the user's, then those of the calls in the file, then the defaults."""
        defaults = {
            name: value
            for name, node in self.factory.scope.defaults.items()
            if name in self.parameters and (value := self._default(node)) is not None
        }
        unreadable = {name for name in self.factory.scope.defaults if name not in defaults}
        unreadable |= {p for p in self.parameters if p not in defaults and self._has_default(p)}
        mine = {name: value for name, value in self.given.items() if name in self.parameters}
        found: list[dict[str, Any]] = []
        missing: list[str] = []
        for call in [*Calls(self.module, self.factory).argument_sets(), {}]:
            arguments = defaults | call | mine
            lacking = [name for name in self.parameters if name not in arguments and name not in unreadable]
            if not lacking and arguments not in found:
                found.append(arguments)
            if lacking and (not missing or len(lacking) < len(missing)):
                missing = lacking
        if not found:
            raise self._cannot(
                f"can't tell which {', '.join(missing)} to try, because {self.factory.name} has no default for "
                f"{'it' if len(missing) == 1 else 'them'} and no call in the file whose arguments can be read",
                "give " + " ".join(f"--argument {name}=VALUE" for name in missing),
            )
        return found

    def _sensible(self, sets: list[dict[str, Any]], tensors: Sequence[Tensor]) -> list[dict[str, Any]]:
        """The argument sets whose sizes are sizes: 0 and None stand for "to be given".

        Raises:
            CannotAdopt: None is left.
        """
        named = {d.text for t in tensors for d in t.dims if d.kind == "name"} & set(self.parameters)

        def wrong(arguments: Mapping[str, Any]) -> list[str]:
            return [n for n in self.parameters if n in named and not (type(s := arguments.get(n)) is int and s > 0)]

        good = [arguments for arguments in sets if not wrong(arguments)]
        if not good:
            bad = wrong(sets[0])
            values = ", ".join(f"{name}={sets[0].get(name)!r}" for name in bad)
            raise self._cannot(f"{values}: no size", "give " + " ".join(f"--argument {name}=NUMBER" for name in bad))
        small = [arguments for arguments in good if self._bytes(tensors, arguments) <= LARGEST]
        if not small:
            size, names = self._bytes(tensors, good[0]) / 2**30, ", ".join(sorted(named))
            self.notes.append(f"the tensors of the first problem take {size:.1f} GiB; smaller: --argument for {names}")
        return small or good[:1]

    def _of_one_type(
        self, sets: list[dict[str, Any]], tensors: Sequence[Tensor], out: Sequence[int], spaces: Sequence[int]
    ) -> list[dict[str, Any]]:
        """The argument sets with the element types of the first."""

        def types(found: Sequence[Tensor]) -> list[str]:
            return [tensor.dtype for tensor in found]

        same = [arguments for arguments in sets if types(self._tensors(arguments, out, spaces)) == types(tensors)]
        if len(same) < len(sets):
            self.notes.append("calls with other element types are left out: a package has one")
        return same

    def _element_types(self) -> set[str]:
        """Parameters of the factory that tensors take their element type from."""
        calls = [p.node.annotation for p in self.kernel.parameters if isinstance(p.node.annotation, ast.Call)]
        nodes = [part for call in calls for part in (*call.args[1:], *(k.value for k in call.keywords))]
        return {name for node in nodes for name in names(node)} & set(self.parameters)

    def _bytes(self, tensors: Sequence[Tensor], arguments: Mapping[str, Any]) -> int:
        """What the tensors of a problem take, as far as their sizes are known."""
        value = Given(self.module, Scope(), {**self.given, **arguments})
        total = 0
        for tensor in tensors:
            sizes = [value(ast.parse(d.text, mode="eval").body) for d in tensor.dims if d.kind != "unknown"]
            total += math.prod(s if isinstance(s, int) else 1 for s in sizes) * ITEMSIZE[tensor.dtype]
        return total

    def _default(self, node: ast.expr) -> Any:
        return Given(self.module, self.module.scope)(node)

    def _has_default(self, name: str) -> bool:
        arguments = self.factory.node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        with_default = {a.arg for a in positional[len(positional) - len(arguments.defaults) :]}
        pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        return name in with_default or name in {a.arg for a, default in pairs if default is not None}

    def _left_to_factory(self, name: str, sets: Sequence[Mapping[str, Any]]) -> bool:
        """Whether every problem takes the factory's own default."""
        if not self._has_default(name):
            return False
        node = self.factory.scope.defaults.get(name)
        default = self._default(node) if node is not None else None
        return default is not None and all(arguments.get(name, default) == default for arguments in sets)

    # Tensors.

    def _tensors(self, arguments: Mapping[str, Any], out: Sequence[int], spaces: Sequence[int]) -> list[Tensor]:
        found: list[Tensor] = []
        for position, parameter in enumerate(self.kernel.parameters):
            if not parameter.is_tensor:
                spelt = ast.unparse(parameter.node.annotation) if parameter.node.annotation else "nothing"
                raise self._cannot(
                    f"can't tell what to pass for {parameter.name}, because it is annotated with {spelt}, "
                    "not T.Tensor(shape, dtype)",
                    "make it a T.Tensor, or a parameter of the factory",
                    parameter.node,
                )
            found.append(
                Tensor(
                    parameter.name,
                    self._host_name(parameter.name, [t.host for t in found]),
                    () if position in spaces else self._dims(parameter, arguments, sure=position not in out),
                    self._element(parameter, arguments),
                )
            )
        return found

    def _host_name(self, name: str, taken: Sequence[str]) -> str:
        host = name.lower()
        while host in taken or host in RESERVED or keyword.iskeyword(host) or host in self.parameters:
            host += "_"
        return host

    def _element(self, parameter: Parameter, arguments: Mapping[str, Any]) -> str:
        call = parameter.node.annotation
        assert isinstance(call, ast.Call)
        node = call.args[1] if len(call.args) > 1 else next((k.value for k in call.keywords if k.arg == "dtype"), None)
        found = Given(self.module, self.factory.scope, arguments)(node)
        spelt = FLOAT8.get(found, normalise_dtype(found)) if isinstance(found, str) else ""
        if spelt not in ITEMSIZE:
            shown = ast.unparse(node) if node is not None else "missing"
            raise self._cannot(
                f"can't tell the element type of {parameter.name}, because {shown} is computed at run time",
                "write it as a string, or give the parameter it comes from: --argument NAME=float16",
                parameter.node,
            )
        return spelt

    def _dims(self, parameter: Parameter, arguments: Mapping[str, Any], *, sure: bool) -> tuple[Dim, ...]:
        """The dimensions; of an output, which nobody has to make, they may stay unknown."""
        own = self.shapes.get(parameter.name)
        if own is not None:
            return tuple(Dim(str(size), "number") for size in own)
        if parameter.shape is None:
            if not sure:
                return (Dim("?", "unknown"),)
            raise self._no_shape(parameter, "its shape")
        return tuple(self._dim(parameter, node, arguments, sure=sure) for node in parameter.shape)

    def _no_shape(self, parameter: Parameter, what: str) -> CannotAdopt:
        return self._cannot(
            f"can't tell the shape of {parameter.name}, because {what} is computed at run time",
            f"give it: --shape {parameter.name}=128,64 (the numbers of the first problem)",
            parameter.node,
        )

    def _dim(self, parameter: Parameter, node: ast.expr, arguments: Mapping[str, Any], *, sure: bool) -> Dim:
        text = self._python(node, self.factory.scope)
        if text is not None:
            if text.isdigit():
                return Dim(text, "number")
            return Dim(text, "name" if text.isidentifier() else "expression")
        value = Given(self.module, self.factory.scope, arguments)(node)
        if isinstance(value, int):
            return Dim(str(value), "number")
        if not sure:
            return Dim("?", "unknown")
        raise self._no_shape(parameter, ast.unparse(node))

    def _python(self, node: ast.expr, scope: Scope, depth: int = 0) -> str | None:
        """A dimension as a Python expression of the factory's parameters and of symbolic sizes; None: not known."""
        if depth > 8:
            return None
        match node:
            case ast.Constant(value=int(value)):
                return str(value)
            case ast.Name(id=name):
                bound, where, is_default = scope.lookup(name)
                if name in self.parameters and (bound is None or is_default):
                    return name
                if bound is None:
                    return name if self._symbolic_tuple(name) else None
                if is_symbolic(self.module, bound):
                    return name
                return self._python(bound, where, depth + 1)
            case ast.Call(func=function, args=[left, right]) if self.module.resolve(function) in DIVISIONS:
                a, b = self._python(left, scope, depth + 1), self._python(right, scope, depth + 1)
                return None if a is None or b is None else self._folded(f"-(-{group(a)} // {group(b)})")
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv() | ast.Mod(), right=right):
                a, b = self._python(left, scope, depth + 1), self._python(right, scope, depth + 1)
                sign = {"Add": "+", "Sub": "-", "Mult": "*", "FloorDiv": "//", "Mod": "%"}[type(node.op).__name__]
                return None if a is None or b is None else self._folded(f"{group(a)} {sign} {group(b)}")
            case _ if is_symbolic(self.module, node):
                inner = node.args[0] if isinstance(node, ast.Call) and node.args else getattr(node, "slice", None)
                return str(inner.value) if isinstance(inner, ast.Constant) else None
            case _:
                known = Given(self.module, scope)(node) if not names(node) & set(self.parameters) else None
                return str(known) if isinstance(known, int) and not isinstance(known, bool) else None

    def _folded(self, text: str) -> str:
        """A number where an expression has no names."""
        value = Given(self.module, Scope())(ast.parse(text, mode="eval").body)
        return str(value) if isinstance(value, int) else text

    def _symbolic_tuple(self, name: str) -> bool:
        """Whether a name comes from ``M, N = T.dyn["M, N"]``."""
        for node in self.module.nodes:
            if isinstance(node, ast.Assign) and is_symbolic(self.module, node.value):
                parts = [part for target in node.targets for part in ast.walk(target)]
                if any(isinstance(part, ast.Name) and part.id == name for part in parts):
                    return True
        return False

    # Problems.

    def _problems(
        self, sets: Sequence[Mapping[str, Any]], sizes: Sequence[str], options: Sequence[Option]
    ) -> list[Problem]:
        base = {option.name: option.value for option in options}

        def problem(level: str, arguments: Mapping[str, Any], why: str = "") -> Problem:
            changed = {n: arguments[n] for n in base if n in arguments and arguments[n] != base[n]}
            return Problem(level, {name: self._size(name, arguments) for name in sizes}, changed, why)

        found = [problem("l0", arguments) for arguments in sets[:3]]
        free = self._tail_safe(sets[0], sizes)
        if free:
            tail = dict(sets[0]) | {name: 2 * block + 1 for name, block in free.items()}
            named = ", ".join(f"{name} = 2 * {block} + 1" for name, block in free.items())
            found.append(problem("l1", tail, f"tails: {named}"))
        return [p for i, p in enumerate(found) if (p.sizes, p.options) not in [(q.sizes, q.options) for q in found[:i]]]

    def _size(self, name: str, arguments: Mapping[str, Any]) -> int:
        value = arguments.get(name, self.given.get(name))
        if value is None:  # symbolic: a variable of that name in the file, else a number that suits most blocks
            value = Given(self.module, self.module.scope)(ast.Name(name))
        if not isinstance(value, int) or isinstance(value, bool):
            if name in self.parameters:
                raise self._cannot(f"{name}={value!r} is no size", f"give --argument {name}=NUMBER")
            self.notes.append(f"{name} is symbolic and the file names no size: the cases take {UNKNOWN_SIZE}")
            return UNKNOWN_SIZE
        return value

    def _tail_safe(self, arguments: Mapping[str, Any], sizes: Sequence[str]) -> dict[str, int]:
        """Sizes that are only ever divided by rounding up, with the block that they are divided by."""
        up: dict[str, int] = {}
        down: set[str] = set()
        value = Given(self.module, self.factory.scope, arguments)
        for node in ast.walk(self.factory.node):
            match node:
                case ast.Call(func=function, args=[ast.Name(id=name), block]):
                    rounded = value(block)
                    if self.module.resolve(function) in DIVISIONS and isinstance(rounded, int):
                        up[name] = max(up.get(name, 0), rounded)
                case ast.BinOp(left=left, op=ast.FloorDiv() | ast.Mod()):
                    down |= names(left)
                case _:
                    pass
        return {name: block for name, block in up.items() if name in sizes and name not in down and block > 1}


def names(node: ast.AST) -> set[str]:
    """The names in an expression."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def group(text: str) -> str:
    """An operand, in parentheses where it needs them."""
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def names_in(text: str) -> set[str]:
    """The names in the text of a dimension."""
    return names(ast.parse(text, mode="eval"))
