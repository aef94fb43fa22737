"""7xx: the package's folder."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from harness.rules.model import Module
from harness.rules.registry import Context, Finding, Hit, declare, finding, module_rule

declare("TLA701", "conflict-marker", "An update left a conflict that only a person can settle.")
declare("TLA702", "rejected-change", "An update could not apply a change and put it next to the file.")

MARKS = (b"<<<<<<< ", b">>>>>>> ")
COPIER_MARKS = (b"<<<<<<< before updating", b">>>>>>> after updating")
EXAMPLES = ("rules", "pages")  # the rules' own pages show what a conflict looks like
SKIPPED = {".git", ".venv", "venv", "node_modules", "__pycache__", "build", ".tox"}


@module_rule(
    "TLA703", "kernel-imports", "kernel.py can be lifted out as it is: it needs nothing but tilelang.", package=True
)
def kernel_imports(module: Module, context: Context) -> Iterator[Hit]:
    for node in module.nodes:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""] if not node.level else ["." * node.level + (node.module or "")]
        for name in names:
            root = name.split(".")[0]
            if root not in ("tilelang", "tvm") and root not in sys.stdlib_module_names:
                fix = "compute it in the host function or in the tests, and pass it to the factory"
                yield Hit(node, f"the kernel file imports {name}", fix)


@module_rule("TLA704", "factory-name", "The harness calls the factory by the package's name.", package=True)
def factory_name(module: Module, context: Context) -> Iterator[Hit]:
    in_package = module.path.name == "kernel.py" and module.path.parent.parent.name == "src"
    if in_package and module.factories:
        wanted = module.path.parent.name
        if wanted not in module.functions and wanted not in module.scope.names:
            found = ", ".join(factory.name for factory in module.factories)
            yield Hit(module.factories[0].node, f"no factory is called {wanted}; found {found}", f"rename it {wanted}")


def check_folder(root: Path) -> list[Finding]:
    """Conflict markers and reject files anywhere in a package."""
    findings: list[Finding] = []
    for path in sorted(_files(root)):
        if path.name.endswith(".rej"):
            fix = f"apply it to {path.name.removesuffix('.rej')} by hand, then delete it"
            findings.append(finding("TLA702", path, Hit(1, "a change that could not be applied", fix)))
            continue
        try:
            text = path.read_bytes()
        except OSError:
            continue
        if b"\0" in text:
            continue
        marks = COPIER_MARKS if path.parts[-3:-1] == EXAMPLES else MARKS
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith(marks) or line == b"<<<<<<<":
                fix = "keep the right side and delete the markers"
                findings.append(finding("TLA701", path, Hit(number, "conflict marker", fix)))
                break
    return findings


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink() and path.name not in SKIPPED:
            yield from _files(path)
        elif path.is_file():
            yield path
