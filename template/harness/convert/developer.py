"""The conversion: what to rewrite in a file, factory by factory."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst

from harness import catalog
from harness.convert.onchip import Outcome, join
from harness.convert.parallel import to_parallel
from harness.convert.products import Products
from harness.convert.syntax import (
    Block,
    Statement,
    body_of,
    call_in,
    code,
    comments,
    expression,
    headings,
    left_over,
    map_blocks,
    parse,
    prepend,
    statement,
    with_body,
)
from harness.rules.cores import core
from harness.rules.model import SWITCH_STRINGS, SWITCHES, SYNCHRONISATION, Evaluator, Factory, Kernel, Module
from harness.rules.registry import Context

RENAMED = {"alloc_ub": "alloc_shared", "alloc_L1": "alloc_shared", "alloc_L0C": "alloc_fragment"}
BY_HAND = {"T.annotate_address", "T.mma", *SYNCHRONISATION}


@dataclass(frozen=True)
class Note:
    """Something that a person should know of.

    Attributes:
        line: In the original file.
        text: What, and why.
        kind: ``changed``; ``kept``: a part needs a person; ``skipped``: a whole factory does.
    """

    line: int
    text: str
    kind: str = "kept"


@dataclass
class Conversion:
    """The new text (the old one where nothing changed) and what is to be said about it."""

    text: str
    notes: list[Note] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return any(note.kind == "changed" for note in self.notes)

    @property
    def complete(self) -> bool:
        """Whether nothing is left for a person."""
        return all(note.kind == "changed" for note in self.notes)


def convert(path: Path, text: str | None = None, *, parallel: bool = False, era: str = Context.era) -> Conversion:
    """Rewrite the hand-written kernels of a file in Developer mode.

    Args:
        path: The file.
        text: Its contents; read when None.
        parallel: Also turn ``T.tile`` arithmetic on whole buffers into T.Parallel loops.
        era: The compiler's; it decides the switches of a kernel for the vector cores only.

    Raises:
        SyntaxError: The text is not Python.
        UnicodeDecodeError: The file is not UTF-8.
    """
    model = Module(path, text)
    file = _File(model, parallel, era)
    if not file.wanted:
        return Conversion(model.text, file.notes)
    tree = cst.parse_module(model.text).visit(file)
    result = Conversion(model.text, sorted(set(file.notes), key=lambda note: note.line))
    if result.changed:
        result.text = tree.visit(_Switches(file.dictionaries)).code
    return result


class _File(cst.CSTTransformer):
    """Rewrites the factories that are written by hand."""

    def __init__(self, model: Module, parallel: bool, era: str) -> None:
        super().__init__()
        self.model, self.parallel, self.era = model, parallel, era
        # Both parsers see the same functions in the same order.
        functions = [n for n in model.nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        self.ahead = sorted((n.lineno for n in functions), reverse=True)
        self.lines: list[int] = []  # of the functions around the current node
        self.notes: list[Note] = []
        self.dictionaries: dict[str, dict[str, bool]] = {}  # switches to set in the dictionaries of these names
        self.outcomes: dict[int, Outcome] = {}
        self.wanted = [factory for factory in model.factories if self._wants(factory)]

    def _wants(self, factory: Factory) -> bool:
        operations = [op for kernel in factory.kernels for op in kernel.operations]
        placed = any(b.function.removeprefix("T.") in RENAMED for k in factory.kernels for b in k.buffers.values())
        off = factory.config.on("auto_cv_combine") is False
        by_hand = any(op.in_scope or (op.name in BY_HAND and (off or op.name != "T.mma")) for op in operations)
        if not by_hand and not (placed and off):
            return False
        reason = self._refusal(factory)
        if reason:
            self.notes.append(Note(factory.node.lineno, f"{factory.name} is left as it is: {reason}", "skipped"))
        return not reason

    def _refusal(self, factory: Factory) -> str:
        if factory.decorator is None:
            return "it has no @tilelang.jit, so its switches are chosen elsewhere"
        if factory.config.switches is None:
            return factory.config.reason
        for kernel in factory.kernels:
            if len(kernel.launches) != 1:
                return "its prim_func has not exactly one T.Kernel"
            if any(kernel.named("T.sync_all")):
                return "T.sync_all joins all blocks, which Developer mode cannot express"
        return ""

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.lines.append(self.ahead.pop())

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel:
        line = self.lines.pop()
        for factory in self.wanted:
            kernel = next((k for k in factory.kernels if k.node.lineno == line), None)
            if kernel is not None:
                return self._kernel(updated_node, factory, kernel)
            if factory.node.lineno == line and all(id(k) in self.outcomes for k in factory.kernels):
                self.notes.append(Note(line, f"{factory.name}: Developer mode", "changed"))
                return self._decorate(updated_node, factory, self.outcomes[id(factory.kernels[0])])
            if factory.node.lineno < line <= (factory.node.end_lineno or 0):
                return self._macro(updated_node, factory)
        return updated_node

    # statements

    def _macro(self, node: cst.FunctionDef, factory: Factory) -> cst.BaseStatement | cst.RemovalSentinel:
        """A macro loses its flags and barriers; one that holds nothing else goes, as do the calls of it."""
        if node.name.value in self._empty_macros(factory):
            return cst.RemoveFromParent()
        if not any(code(decorator.decorator).endswith("macro") for decorator in node.decorators):
            return node
        return with_body(node, self._strip(body_of(node), self._empty_macros(factory)))

    def _empty_macros(self, factory: Factory) -> set[str]:
        kernels = [kernel.node for kernel in factory.kernels]
        macros = [n for n in ast.walk(factory.node) if isinstance(n, ast.FunctionDef) and n.decorator_list]
        found: set[str] = set()
        for _ in macros:  # macros may call macros
            for macro in macros:
                calls = {self.model.resolve(n.func) for s in macro.body for n in ast.walk(s) if isinstance(n, ast.Call)}
                if macro not in kernels and macro is not factory.node and calls and calls <= SYNCHRONISATION | found:
                    found.add(macro.name)
        return found

    def _goes(self, call: cst.BaseExpression, gone: set[str]) -> bool:
        name = self.model.resolve(expression(call.func)) if isinstance(call, cst.Call) else ""
        return name in SYNCHRONISATION or name == "T.annotate_address" or name in gone

    def _strip(self, statements: Sequence[Statement], gone: set[str]) -> Block:
        """Remove synchronisation and addresses, and the comments on lines of their own that belong to nothing else."""
        kept: list[Statement] = []
        pending: list[cst.EmptyLine] = []  # comments that were above what went
        for node in statements:
            call = call_in(node)
            changed: Statement | None = node
            if call is not None:
                changed = None if self._goes(call, gone) else node
            elif isinstance(node, cst.SimpleStatementLine):
                parts = [p for p in node.body if not (isinstance(p, cst.Expr) and self._goes(p.value, gone))]
                if len(parts) < len(node.body):
                    last = [p.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for p in parts[-1:]]
                    changed = node.with_changes(body=[*parts[:-1], *last]) if parts else None
            else:
                changed = map_blocks(node, lambda block: self._strip(block, gone))
            if changed is None:
                pending = [*left_over(pending, node), *comments(node)]
            else:
                kept.append(prepend(changed, left_over(pending, node)))
                pending = []
        return Block(kept, [line for line in headings(pending) if line.comment is not None])

    def _kernel(self, node: cst.FunctionDef, factory: Factory, kernel: Kernel) -> cst.FunctionDef:
        products = Products(self.model, kernel)
        body = products.rewrite(self._strip(body_of(node), self._empty_macros(factory)))
        outcome = join(self.model, kernel, body)
        line = kernel.launches[0].call.lineno
        if outcome.refusal:
            self.notes.append(Note(line, f"{factory.name} is left as it is: {outcome.refusal}", "skipped"))
            return node
        self.notes += [Note(line, text) for text in (*products.kept, *outcome.kept)]
        self.outcomes[id(kernel)] = outcome
        renamed = [statement.visit(_Developer(self.model, kernel, outcome)) for statement in outcome.body]
        body = [statement for statement in renamed if isinstance(statement, cst.BaseStatement)]
        if self.parallel:
            body = to_parallel(self.model, kernel, outcome, body)
        parameters = [p for i, p in enumerate(node.params.params) if i not in outcome.removed]
        if outcome.removed and parameters:
            parameters[-1] = _as_last(parameters[-1], node.params.params[-1])
        return with_body(node.with_changes(params=node.params.with_changes(params=parameters)), body)

    # switches and indices

    def _decorate(
        self, node: cst.FunctionDef, factory: Factory, outcome: Outcome
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        before: list[cst.BaseStatement] = []
        decorators = []
        for decorator in node.decorators:
            if self.model.is_jit(expression(decorator.decorator)):
                call, before = self._jit(decorator.decorator, factory, outcome)
                decorator = decorator.with_changes(decorator=call)
            decorators.append(decorator)
        node = node.with_changes(decorators=decorators)
        if not before:
            return node
        gap = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
        lines = list(node.leading_lines)  # the comment right above the decorator stays there
        start = len(lines) - next((i for i, line in enumerate(reversed(lines)) if line.comment is None), len(lines))
        head = [line for line in lines[:start] if line.comment is None or "No pass_configs" not in line.comment.value]
        head = head if any(line.comment is not None for line in head) else head[:2]
        before[0] = before[0].with_changes(leading_lines=head)
        return cst.FlattenSentinel([*before, node.with_changes(leading_lines=[*gap, *lines[start:]])])

    def _jit(
        self, call: cst.BaseExpression, factory: Factory, outcome: Outcome
    ) -> tuple[cst.Call, list[cst.BaseStatement]]:
        """The decorator with the switches set and the indices of the parameters that are left."""
        wanted = self._wanted_switches(factory)
        call = call if isinstance(call, cst.Call) else cst.Call(call)
        added: list[cst.BaseStatement] = []
        arguments = []
        configs: cst.BaseExpression | None = None
        count = len(factory.kernels[0].parameters)
        for argument in call.args:
            name = argument.keyword.value if argument.keyword is not None else ""
            if name == "pass_configs":
                configs = argument.value
                continue
            if name in ("out_idx", "workspace_idx") and outcome.threads:
                found = Evaluator(self.model, self.model.scope)(expression(argument.value))
                places = [found] if isinstance(found, int) else list(found or ())
                places = [i % count for i in places]
                left = [i - sum(r < i for r in outcome.removed) for i in places if i not in outcome.removed]
                if not left:
                    continue
                argument = argument.with_changes(value=parse(repr(left)))
            arguments.append(argument)
        if isinstance(configs, cst.Name) and isinstance(factory.config.node, ast.Dict):
            old = self.dictionaries.get(configs.value, {})  # another factory's needs
            self.dictionaries[configs.value] = {key: on or old.get(key, False) for key, on in wanted.items()}
        elif isinstance(configs, cst.Dict):
            configs = switched(configs, self._tilelang(), wanted)
        else:
            name = "pass_configs"
            while name in self.model.scope.names or name in self.model.scope.opaque:
                name = f"{factory.name}_{name}"
            keys = "".join(f"    {self._tilelang()}.PassConfigKey.{key}: True,\n" for key, on in wanted.items() if on)
            added.append(statement(f"{name} = {{\n{keys}}}\n"))
            configs = cst.Name(name)
        if arguments and not isinstance(arguments[-1].comma, cst.Comma):
            arguments[-1] = arguments[-1].with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
        equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        last = call.args[-1].comma if call.args else cst.MaybeSentinel.DEFAULT
        arguments.append(cst.Arg(configs, keyword=cst.Name("pass_configs"), equal=equal, comma=last))
        return call.with_changes(args=arguments), added

    def _wanted_switches(self, factory: Factory) -> dict[str, bool]:
        """The switches of a Developer kernel by their keys: those of the vector scenario where no cube core works."""
        vector = not any(_uses_cube(kernel) for kernel in factory.kernels)
        row = catalog.load().switches("vector" if vector else "cv_fusion", self.era)
        return {key: row[name] for key, name in SWITCHES.items()}

    def _tilelang(self) -> str:
        return next((name for name, target in self.model.names.items() if target == "tilelang"), "tilelang")


def _uses_cube(kernel: Kernel) -> bool:
    """Whether something in a kernel is, or may be, work of the cube cores."""
    placed = any(buffer.memory in ("L1", "L0A", "L0B", "L0C") for buffer in kernel.buffers.values())
    work = any("C" in (op.scope, core(kernel, op)) for op in kernel.operations)
    return placed or work or bool(kernel.unknown_calls)


def _as_last(parameter: cst.Param, last: cst.Param) -> cst.Param:
    """A parameter that moves to the end of the list, with its own comment and the end's line break."""
    old, new = parameter.comma, last.comma
    if isinstance(old, cst.Comma) and isinstance(new, cst.Comma):
        a, b = old.whitespace_after, new.whitespace_after
        if isinstance(a, cst.ParenthesizedWhitespace) and isinstance(b, cst.ParenthesizedWhitespace):
            new = new.with_changes(whitespace_after=a.with_changes(indent=b.indent, last_line=b.last_line))
    return parameter.with_changes(comma=new)


