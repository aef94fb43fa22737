"""Wraps an existing kernel file in a package.

    python hooks/adopt.py KERNEL_FILE DESTINATION [--factory NAME] [--kernel-name NAME] [-d QUESTION=ANSWER]...

Reads the file (it is not run), writes the package's kernel, host function, cases and design from it, copies the
template around them with Copier, and checks the result. The golden reference is left to be written; the tests say so.
Needs an interpreter that has Copier: uv run --no-project --with copier python hooks/adopt.py …

Exit status: 0 adopted, nothing failed · 1 adopted, a rung failed · 2 adopted, not checked · 3 not adopted.
"""

from __future__ import annotations

import argparse
import ast
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "template"))  # the readers are the harness's

from adoption import texts
from adoption.description import Describer, Description
from adoption.kernel_file import kernel_file
from adoption.problem import CannotAdopt
from adoption.reading import choose, read
from environment import EnvironmentProblem, add_cxx, has_modules, make_environment, python_of, say
from harness.catalog import Catalog

ROOT = Path(__file__).resolve().parent.parent
ADOPTED, FAILED, NOT_CHECKED, REFUSED = 0, 1, 2, 3
NEEDED = ("numpy", "ml_dtypes", "rich")
CHECK = "python -m harness check"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        self.print_usage(sys.stderr)
        self.exit(REFUSED, f"{self.prog}: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Adopts a kernel; see the module for the exit status."""
    arguments = _arguments(argv)
    try:
        package = _adopt(arguments)
    except CannotAdopt as problem:
        print(problem, file=sys.stderr)
        return REFUSED
    return _check(package, arguments.data)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="adopt.py", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("kernel_file", type=Path, help="the file that defines the kernel")
    parser.add_argument("destination", type=Path, help="folder of the new package; must not exist or be empty")
    parser.add_argument("--factory", help="which factory, where the file has several")
    parser.add_argument("--kernel-name", help="name of the package (default: the factory's)")
    parser.add_argument("--argument", action=_Pairs, metavar="NAME=VALUE", help="argument of the factory, or a size")
    parser.add_argument("--shape", action=_Pairs, metavar="TENSOR=M,N", help="shape of a tensor that cannot be read")
    parser.add_argument("-d", "--data", action=_Pairs, metavar="QUESTION=ANSWER", help="answers, as for copier copy")
    parser.add_argument("--template", default=str(ROOT), help="where Copier takes the template from (default: here)")
    parser.add_argument("--vcs-ref", help="version of the template (default: the one checked out here)")
    return parser.parse_args(argv)


class _Pairs(argparse.Action):
    """Collects NAME=VALUE in a dictionary; values are Python literals, or text: always for answers, else at need."""

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        super().__init__(*positional, **{**keywords, "default": {}})

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        name, sign, text = str(values).partition("=")
        if not sign:
            parser.error(f"{option_string} {values}: write NAME=VALUE")
        try:
            value = text if self.dest == "data" else ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = text
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), name: value})


def _adopt(arguments: argparse.Namespace) -> Path:
    """Writes the package; nothing is left behind where that fails.

    Raises:
        CannotAdopt: The file does not say enough, a name or an answer is refused, the destination is taken.
    """
    source: Path = arguments.kernel_file
    destination = Path(arguments.destination).resolve()
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise CannotAdopt(destination, 0, "exists already", "name a new folder, or empty this one")
    module = read(source)
    factory = choose(module, arguments.factory)
    catalog = read_catalog()
    era = arguments.data.get("compiler_era")
    shapes = {tensor: _shape(source, tensor, value) for tensor, value in arguments.shape.items()}
    description = Describer(module, factory, arguments.argument, shapes, catalog, era and str(era)).describe()
    name = str(arguments.kernel_name or arguments.data.get("kernel_name") or _name_of(description.entry))
    kernel = kernel_file(module, factory, name)
    notes = [*description.notes, *kernel.notes]
    answers = _answers(description, name, arguments.data, catalog)
    owned = {
        f"src/{name}/kernel.py": kernel.text,
        f"src/{name}/__init__.py": texts.host(description, name, source.name),
        f"src/{name}/reference.py": texts.reference(description, name),
        "tests/spec.py": texts.spec(description, name, source.name),
        "design.md": texts.design(description, name, source.name, notes, catalog),
    }
    with tempfile.TemporaryDirectory(prefix="adopt-") as scratch:
        made = Path(scratch) / "package"
        _copy(made, owned, answers, arguments)
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(made, destination, dirs_exist_ok=True)
    say(f"{name}: {description.scenario.scenario} ({description.scenario.why}), adopted from {source}")
    for note in notes:
        say(f"  {note}")
    return destination


