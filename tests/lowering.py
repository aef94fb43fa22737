"""Lowers the cases of many packages in one compiler; what checks them afterwards finds the results in the cache."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import harness.project
import repository
from harness.compiler.client import Compiler, CompilerError, Request
from harness.ladder import Ladder, is_basic
from harness.project import ProjectError
from harness.spec import Case


def ahead(
    compiler: Compiler, root: Path, select: Callable[[Case], bool] = is_basic, targets: Sequence[str] = ()
) -> None:
    """Lowers a package's cases. A compiler takes seconds to start, which a check of its own then saves.

    What is refused is left for that check to report.

    Args:
        select: Which cases; those of ``check`` by default.
        targets: Those of the package's platform by default.
    """
    with foreign_modules(), contextlib.suppress(CompilerError, ProjectError):
        project = harness.project.load(root)
        for _, arguments in Ladder(project, select=select).problems:
            for target in targets or project.targets:
                compiler.lower(Request(project.kernel, project.name, arguments, target, project.platform))


@contextlib.contextmanager
def foreign_modules() -> Iterator[None]:
    """Packages and specs bear the same names: none is there at the beginning, and what is imported is forgotten."""
    path = list(sys.path)
    _forget()
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = path
        _forget()


def _forget() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in (repository.NAME, "spec")]:
        del sys.modules[name]
