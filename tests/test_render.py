"""Every starter renders: valid, lint-free, complete, the same every time, whatever the user types."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import yaml

import repository
from repository import NAME, Starter

pytestmark = pytest.mark.render

STARTERS = list(repository.starters())
OPERATORS = repository.operators()
OPTIONS: dict[str, list[Any]] = {
    "platform": ["A2", "A3", "A5"],
    "backend": ["ascendc", "pto"],
    "compiler_era": ["0.1.4", "strict-scope"],
    "license": ["MIT", "BSD-3-Clause", "Apache-2.0", "none"],
    "create_venv": [True, False],
    "compile_check": ["auto", "install", "off"],
}
HOSTILE = {
    "quotes": 'it\'s "quoted" and \'\'\'tripled\'\'\' and """too"""',
    "backslashes": "C:\\new\\table \\u0041 \\",
    "newlines": "first line\nsecond line\r\n\tthird",
    "jinja": "{{ 7 * 7 }} {% raw %} {# gone? #} ${{ secrets.TOKEN }}",
    "unicode": "核函数 softmax – naïve 🚀 \u202e",
    "markup": "# not a heading <script>alert(1)</script> [x](y) `code` | pipe | *bold*",
    "yaml": "yes: no #: [a, b] &x *x !!python/object",
    "shell": '$(rm -rf ~) `id` ; exit 1 && "$HOME"',
    "long": "word " * 90,
    "unbroken": "w" * 400,
}
Package = Callable[..., Path]


def python_files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*.py") if "harness" not in path.relative_to(root).parts)


def parse_everything(root: Path) -> None:
    """Every rendered file is what its name says."""
    for path in python_files(root):
        ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    for name in ("pyproject.toml", "harness/project.toml"):
        tomllib.loads((root / name).read_text(encoding="utf-8"))
    json.loads((root / "harness/catalog.json").read_text(encoding="utf-8"))
    for path in [root / ".copier-answers.yml", *root.glob(".github/workflows/*.yml")]:
        yaml.safe_load(path.read_text(encoding="utf-8"))


def rendered_files(root: Path) -> Iterator[Path]:
    """What came out of Jinja; the harness is copied as it stands."""
    for path in sorted(root.rglob("*")):
        if path.is_file() and (path.parent != root / "harness" or path.suffix in (".toml", ".json")):
            if "harness" in path.relative_to(root).parts[:-1] and path.parent != root / "harness":
                continue
            yield path


def ruff(root: Path) -> None:
    """Lints what was rendered, with the package's own settings; the harness is linted where it comes from."""
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise"]
    command += ["src", "tests", "benchmarks"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("starter", STARTERS, ids=str)
def test_starter(package: Package, starter: Starter) -> None:
    """Valid, lint-free, without a trace of the template, files ending as files do, and a kernel that stands alone."""
    root = package(**starter.answers)
    parse_everything(root)
    ruff(root)
    for path in rendered_files(root):
        text = path.read_text(encoding="utf-8")
        assert text.strip("\n") + "\n" == text, f"{path}: empty lines at its beginning or end"
        text = text.replace("${{", "")
        assert not any(mark in text for mark in ("{{", "{%", "{#", "%}", "#}")), path
    kernel_is_plain_tilelang(root / f"src/{NAME}/kernel.py")


def kernel_is_plain_tilelang(path: Path) -> None:
    """It can be lifted out of the package as it is, and its factory has the package's name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    modules = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules |= {"." * node.level + (node.module or "") for node in imports}
    assert {module.split(".")[0] for module in modules} - {"tilelang"} - sys.stdlib_module_names == set()
    assert NAME in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("era", ["0.1.4", "strict-scope"])
@pytest.mark.parametrize("starter", OPERATORS, ids=str)
def test_pass_configs_are_the_catalog_row(package: Package, starter: Starter, era: str) -> None:
    catalog = repository.catalog()
    record = catalog["operators"][starter.scenario][starter.operator]
    row = record.get("switches", catalog["scenarios"][starter.scenario]["switches"][era])
    answers = starter.answers | ({"compiler_era": era} if era != "0.1.4" else {})
    kernel = package(**answers) / f"src/{NAME}/kernel.py"
    assert pass_configs(kernel) == {f"TL_ASCEND_{name.upper()}" for name, on in row.items() if on}


def pass_configs(kernel: Path) -> set[str]:
    """Names of the switches that a kernel's ``pass_configs`` turns on."""
    for node in ast.parse(kernel.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pass_configs":
            assert isinstance(node.value, ast.Dict)
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return {ast.unparse(key).rpartition(".")[2] for key, on in pairs if key and ast.literal_eval(on)}
    return set()


def pairwise(options: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Few combinations in which every pair of values of two options occurs (greedy)."""
    names = list(options)
    left = {(a, x, b, y) for a, b in combinations(names, 2) for x in options[a] for y in options[b]}
    rows = []
    everything = [dict(zip(names, values, strict=True)) for values in product(*options.values())]
    while left:
        best = max(everything, key=lambda row: sum((a, row[a], b, row[b]) in left for a, b in combinations(names, 2)))
        left -= {(a, best[a], b, best[b]) for a, b in combinations(names, 2)}
        rows.append(best)
    return rows


def option_rows() -> list[Any]:
    """Pairwise options, spread over the operators; every row is met by at least one."""
    rows = pairwise(OPTIONS)
    count = max(len(rows), len(OPERATORS))
    return [
        pytest.param(starter := OPERATORS[number % len(OPERATORS)], rows[number % len(rows)], id=f"{number}-{starter}")
        for number in range(count)
    ]


@pytest.mark.parametrize(("starter", "options"), option_rows())
def test_options(package: Package, starter: Starter, options: dict[str, Any]) -> None:
    record = repository.catalog()["operators"][starter.scenario][starter.operator]
    if options["platform"] not in record["platforms"]:
        options = options | {"platform": record["platforms"][0]}
    if options["platform"] == "A5":
        options = options | {"backend": "pto"}
    root = package(**starter.answers, **options)
    parse_everything(root)
    ruff(root)
    assert (root / "LICENSE").exists() == (options["license"] != "none")


@pytest.mark.parametrize("exchange", ["workspace", "onchip"])
def test_cv_exchange(package: Package, exchange: str) -> None:
    for scenario, records in repository.catalog()["operators"].items():
        for operator, record in records.items():
            if exchange in record.get("cv_exchange", ()):
                root = package(kernel_name=NAME, scenario=scenario, operator=operator, cv_exchange=exchange)
                parse_everything(root)
                ruff(root)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_survives(plain_template: Path, tmp_path: Path, text: str) -> None:
    answers = {"description": text, "author": text[:200]}
    root = repository.render(plain_template, tmp_path / "softmax", answers)
    parse_everything(root)
    ruff(root)
    line, author = " ".join(text.split()), " ".join(text[:200].split())
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["description"] == line
    assert project["authors"] == [{"name": author}]
    assert f"Copyright (c) {author}\n" in (root / "LICENSE").read_text(encoding="utf-8")
    stored = yaml.safe_load((root / ".copier-answers.yml").read_text(encoding="utf-8"))
    assert stored["description"] == text
    for name in ("README.md", "design.md"):
        assert markdown_text(root / name, 2) == line
    again = repository.render(plain_template, tmp_path / "again", stored | {"_commit": None})
    assert contents(again) == contents(root)


def markdown_text(path: Path, line: int) -> str:
    """A line of a Markdown file as a reader sees it: escapes resolved."""
    text = path.read_text(encoding="utf-8").splitlines()[line]
    shown, escaped = "", False
    for character in text:
        if character == "\\" and not escaped:
            escaped = True
            continue
        assert escaped or character not in "`*_{}[]<>#|~&$", f"{path}: {character!r} would act as markup"
        shown, escaped = shown + character, False
    return shown


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_two_renders_are_equal(plain_template: Path, tmp_path: Path) -> None:
    assert contents(repository.render(plain_template, tmp_path / "a")) == contents(
        repository.render(plain_template, tmp_path / "b")
    )


def test_the_harness_travels_unchanged(package: Package, plain_template: Path) -> None:
    root, source = package(), plain_template / "template"
    for path in sorted((source / "harness").rglob("*")):
        if path.is_file() and path.suffix != ".jinja":
            assert (root / path.relative_to(source)).read_bytes() == path.read_bytes()


def test_a_clone_renders_the_same_and_knows_its_version(git_template: Path, package: Package, tmp_path: Path) -> None:
    cloned = contents(repository.render(git_template, tmp_path / "softmax"))
    stored = yaml.safe_load(cloned.pop(".copier-answers.yml"))
    assert stored["_commit"] == repository.VERSION
    plain = contents(package())
    plain.pop(".copier-answers.yml")
    assert cloned == plain


def test_types(plain_template: Path, tmp_path: Path) -> None:
    """What packages bring besides kernels satisfies mypy --strict; TileLang's annotations are not Python types."""
    names, sources = [], []
    for starter in OPERATORS:
        names.append(name := f"{starter.scenario}_{starter.operator}")
        root = repository.render(plain_template, tmp_path / name, starter.answers | {"kernel_name": name})
        sources.append(root / "src")
    command = [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", "--follow-imports=silent"]
    command += [f"--cache-dir={tmp_path / 'cache'}", "--disable-error-code=import-untyped"]
    for name in names:
        command += ["-m", f"{name}.inputs", "-m", f"{name}.reference", "-m", name]
    environment = os.environ | {"MYPYPATH": ":".join(map(str, sources))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert [line for line in done.stdout.splitlines() if ": error:" in line and "/kernel.py" not in line] == []
    assert done.returncode in (0, 1), done.stderr
