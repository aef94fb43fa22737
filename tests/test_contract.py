"""Catalog, questions, starters, templates and documentation agree with each other."""

from __future__ import annotations

import ast
import builtins
import keyword
import math
import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from copier._main import Worker
from jinja2 import TemplateSyntaxError, nodes

import repository
import tables
import verified
from repository import ROOT

pytestmark = pytest.mark.contract

CATALOG = repository.catalog()
RECORDS = [
    pytest.param(scenario, operator, record, id=f"{scenario}-{operator}")
    for scenario, records in CATALOG["operators"].items()
    for operator, record in records.items()
]
SWITCHES = ["auto_sync", "memory_planning", "auto_cv_combine", "auto_cv_sync"]
ERAS = ["0.1.4", "strict-scope"]
STARTER_FILES = ["kernel.py", "reference.py", "host.py", "cases.py", "design.md"]


@pytest.fixture(scope="module")
def worker(plain_template: Path) -> Worker:
    """Copier's own Jinja environment for this template."""
    return Worker(src_path=str(plain_template), dst_path=Path("unused"))


# The settings.


def test_copier_yml_holds_settings_and_explicit_includes_only() -> None:
    text = (ROOT / "copier.yml").read_text(encoding="utf-8")
    settings, *includes = text.split("\n---\n")
    assert all(key.startswith("_") for key in yaml.safe_load(settings))
    assert [line.strip() for line in includes if not re.fullmatch(r"!include questions/[\w-]+\.yml\s*", line)] == []


def test_every_question_file_is_included_in_order() -> None:
    assert repository.question_files() == sorted((ROOT / "questions").glob("*.yml"))


def test_settings_are_known_to_copier() -> None:
    settings = yaml.safe_load((ROOT / "copier.yml").read_text(encoding="utf-8").split("\n---\n")[0])
    known = {
        "_answers_file",
        "_envops",
        "_exclude",
        "_external_data",
        "_message_after_copy",
        "_message_after_update",
        "_message_before_copy",
        "_message_before_update",
        "_migrations",
        "_min_copier_version",
        "_skip_if_exists",
        "_subdirectory",
        "_tasks",
        "_templates_suffix",
    }
    assert set(settings) <= known
    assert settings["_envops"]["undefined"] == "jinja2.StrictUndefined"


def test_questions_use_keys_that_copier_knows() -> None:
    known = {"ask", "choices", "default", "help", "multiline", "multiselect", "placeholder", "qmark", "secret"}
    known |= {"type", "validator", "when"}
    wrong = {name: sorted(set(row) - known) for name, row in repository.questions().items() if set(row) - known}
    assert wrong == {}


def test_every_question_says_what_it_is_for_and_has_a_default() -> None:
    for name, row in repository.questions().items():
        assert "default" in row, name
        assert row.get("when") is False or row.get("help"), name


def test_every_hidden_value_is_read_somewhere(worker: Worker) -> None:
    hidden = {name for name, row in repository.questions().items() if row.get("when") is False}
    texts = [(ROOT / path).read_text(encoding="utf-8") for path in jinja_sources()]
    unused = {name for name in hidden if sum(len(re.findall(rf"\b{name}\b", text)) for text in texts) < 2}
    assert unused == set()


def jinja_sources() -> list[Path]:
    """Files that Jinja reads: templates, includes and question files."""
    return [
        path
        for path in repository.tracked_files()
        if path.suffix == ".jinja" or path.parts[0] in ("questions", "includes", "catalog")
    ]


@pytest.mark.parametrize("path", [path for path in jinja_sources() if path.suffix == ".jinja"], ids=str)
def test_templates_parse(worker: Worker, path: Path) -> None:
    source = (ROOT / path).read_text(encoding="utf-8")
    try:
        tree = worker.jinja_env.parse(source, filename=str(path))
    except TemplateSyntaxError as error:
        pytest.fail(f"{path}:{error.lineno}: {error.message}")
    includes: list[nodes.Include | nodes.FromImport] = [*tree.find_all(nodes.Include), *tree.find_all(nodes.FromImport)]
    for wanted in includes:
        if isinstance(wanted.template, nodes.Const):
            assert (ROOT / wanted.template.value).is_file(), f"{path}:{wanted.lineno}: {wanted.template.value}"