def _shape(source: Path, tensor: str, value: Any) -> tuple[int, ...]:
    sizes = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise CannotAdopt(source, 0, f"--shape {tensor}={value} is no shape", f"write --shape {tensor}=128,64")
    return tuple(sizes)


def read_catalog() -> Catalog:
    """The template's catalog, without the starters: what the rules need to know."""
    import yaml  # Copier brings it

    tables = {
        name: yaml.safe_load((ROOT / "catalog" / f"{name}.yml").read_text(encoding="utf-8"))
        for name in ("scenarios", "hardware", "dtypes")
    }
    return Catalog(**tables, operators={})


def _name_of(factory: str) -> str:
    """A factory's name as a package may be called: snake_case without underscores around it."""
    words = "".join(
        f"_{c.lower()}" if c.isupper() and i and factory[i - 1].islower() else c.lower() for i, c in enumerate(factory)
    )
    return "_".join(filter(None, words.split("_")))


def _answers(description: Description, name: str, given: Mapping[str, Any], catalog: Catalog) -> dict[str, Any]:
    """The template's answers: what was read, and over it what the user gave."""
    read_off: dict[str, Any] = {
        "kernel_name": name,
        "scenario": description.scenario.scenario,
        "dtype": description.dtype,
        "compiler_era": description.scenario.era,
    }
    read_off |= {"backend": description.backend} if description.backend else {}
    read_off |= {"platform": description.platform} if description.platform else {}
    platforms = catalog.dtypes[description.dtype]["platforms"]
    if description.platform not in platforms and len(platforms) < len(catalog.hardware):
        read_off["platform"] = platforms[0]  # float8: on some chips only
    return {**read_off, **given, "kernel_name": name, "operator": "adopted"}


def _copy(package: Path, owned: Mapping[str, str], answers: Mapping[str, Any], arguments: argparse.Namespace) -> None:
    """Writes the owned files and lets Copier add the rest: it skips those that are there.

    Raises:
        CannotAdopt: Copier refuses an answer, or is not there.
    """
    try:
        import copier
        from copier.errors import CopierError
    except ImportError as error:
        raise CannotAdopt(
            Path(sys.executable),
            0,
            "this Python has no Copier",
            "uv run --no-project --with copier python hooks/adopt.py …",
        ) from error
    for path, text in owned.items():
        target = package / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    reference = arguments.vcs_ref
    if reference is None and arguments.template == str(ROOT) and (ROOT / ".git").exists():
        reference = "HEAD"
    settings: dict[str, Any] = {"defaults": True, "quiet": True, "overwrite": True, "skip_tasks": True}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            copier.run_copy(arguments.template, package, data=dict(answers), vcs_ref=reference, **settings)
    except (CopierError, ValueError) as error:
        remedy = "choose another: --kernel-name NAME" if "'kernel_name'" in str(error) else "correct the answer: -d …"
        raise CannotAdopt(arguments.kernel_file, 0, str(error), remedy) from error


def _check(package: Path, data: Mapping[str, Any]) -> int:
    """Makes the package's environment and climbs the ladder, as after `copier copy`."""
    if data.get("compile_check") == "off":
        say(f"\n{package} is written but not checked: cd {package} && {CHECK}")
        return NOT_CHECKED
    try:
        python = Path(sys.executable)
        if data.get("create_venv", True) not in ("no", "false", "False", "0"):
            python = python_of(package / ".venv")
            add_cxx(package, make_environment(package, package / ".venv", ["dev"]), package)
        elif not has_modules(python, NEEDED):
            raise EnvironmentProblem(f"create_venv=no, and {python} lacks some of {', '.join(NEEDED)}")
    except EnvironmentProblem as problem:
        say(f"\n{package} is written but not checked: {problem}")
        return NOT_CHECKED
    if data.get("compile_check") == "install":
        subprocess.run([str(python), "-m", "harness", "toolchain", "install"], cwd=package, check=False)
    say("==> checking the kernel")
    command = [str(python), "-m", "harness", "check", "--require", "lowered"]
    status = subprocess.run(command, cwd=package, check=False).returncode
    say(f"\nNext: cd {package}; write the golden in src/*/reference.py, then {CHECK}; design.md says the rest")
    return status if status in (ADOPTED, FAILED, NOT_CHECKED) else FAILED


if __name__ == "__main__":
    sys.exit(main())