class _Developer(cst.CSTTransformer):
    """Names of Developer mode: allocations and the launch."""

    def __init__(self, model: Module, kernel: Kernel, outcome: Outcome) -> None:
        super().__init__()
        self.model, self.kernel, self.outcome = model, kernel, outcome

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        name = self.model.resolve(expression(original_node.func)).removeprefix("T.")
        if name in RENAMED:
            func = original_node.func
            new = func.with_changes(attr=cst.Name(RENAMED[name])) if isinstance(func, cst.Attribute) else func
            return updated_node.with_changes(func=new)
        if name == "Kernel" and self.outcome.threads:
            equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
            comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            threads = cst.Arg(cst.Integer("2"), keyword=cst.Name("threads"), equal=equal, comma=comma)
            return updated_node.with_changes(args=[*updated_node.args[:1], threads, *updated_node.args[1:]])
        return updated_node

    def leave_WithItem(self, original_node: cst.WithItem, updated_node: cst.WithItem) -> cst.WithItem:
        target = updated_node.asname
        call = expression(original_node.item)
        launch = isinstance(call, ast.Call) and self.model.resolve(call.func) == "T.Kernel"
        if self.outcome.threads and launch and target is not None and isinstance(target.name, cst.Tuple):
            first = target.name.elements[0].value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            return updated_node.with_changes(asname=target.with_changes(name=first))
        return updated_node