def test_templates_in_questions_parse(worker: Worker) -> None:
    for name, row in repository.questions().items():
        for key, value in row.items():
            if isinstance(value, str):
                worker.jinja_env.parse(value, filename=f"{name}.{key}")


def test_only_the_kernel_name_appears_in_paths() -> None:
    variables = {
        name
        for path in repository.tracked_files()
        if path.parts[0] == "template"
        for name in re.findall(r"{{\s*(.*?)\s*}}", str(path))
    }
    assert variables == {"kernel_name", "_copier_conf.answers_file"}


# The scenario table.


def test_scenarios_have_all_switches_for_every_era() -> None:
    for name, row in CATALOG["scenarios"].items():
        assert list(row["switches"]) == ERAS, name
        assert list(row["scope"]) == ERAS, name
        for era, switches in row["switches"].items():
            assert list(switches) == SWITCHES, (name, era)
            assert not switches["auto_cv_sync"] or switches["auto_cv_combine"], (
                "ignored by the compiler without COMBINE"
            )
            assert (row["scope"][era] == "auto") == switches["auto_cv_combine"], (name, era)


def test_eras_are_the_question_s_choices() -> None:
    assert list(repository.questions()["compiler_era"]["choices"].values()) == ERAS


def test_the_scenario_table_has_no_second_copy() -> None:
    """No file but the catalog pairs scenarios with switches."""
    names = "|".join(CATALOG["scenarios"])
    switch = re.compile("|".join(SWITCHES), re.IGNORECASE)
    copies = []
    for path in repository.tracked_files():
        if path.parts[0] in ("kernels", "docs") or path == Path("catalog/scenarios.yml") or generated(path):
            continue
        try:
            lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        # A row of a table names a scenario and says on or off for several switches, within a few lines.
        for number, line in enumerate(lines):
            near = "\n".join(lines[number : number + 5])
            rows = set(re.findall(rf"^[\s\"'|`]*({names})\b", near, re.MULTILINE))
            if (
                rows
                and len(set(map(str.lower, switch.findall(near)))) > 1
                and re.search("true|false|on|off", near, re.I)
            ):
                copies.append(f"{path}:{number + 1}: {line.strip()}")
    assert copies == []


def generated(path: Path) -> bool:
    """Documents with tables made from the catalog (a test keeps them fresh), and archives of released versions."""
    return path.name == "README.md" or path.parts[:2] == ("tests", "releases")


# Starters and their records.


def test_records_and_starter_folders_agree() -> None:
    folders = {path.parent for path in (ROOT / "kernels").glob("*/*/kernel.py.jinja")}
    records = {ROOT / "kernels" / scenario / operator for scenario, operator, _ in map(values, RECORDS)}
    assert folders == records


def values(parameter: Any) -> Any:
    return parameter.values


