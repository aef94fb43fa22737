"""The package's kernel.py: the user's text, without what the factory does not need."""

from __future__ import annotations

import ast
import symtable
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from adoption.problem import CannotAdopt
from harness.rules.model import Factory, Module

MUTATING = ("append", "extend", "pop", "setdefault", "update")


@dataclass
class KernelFile:
    """The text, and what a person should know of it."""

    text: str
    notes: list[str] = field(default_factory=list)


def kernel_file(module: Module, factory: Factory, name: str) -> KernelFile:
    """The text of kernel.py.

    Kept, line by line as they are: the factory, everything at the top level that it refers to, comments around them.
    In the place of the rest stands a comment. Where the factory has another name, the package's name is added.

    Args:
        module: The file.
        factory: The factory.
        name: The package's name.

    Raises:
        CannotAdopt: The name is taken by something else, or the factory needs another file.
    """
    keep = needed(module, factory.entry)
    _check(module, factory, name, keep)
    lines = module.text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    out: list[str] = []
    notes: list[str] = []
    body = [statement for statement in module.tree.body if not _is_docstring(module, statement)]
    position = module.tree.body[0].end_lineno or 0 if body != module.tree.body else 0
    out += lines[:position]
    for kept, statements in _runs(body, keep):
        start, end = position, statements[-1].end_lineno or 0
        if kept:
            out += lines[start:end]
        else:
            out += _remark(module, statements, lines, start)
            notes.append(f"left out of kernel.py: {_lines(statements)} ({_what(statements)})")
        position = end
    out += lines[position:]
    text = "".join(out).strip("\n") + "\n"
    if factory.entry != name:
        text += f"\n\n# The name that the package and its tests call it by.\n{name} = {factory.entry}\n"
    foreign = [node for node in keep if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in foreign:
        for root in _roots(node):
            if root not in sys.stdlib_module_names and root not in ("tilelang", "tvm"):
                notes.append(f"kernel.py imports {root} (line {node.lineno} of the file), because the factory needs it")
    return KernelFile(text, notes)


def needed(module: Module, entry: str) -> set[ast.stmt]:
    """The top-level statements that a function needs, itself included."""
    definitions: dict[str, list[ast.stmt]] = {}
    body = [statement for statement in module.tree.body if not _is_main(statement)]
    for statement in body:
        for name in _defined(statement):
            definitions.setdefault(name, []).append(statement)
    tables = {
        (table.get_name(), table.get_lineno()): table
        for table in symtable.symtable(module.text, str(module.path), "exec").get_children()
    }
    keep: set[ast.stmt] = {s for s in body if isinstance(s, ast.ImportFrom) and s.module == "__future__"}
    wanted, seen = [entry], set[str]()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        for statement in definitions.get(name, ()):
            if statement not in keep:
                keep.add(statement)
                wanted += _used(statement, tables)
        data = any(isinstance(s, ast.Assign | ast.AnnAssign | ast.AugAssign) for s in definitions.get(name, ()))
        for statement in body if data else ():
            if statement not in keep and _changes(statement, name):
                keep.add(statement)
                wanted += _used(statement, tables)
    return keep


def _defined(statement: ast.stmt) -> Iterator[str]:
    """Names that a top-level statement binds."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from ((alias.asname or alias.name).split(".")[0] for alias in aliases)
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for part in (part for target in targets for part in ast.walk(target)):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    yield part.id
        case _:
            for block in ("body", "orelse", "finalbody", "handlers"):
                for inner in getattr(statement, block, ()):
                    yield from _defined(inner)


def _used(statement: ast.stmt, tables: dict[tuple[str, int], symtable.SymbolTable]) -> set[str]:
    """Module-level names that a statement refers to."""
    if not isinstance(statement, ast.FunctionDef):
        return {part.id for part in ast.walk(statement) if isinstance(part, ast.Name)}
    outside: list[ast.AST] = [*statement.decorator_list, statement.args]
    outside += [statement.returns] if statement.returns else []
    found = {part.id for node in outside for part in ast.walk(node) if isinstance(part, ast.Name)}
    start = min([statement.lineno, *(decorator.lineno for decorator in statement.decorator_list)])
    table = tables.get((statement.name, statement.lineno)) or tables.get((statement.name, start))
    if table is None:
        return found | {part.id for part in ast.walk(statement) if isinstance(part, ast.Name)}
    return found | set(_globals(table))


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    yield from (symbol.get_name() for symbol in table.get_symbols() if symbol.is_global())
    for child in table.get_children():
        yield from _globals(child)


def _changes(statement: ast.stmt, name: str) -> bool:
    """Whether a statement changes the object that a name stands for: ``d["x"] = 1``, ``d.update(…)``."""
    match statement:
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=target))]):
            return target == name
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=target), attr=method))):
            return target == name and method in MUTATING
        case _:
            return False


def _is_main(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def _is_docstring(module: Module, statement: ast.stmt) -> bool:
    return statement is module.tree.body[0] and ast.get_docstring(module.tree, clean=False) is not None


def _runs(body: Sequence[ast.stmt], keep: set[ast.stmt]) -> Iterator[tuple[bool, list[ast.stmt]]]:
    """Neighbours that are kept or left out together; what shares a line with a kept statement is kept."""
    lines = {line for s in keep for line in (s.lineno, s.end_lineno)}
    run: list[ast.stmt] = []
    state = False
    for statement in body:
        kept = statement in keep or statement.lineno in lines
        if run and kept != state:
            yield state, run
            run = []
        run.append(statement)
        state = kept
    if run:
        yield state, run


def _remark(module: Module, statements: Sequence[ast.stmt], lines: Sequence[str], start: int) -> list[str]:
    """What stands in the place of statements that are left out; a licence at the top of the file stays."""
    head: list[str] = []
    if start == 0:
        for line in lines[: statements[0].lineno - 1]:
            if line.strip() and not line.startswith("#"):
                break
            head.append(line)
    return [*head, "\n", f"# adopt left out {_lines(statements)} of {module.path.name}: {_what(statements)}\n"]


def _lines(statements: Sequence[ast.stmt]) -> str:
    first = min([statements[0].lineno, *(d.lineno for d in getattr(statements[0], "decorator_list", ()))])
    last = statements[-1].end_lineno or first
    return f"line {first}" if first == last else f"lines {first}-{last}"


def _what(statements: Sequence[ast.stmt]) -> str:
    """A few words about statements."""
    defined = list(dict.fromkeys(name for statement in statements for name in _defined(statement)))
    shown = ", ".join(defined[:6]) + (", …" if len(defined) > 6 else "")
    return shown or "statements that run at import"


def _check(module: Module, factory: Factory, name: str, keep: set[ast.stmt]) -> None:
    for statement in keep:
        if name != factory.entry and name in set(_defined(statement)):
            raise CannotAdopt(
                module.path,
                statement.lineno,
                f"the name {name} is taken here, by something that {factory.entry} needs",
                "choose another: --kernel-name NAME",
            )
        if isinstance(statement, ast.ImportFrom) and statement.level:
            raise CannotAdopt(
                module.path,
                statement.lineno,
                f"{factory.entry} needs {', '.join(_defined(statement))} from another file",
                "put what it needs into this file first",
            )


def _roots(node: ast.Import | ast.ImportFrom) -> list[str]:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return [name.split(".")[0] for name in names]