class _Switches(cst.CSTTransformer):
    """Sets the switches in the dictionaries with these names."""

    def __init__(self, wanted: Mapping[str, Mapping[str, bool]]) -> None:
        super().__init__()
        self.wanted = wanted

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign:
        target = updated_node.targets[0].target
        if isinstance(target, cst.Name) and target.value in self.wanted and isinstance(updated_node.value, cst.Dict):
            value = switched(updated_node.value, "tilelang", self.wanted[target.value])
            return updated_node.with_changes(value=value)
        return updated_node


def switched(node: cst.Dict, tilelang: str, wanted: Mapping[str, bool]) -> cst.Dict:
    """The dictionary with the four switches as wanted; those that are off need no entry. Other entries stay."""
    missing = {key: SWITCHES[key] for key, on in wanted.items() if on}
    values = {SWITCHES[key]: on for key, on in wanted.items()}
    elements: list[cst.BaseDictElement] = []
    prefix = f"{tilelang}.PassConfigKey"
    for element in node.elements:
        if isinstance(element, cst.DictElement):
            key = code(element.key).removesuffix(".value")
            if isinstance(element.key, cst.Attribute):
                prefix = key.rsplit(".", 1)[0]
            switch = SWITCHES.get(key.rsplit(".", 1)[-1]) or SWITCH_STRINGS.get(key.strip("\"'"))
            if switch is not None:
                missing = {name: s for name, s in missing.items() if s != switch}
                element = element.with_changes(value=cst.Name(str(values[switch])))
        elements.append(element)
    if not missing:
        return node.with_changes(elements=elements)
    if not elements:
        keys = "".join(f"    {prefix}.{key}: True,\n" for key in missing)
        new = parse(f"{{\n{keys}}}")
        assert isinstance(new, cst.Dict)
        return new
    space = getattr(node.lbrace, "whitespace_after", cst.SimpleWhitespace(""))
    space = space if isinstance(space, cst.ParenthesizedWhitespace) else cst.SimpleWhitespace(" ")
    comma = cst.Comma(whitespace_after=space)
    end = getattr(elements[-1], "comma", cst.MaybeSentinel.DEFAULT)
    added = [cst.DictElement(parse(f"{prefix}.{key}"), cst.Name("True"), comma=comma) for key in missing]
    elements = [*elements[:-1], elements[-1].with_changes(comma=comma), *added[:-1], added[-1].with_changes(comma=end)]
    return node.with_changes(elements=elements)