@pytest.mark.parametrize(("scenario", "operator", "record"), RECORDS)
class TestRecord:
    def test_starter_is_complete(self, scenario: str, operator: str, record: dict[str, Any]) -> None:
        folder = ROOT / "kernels" / scenario / operator
        assert [name for name in STARTER_FILES if not (folder / f"{name}.jinja").is_file()] == []

    def test_keys(self, scenario: str, operator: str, record: dict[str, Any]) -> None:
        required = {"title", "dtypes", "accumulate", "shape", "blocks", "memory", "tolerance", "platforms"}
        required |= {"baseline", "upstream"}
        assert required <= set(record)
        assert set(record) <= required | {"cv_exchange", "switches", "scope"}
        assert set(record["dtypes"]) == set(record["accumulate"])
        assert {*record["dtypes"], *record["accumulate"].values()} <= set(CATALOG["dtypes"])
        assert set(record["platforms"]) <= set(CATALOG["hardware"])
        assert set(record["memory"]) <= set(CATALOG["hardware"]["A2"]["memory"])
        assert record["tolerance"]["legacy"] in ("default", "large", "fusion")
        assert list(record.get("switches", SWITCHES)) == SWITCHES
        assert set(record.get("cv_exchange", ())) <= {"workspace", "onchip"}

    def test_parameters_are_questions(self, scenario: str, operator: str, record: dict[str, Any]) -> None:
        names = [name.lower() for name in [*record["shape"], *record["blocks"]]]
        assert len(names) == len(set(names)), "two parameters with the same name in lower case"
        assert set(names) <= size_questions()

    def test_size_rows(self, scenario: str, operator: str, record: dict[str, Any]) -> None:
        known = {"default", "help", "minimum", "multiple", "maximum", "choices", "divides"}
        for name, row in (record["shape"] | record["blocks"]).items():
            assert {"default", "help"} <= set(row) <= known, name

    def test_memory_entries(self, scenario: str, operator: str, record: dict[str, Any]) -> None:
        known = {*record["shape"], *record["blocks"]}
        for memory, entries in record["memory"].items():
            for entry in entries:
                assert set(entry) <= {"what", "dims", "divide", "dtype", "copies", "cv_exchange"}, (memory, entry)
                names = [dim for dim in entry["dims"] if isinstance(dim, str)]
                assert set(names) <= known, (memory, entry)
                # The questions find the largest block that fits by assuming that use grows linearly with it.
                assert len(names) == len(set(names)), (memory, entry)
                assert entry["dtype"] in {"dtype", "accum", *CATALOG["dtypes"]}, (memory, entry)

    def test_defaults_obey_their_own_rules_and_fit(self, scenario: str, operator: str, record: dict[str, Any]) -> None:
        # In the other form of exchange the questions halve defaults that do not fit.
        exchange = record.get("cv_exchange", [""])[0]
        for dtype, platform in product(record["dtypes"], record["platforms"]):
            if platform not in CATALOG["dtypes"][dtype]["platforms"]:
                continue
            sizes = {}
            for name, row in (record["shape"] | record["blocks"]).items():
                value = figure(row["default"], dtype, platform)
                assert value >= figure(row.get("minimum", 1), dtype, platform), (name, dtype, platform)
                assert value % figure(row.get("multiple", 1), dtype, platform) == 0, (name, dtype, platform)
                sizes[name] = value
            for memory, entries in record["memory"].items():
                need = sum(entry_bytes(entry, sizes, record, dtype, exchange) for entry in entries)
                capacity = CATALOG["hardware"][platform]["memory"][memory]["bytes"]
                assert need <= capacity, f"{memory} of {platform} with {dtype} {exchange}: {need} of {capacity} bytes"


def figure(value: Any, dtype: str, platform: str) -> int:
    """A record's figure for an element type and platform."""
    while isinstance(value, dict):
        value = value.get(dtype, value.get(platform, value.get("default")))
    return int(value)


def entry_bytes(entry: dict[str, Any], sizes: dict[str, int], record: dict[str, Any], dtype: str, exchange: str) -> int:
    """What one buffer takes, in bytes."""
    if entry.get("cv_exchange", exchange) != exchange:
        return 0
    element = {"dtype": dtype, "accum": record["accumulate"][dtype]}.get(entry["dtype"], entry["dtype"])
    count: int = math.prod(sizes[dim] if isinstance(dim, str) else dim for dim in entry["dims"])
    size: float = CATALOG["dtypes"][element]["bytes"] * count / entry.get("divide", 1)
    return math.ceil(size) * int(entry.get("copies", 1))


