"""Reading kernels out of upstream's repositories, for the scripts that compare with them."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Repository:
    """A git repository to read files from."""

    path: Path

    def read(self, name: str) -> str:
        return self._git("show", f"HEAD:{name}")

    def list(self, folder: str) -> list[str]:
        return self._git("ls-tree", "-r", "--name-only", "HEAD", folder).split()

    def revision(self) -> str:
        return self._git("log", "-1", "--format=%h, %as").strip()

    def _git(self, *arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(self.path), *arguments], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{self.path}: git {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout


def extract(source: str, factory: str) -> str:
    """A module with the factory and what it refers to, and nothing that needs PyTorch."""
    tree = ast.parse(source)
    definitions: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        names: list[str] = []
        if isinstance(node, ast.FunctionDef):
            names = [node.name]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [(alias.asname or alias.name).split(".")[0] for alias in node.names]
        elif isinstance(node, ast.Assign):
            names = [part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)]
        for name in names:
            definitions.setdefault(name, []).append(node)
    wanted, seen, kept = [factory], set(), set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        for node in definitions.get(name, []):
            kept.add(node)
            wanted += [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
    return ast.unparse(ast.Module([node for node in tree.body if node in kept], []))
