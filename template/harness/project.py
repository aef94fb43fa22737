"""Where this package's files are and what it was generated for."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from harness.spec import Spec


class ProjectError(Exception):
    """The package cannot be read; the message names the file and what to do."""


class GoldenMissing(ProjectError):
    """The golden reference is still to be written; the message says where and what."""


@dataclass(frozen=True)
class Project:
    """One kernel package.

    Attributes:
        root: Its folder.
        name: Name of the package, of the kernel factory in ``kernel.py`` and of the host function.
        scenario: Row of the scenario table.
        operator: The starter it came from; empty for an adopted kernel.
        dtype: Element type of the inputs.
        platform: ``A2``, ``A3`` or ``A5``.
        backend: The compiler target used on a device, ``ascendc`` or ``pto``.
        compiler_era: Which version of the scenario table holds.
        cv_exchange: How cube and vector cores exchange tiles: ``workspace``, ``onchip`` or empty.
        shape: Default problem, in elements.
        block: Tile sizes, in elements.
    """

    root: Path
    name: str
    scenario: str
    operator: str
    dtype: str
    platform: str
    backend: str
    compiler_era: str
    cv_exchange: str = ""
    shape: Mapping[str, int] = field(default_factory=dict)
    block: Mapping[str, int] = field(default_factory=dict)

    @property
    def kernel(self) -> Path:
        return self.root / "src" / self.name / "kernel.py"

    @property
    def targets(self) -> tuple[str, ...]:
        """Compiler targets that exist for the platform."""
        return ("pto",) if self.platform == "A5" else ("ascendc", "pto")

    def package(self) -> ModuleType:
        """Imports the kernel's package; neither tilelang nor torch is loaded by that.

        Raises:
            ProjectError: The import failed.
        """
        return self._import(self.name, self.root / "src")

    def spec(self) -> Spec:
        """Imports ``tests/spec.py`` and returns its ``SPEC``.

        Raises:
            ProjectError: The import failed or there is no ``SPEC``.
        """
        self.package()
        module = self._import("spec", self.root / "tests")
        spec = getattr(module, "SPEC", None)
        # Class identity differs when the file was loaded by another harness copy: compare by name.
        if type(spec).__name__ != Spec.__name__:
            raise ProjectError(f"{module.__file__}: SPEC = Spec(…) is missing; see harness/spec.py")
        return cast(Spec, spec)

    def check_inputs(self) -> Callable[..., dict[str, Any]]:
        """The package's ``check_inputs``: tensors to the kernel factory's keyword arguments."""
        return self._function(self.package(), "check_inputs")

    def reference(self) -> Callable[..., Any]:
        """The package's golden reference.

        Raises:
            GoldenMissing: It only raises NotImplementedError, as in a kernel that was adopted.
            ProjectError: The import failed or the function is missing.
        """
        function = self._function(self._import(f"{self.name}.reference", self.root / "src"), "reference")
        path = self.kernel.with_name("reference.py")
        line, why = _not_implemented(path)
        if line:
            raise GoldenMissing(f"{path.relative_to(self.root)}:{line}: {why}")
        return function

    @staticmethod
    def _function(module: ModuleType, name: str) -> Callable[..., Any]:
        function = getattr(module, name, None)
        if not callable(function):
            raise ProjectError(f"{module.__file__}: function {name} is missing")
        return function  # type: ignore[no-any-return]

    @staticmethod
    def _import(name: str, folder: Path) -> ModuleType:
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
        try:
            module = importlib.import_module(name)
        except (Exception, SystemExit) as error:  # a stray sys.exit(0) must not end a check as passed
            place = _place(error, folder)
            raise ProjectError(f"{place}: {type(error).__name__}: {error}") from error
        found = Path(module.__file__ or "")
        if not found.is_relative_to(folder):
            raise ProjectError(
                f"{folder / name}: the name {name!r} is taken by {found}; rename the package or that file"
            )
        return module


def _not_implemented(path: Path) -> tuple[int, str]:
    """Line and message, where ``reference`` in the file does nothing but raise NotImplementedError; else 0."""
    for node in ast.parse(path.read_bytes()).body:
        match node:
            case ast.FunctionDef(
                name="reference", body=[*docstring, ast.Raise(exc=ast.Call(func=ast.Name(id=error), args=arguments))]
            ) if error == "NotImplementedError" and len(docstring) <= 1:
                texts = [argument.value for argument in arguments if isinstance(argument, ast.Constant)]
                return node.lineno, " ".join(map(str, texts)) or "the golden reference is to be written"
            case _:
                pass
    return 0, ""


def _place(error: BaseException, folder: Path) -> str:
    """The innermost place of an exception that lies in the folder and not in this harness, as ``file:line``."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    place, trace = str(folder), error.__traceback__
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if path.is_relative_to(folder) and not path.is_relative_to(folder / "harness"):
            place = f"{path}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


@contextmanager
def blamed(project: Project) -> Iterator[None]:
    """Turns an exception in the user's own code into a ProjectError that names file and line."""
    try:
        yield
    except ProjectError:
        raise
    except (Exception, SystemExit) as error:
        place = _place(error, project.root).removeprefix(f"{project.root}/")
        raise ProjectError(f"{place}: {type(error).__name__}: {error}") from error


def load(root: Path | None = None) -> Project:
    """Reads ``harness/project.toml``.

    Args:
        root: The package's folder; the one that holds this harness by default.

    Raises:
        ProjectError: The file is missing or damaged.
    """
    root = (root or Path(__file__).parent.parent).resolve()
    path = root / "harness" / "project.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        return Project(root=root, **data["project"], shape=data.get("shape", {}), block=data.get("block", {}))
    except (OSError, KeyError, TypeError, ValueError) as error:  # also not UTF-8, not TOML
        raise ProjectError(f"{path}: {type(error).__name__}: {error}; `copier recopy` restores it") from error