def size_questions() -> set[str]:
    return {name for name, row in repository.questions().items() if "size-check.jinja" in row.get("validator", "")}


def test_every_size_question_belongs_to_an_operator() -> None:
    used = {name.lower() for _, _, record in map(values, RECORDS) for name in [*record["shape"], *record["blocks"]]}
    assert size_questions() - used == set()


def test_size_questions_name_themselves() -> None:
    for name in size_questions():
        row = repository.questions()[name]
        assert {key: set(re.findall(r"name(?:, value)? = '(\w+)'", row[key])) for key in ("help", "default")} == {
            "help": {name},
            "default": {name},
        }
        assert f"name, value = '{name}', {name} %}}" in row["validator"]
        assert f"'{name}' in parameters" in row["when"]


# Names and tables with an outside source.


def test_reserved_names_are_complete() -> None:
    source = (ROOT / "includes/names.jinja").read_text(encoding="utf-8")
    lists = {name: set(words.split()) for name, words in re.findall(r"set (\w+) = '([^']*)'.split", source)}
    identifiers = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
    assert {*keyword.kwlist, "match", "case", "type"} == lists["keywords"]
    assert {name for name in dir(builtins) if identifiers.fullmatch(name)} <= lists["builtins"]
    assert {name for name in sys.stdlib_module_names if identifiers.fullmatch(name)} <= lists["stdlib"]


def test_hardware_has_the_same_rows_everywhere() -> None:
    rows = [set(row) for row in CATALOG["hardware"].values()]
    assert all(row == rows[0] for row in rows)
    for row in CATALOG["hardware"].values():
        assert list(row["memory"]) == ["UB", "L1", "L0A", "L0B", "L0C"]


def test_float8_is_for_a5_only() -> None:
    assert {name for name, row in CATALOG["dtypes"].items() if row["platforms"] == ["A5"]} == {
        name for name in CATALOG["dtypes"] if name.startswith("float8")
    }


def test_hooks_use_nothing_that_copier_does_not_bring() -> None:
    """They run in Copier's own interpreter."""
    brought = {"copier", "packaging", "yaml", "harness"}  # of the harness what adopt reads with: see below
    hooks = {path.stem for path in (ROOT / "hooks").iterdir()}
    for path in (ROOT / "hooks").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        modules = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        foreign = {name.split(".")[0] for name in modules} - sys.stdlib_module_names - hooks - brought
        assert foreign == set(), path.name


def test_adopt_reads_with_the_standard_library_alone() -> None:
    """What it takes from the harness needs nothing that a package's own environment has."""
    code = "import sys; sys.path[:0] = sys.argv[1:]; import adoption.description, adoption.kernel_file, adoption.texts"
    command = [sys.executable, "-I", "-S", "-c", code, str(ROOT / "hooks"), str(ROOT / "template")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_documentation_is_fresh() -> None:
    """The README's tables are what the catalog and the questions say; `make docs` writes them."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert tables.refreshed(text) == text


def test_no_machine_paths() -> None:
    """Nothing that is committed names a developer's machine."""
    pattern = re.compile(r"(?<![\w/])/(?:home|Users|root|work|tmp/team)/\w")
    found = []
    for path in repository.tracked_files():
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path}: {match}" for match in pattern.findall(text)]
    assert found == []


def test_the_table_of_what_starters_compute_has_every_starter() -> None:
    text = (repository.ROOT / "README.md").read_text(encoding="utf-8").partition(verified.BEGIN)[2]
    rows = [row.replace("`", "").split(" | ") for row in text.partition(verified.END)[0].splitlines()[2:]]
    found = {(row[0].removeprefix("| "), row[1], row[2], row[3]) for row in rows}
    records = repository.catalog()["operators"]
    assert found == {
        (starter.scenario, starter.operator, starter.dtype, exchange)
        for starter in repository.starters()
        for exchange in records[starter.scenario][starter.operator].get("cv_exchange", ["–"])
    }
