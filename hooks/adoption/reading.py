"""Opens a kernel file with the reader of the rules, and chooses the factory."""

from __future__ import annotations

import ast
from pathlib import Path

from adoption.problem import CannotAdopt
from harness.rules.model import Factory, Module


def read(path: Path) -> Module:
    """The file as the rules see it.

    Raises:
        CannotAdopt: It cannot be read, is not UTF-8 or is not Python.
    """
    try:
        return Module(path)
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        line = error.object[: error.start].count(b"\n") + 1
        raise CannotAdopt(path, line, f"not UTF-8: byte {byte:#04x}", "save the file as UTF-8") from error
    except SyntaxError as error:
        raise CannotAdopt(path, error.lineno or 0, f"not valid Python: {error.msg}", "correct the syntax") from error
    except OSError as error:
        raise CannotAdopt(path, 0, error.strerror or str(error), "name a file that can be read") from error


def choose(module: Module, name: str | None) -> Factory:
    """The factory to adopt.

    Args:
        module: The file.
        name: Which one, or None where the file has only one.

    Raises:
        CannotAdopt: There is none, there are several and none was named, or it cannot be called from outside.
    """
    factories = [factory for factory in module.factories if factory.kernels]
    if not factories:
        raise _no_kernel(module)
    listed = ", ".join(f"{factory.name} (line {factory.node.lineno})" for factory in factories)
    top = [factory for factory in factories if factory.node in module.tree.body]
    if name is None and len(factories) > 1:
        raise CannotAdopt(module.path, 0, f"{len(factories)} kernel factories: {listed}", "choose one: --factory NAME")
    chosen = [factory for factory in factories if name in (None, factory.name, factory.entry)]
    if not chosen:
        raise CannotAdopt(module.path, 0, f"no kernel factory {name}; there are {listed}", "correct --factory")
    chosen = [factory for factory in chosen if factory in top] or chosen[:1]
    if len(chosen) > 1:
        raise CannotAdopt(
            module.path, chosen[1].node.lineno, f"{name} is defined {len(chosen)} times: {listed}", "rename all but one"
        )
    _check(module, chosen[0])
    return chosen[0]


def _no_kernel(module: Module) -> CannotAdopt:
    star = next((node for node in module.nodes if _is_star(node)), None)
    if star is not None:
        return CannotAdopt(
            module.path,
            getattr(star, "lineno", 0),
            "can't tell what is a kernel, because `import *` hides where names come from",
            "write `import tilelang.language as T` and T.prim_func, T.copy, …",
        )
    decorated = next((factory for factory in module.factories if factory.decorator is not None), None)
    if decorated is not None:
        return CannotAdopt(
            module.path,
            decorated.node.lineno,
            f"can't tell what {decorated.name} computes, because there is no @T.prim_func in it",
            "define the prim_func inside the decorated function and return it",
        )
    return CannotAdopt(
        module.path,
        0,
        "no kernel: no @T.prim_func anywhere",
        "name the file that defines the kernel; tilelang.language must be imported in it",
    )


def _is_star(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("tilelang")
        and any(alias.name == "*" for alias in node.names)
    )


def _check(module: Module, factory: Factory) -> None:
    """Refuses what the harness could not call.

    Raises:
        CannotAdopt: See above.
    """
    path, line, name = module.path, factory.node.lineno, factory.name
    if factory.node is factory.kernels[0].node:
        raise CannotAdopt(
            path,
            line,
            f"{name} is a prim_func without a factory",
            "put it into a function that returns it, decorated with @tilelang.jit(out_idx=[…]), and adopt that",
        )
    if factory.decorator is None and factory.node in module.tree.body:
        raise CannotAdopt(
            path,
            line,
            f"can't tell what {name} returns and which switches it needs, because it has no @tilelang.jit",
            "decorate it: @tilelang.jit(out_idx=[…], pass_configs={…})",
        )
    if factory.node not in module.tree.body:
        outer = next((n for n in module.tree.body if any(part is factory.node for part in ast.walk(n))), None)
        where = f" inside {outer.name} (line {outer.lineno})" if isinstance(outer, ast.FunctionDef) else " in a block"
        raise CannotAdopt(
            path,
            line,
            f"can't tell how to call {name}, because it is defined{where}",
            "move it to the top level of the file and hand it what it takes from around it as arguments",
        )
    arguments = factory.node.args
    star = arguments.vararg or arguments.kwarg
    if star is not None:
        raise CannotAdopt(
            path, line, f"can't tell what {name} takes, because of *{star.arg}", "name its parameters one by one"
        )
    if len(factory.kernels) > 1:
        lines = ", ".join(str(kernel.node.lineno) for kernel in factory.kernels)
        first = {tuple(p.name for p in kernel.parameters) for kernel in factory.kernels}
        if len(first) > 1:
            raise CannotAdopt(
                path,
                factory.kernels[1].node.lineno,
                f"can't tell what {name} takes, because it has {len(factory.kernels)} prim_funcs with different "
                f"parameters (lines {lines})",
                "give each its own factory",
            )
