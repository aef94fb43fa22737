"""The rules: every page's snippets, a table of wrong kernels, bad input, fixes, formats, speed."""

from __future__ import annotations

import io
import itertools
import json
import re
import resource
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

import repository
import rule_kernels
from conftest import run_harness
from harness import project as projects
from harness.budget import Use
from harness.compiler.client import Request, find_compiler
from harness.compiler.lowered import Buffer
from harness.ladder import Ladder
from harness.report import print_rungs
from harness.rules import RULES, Context, Finding, check_lowered, check_project, check_source, lowered
from harness.rules import cli as rules_cli
from harness.rules.cli import apply, context_of
from harness.rules.explain import SEPARATOR, Snippet, document, pages
from harness.rules.formats import FORMATS, render
from harness.rules.picture import lanes, svg
from repository import Starter

ROOT = Path(__file__).parent.parent
SNIPPETS = [(id, snippet) for id, page in pages().items() for snippet in page.snippets]
SOURCE = [(id, s) for id, s in SNIPPETS if s.base not in ("lowered", "folder")]


def ids(found: list[Finding]) -> list[str]:
    return sorted({finding.rule for finding in found})


def check_snippet(snippet: Snippet) -> list[Finding]:
    base, _, loose = snippet.base.partition(",")
    where = rule_kernels.context(base, scenario=None) if loose else None
    if base == "named":
        where = rule_kernels.context("vector")
        name = snippet.regions[0].removesuffix(".py")
        path = Path("src") / name / "kernel.py"
        return check_source(path, where, rule_kernels.build("vector", signature=snippet.text))
    return rule_kernels.findings(base, snippet.parts, where)


@pytest.mark.parametrize(("id", "snippet"), SOURCE, ids=[f"{id}-{s.kind}" for id, s in SOURCE])
def test_pages(id: str, snippet: Snippet) -> None:
    """What a rule's page calls wrong breaks that rule and no other; what it calls right breaks none."""
    assert ids(check_snippet(snippet)) == ([id] if snippet.kind == "wrong" else [])


def test_every_rule_has_a_page_and_snippets() -> None:
    assert sorted(pages()) == sorted(RULES)
    for page in pages().values():
        assert {snippet.kind for snippet in page.snippets} == {"wrong", "right"}, page.rule.id
        assert len(page.text) > 60, page.rule.id
        assert page.rule.reason.endswith("."), page.rule.id
    for id, rule in RULES.items():
        assert id == rule.id
        assert len({r.name for r in RULES.values() if r.name == rule.name}) == 1


def test_documentation_is_current() -> None:
    """``make docs`` writes docs/rules.md."""
    assert (ROOT / "docs" / "rules.md").read_text(encoding="utf-8") == document()


@pytest.mark.parametrize("base", rule_kernels.BASES)
def test_bases_are_right(base: str) -> None:
    assert rule_kernels.findings(base) == []
    assert rule_kernels.findings(base, where=rule_kernels.context(base, scenario=None)) == []


# Further kernels, in the form of the pages' snippets: title -> (base, the one rule it breaks or "none", regions).
TABLE = re.compile(r"^## ([^\n]+)\n```python (\S+) (\S+) (\S+)\n(.*?)```", re.MULTILINE | re.DOTALL)


def table(name: str) -> dict[str, tuple[str, str, dict[str, str]]]:
    text = (ROOT / "tests" / "data" / name).read_text(encoding="utf-8")
    found = {}
    for title, rule, base, regions, parts in TABLE.findall(text):
        found[title] = (base, rule, dict(zip(regions.split("+"), parts.split(SEPARATOR), strict=True)))
    return found


WRONG, RIGHT = table("rules-wrong.md"), table("rules-right.md")


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels(name: str) -> None:
    base, rule, regions = WRONG[name]
    where = rule_kernels.context(base, platform="A5") if "A5" in name else None
    found = rule_kernels.findings(base, regions, where)
    assert ids(found) == [rule], "\n".join(f"{f.line}: {f.rule} {f.message}" for f in found)
    source = rule_kernels.build(base, regions).splitlines()
    for finding in found:
        assert 1 <= finding.line <= len(source)
        assert finding.fix
        assert 1 <= finding.column <= len(source[finding.line - 1]) + 1


def test_enough_wrong_kernels() -> None:
    assert len(WRONG) + sum(snippet.kind == "wrong" for _, snippet in SOURCE) >= 140


@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels(name: str) -> None:
    base, _, regions = RIGHT[name]
    found = rule_kernels.findings(base, regions)
    assert found == [], "\n".join(f"{f.line}: {f.rule} {f.message}" for f in found)


def test_era_and_platform() -> None:
    """The same kernel is judged by the compiler and the chip it is for."""
    later = rule_kernels.context("vector", era="strict-scope")
    assert ids(rule_kernels.findings("vector", where=later)) == ["TLA101", "TLA202"]
    larger = 'def kernel(M: int, N: int, dtype: str = "float32", block_M: int = 64, block_N: int = 896):'
    assert ids(rule_kernels.findings("vector", signature=larger)) == ["TLA403"]
    a5 = rule_kernels.context("vector", platform="A5")
    assert ids(rule_kernels.findings("vector", where=a5, signature=larger)) == []


# Spellings of the same file.
SPELLINGS = {
    "from tilelang import language": ("import tilelang.language as T", "from tilelang import language as T"),
    "another name for the language": (
        "import tilelang.language as T",
        "import tilelang.language as tl_language\n\nT = tl_language",
    ),
    "no name for the language": (
        "import tilelang.language as T",
        "import tilelang.language\nimport tilelang.language as T",
    ),
    "jit by itself": ("@tilelang.jit(", "from tilelang import jit\n\n\n@jit("),
    "jit under another name": ("@tilelang.jit(", "from tilelang import jit as compiled\n\n\n@compiled("),
    "PassConfigKey by itself": ("tilelang.PassConfigKey.", "PassConfigKey."),
    "key values": ("AUTO_SYNC: True", "AUTO_SYNC.value: True"),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str) -> None:
    old, new = SPELLINGS[name]
    source = rule_kernels.build("gemm", body="T.gemm_v0(a_l1, b_l1, c_l0)")
    source = source.replace(old, new)
    if "PassConfigKey." in new:
        source = source.replace("import tilelang\n", "import tilelang\nfrom tilelang import PassConfigKey\n", 1)
    assert ids(check_source(Path("kernel.py"), rule_kernels.context("gemm"), source)) == ["TLA409"]


def test_tilelang_as_tl() -> None:
    source = (
        rule_kernels.build("gemm").replace("tilelang.", "tl.").replace("import tilelang\n", "import tilelang as tl\n")
    )
    source = source.replace("import tl.language as T", "from tilelang import DataType, language as T")
    assert check_source(Path("kernel.py"), rule_kernels.context("gemm"), source) == []
    wrong = source.replace("AUTO_CV_SYNC: True", "AUTO_CV_SYNC: False")
    assert ids(check_source(Path("kernel.py"), rule_kernels.context("gemm"), wrong)) == ["TLA101"]


CANNOT_TELL = {
    "a call": ("config", "pass_configs = make()", "built at run time"),
    "changed later": (
        "config",
        rule_kernels.SYNC_AND_PLAN + 'pass_configs["tl.ascend_auto_sync"] = fast()',
        "changed at run time",
    ),
    "bound twice": (
        "config",
        rule_kernels.SYNC_AND_PLAN + "pass_configs = dict(pass_configs)",
        "not bound to one literal",
    ),
    "a value from elsewhere": (
        "config",
        "import os\n\npass_configs = {tilelang.PassConfigKey.TL_ASCEND_AUTO_SYNC: bool(os.environ)}",
        "not a literal",
    ),
    "unpacked arguments": ("decorator", "@tilelang.jit(**options)", "unpacked"),
}


@pytest.mark.parametrize("name", CANNOT_TELL)
def test_cannot_tell(name: str) -> None:
    region, text, reason = CANNOT_TELL[name]
    found = rule_kernels.findings("vector", {region: text})
    assert ids(found)[:1] == ["TLA002"]
    assert "because" in found[0].message
    assert reason in found[0].message
    assert all(f.severity == "warning" for f in found if f.rule == "TLA002")


def test_merged_switches_are_known() -> None:
    config = "base = {tilelang.PassConfigKey.TL_ASCEND_AUTO_SYNC: True}\n"
    config += 'pass_configs = {**base, "tl.ascend_memory_planning": True}'
    assert rule_kernels.findings("vector", config=config) == []


def loose(text: str) -> list[Finding]:
    return check_source(Path("kernel.py"), Context(catalog=rule_kernels.context("vector").catalog), text)


def test_bad_files(tmp_path: Path) -> None:
    broken = tmp_path / "kernel.py"
    broken.write_bytes("# 核\n".encode("gbk") + b"x = 1\n")
    assert "not UTF-8" in check_source(broken, Context())[0].message
    broken.write_text("def f(:\n    pass\n")
    found = check_source(broken, Context())
    assert (found[0].rule, found[0].line) == ("TLA001", 1)
    broken.write_bytes(b"x = 1\0\n")
    assert ids(check_source(broken, Context())) == ["TLA001"]
    broken.write_text("x = " + "(" * 5000 + ")" * 5000)
    assert ids(check_source(broken, Context())) == ["TLA001"]
    assert "cannot be read" in check_source(tmp_path / "missing.py", Context())[0].message
    broken.write_text("")
    assert check_source(broken, Context()) == []
    assert ids(check_source(broken, rule_kernels.context("vector"))) == ["TLA002"]
    broken.write_bytes("\ufeff".encode() + rule_kernels.build("vector").encode())
    assert check_source(broken, rule_kernels.context("vector")) == []


def test_several_factories_and_none() -> None:
    two = (
        rule_kernels.build("vector")
        + "\n\n"
        + rule_kernels.build("gemm", body="T.gemm_v0(a_l1, b_l1, c_l0)").split("T\n\n", 1)[1]
    )
    assert "TLA409" in ids(loose(two))
    bare = rule_kernels.build("vector", signature="def kernel():").replace("(M, N)", "(64, 128)")
    bare = bare.replace("    m_num", "    M, N, dtype, block_M, block_N = 64, 128, 'float32', 64, 128\n    m_num")
    assert loose(bare) == []
    module_level = """
import tilelang.language as T

@T.prim_func
def main(A: T.Tensor((64,), "bf16")):
    with T.Kernel(1, is_npu=True) as (cid, vid):
        a = T.alloc_ub((64,), "float16")
        T.copy(A, a)
"""
    assert ids(loose(module_level)) == ["TLA501", "TLA506"]
    nested = "def outer():\n" + "".join(
        "    " + line if line.strip() else line for line in rule_kernels.build("vector").splitlines(True)
    )
    assert loose(nested) == []


def test_a_long_file_is_quick() -> None:
    body = "\n".join(f"T.tile.add(a, a, {number}.0)" for number in range(5000))
    start = time.perf_counter()
    assert rule_kernels.findings("vector", body=body) == []
    assert time.perf_counter() - start < 10


def test_source_rules_are_fast(tmp_path: Path) -> None:
    """Half a second for a kernel of 300 lines, the start of Python included."""
    kernel = tmp_path / "kernel.py"
    kernel.write_text(rule_kernels.build("vector", body="\n".join(["T.tile.add(a, a, b)"] * 270)))
    code = (
        "import sys, pathlib, harness.catalog as c\nc.PATH = pathlib.Path(sys.argv[2])\n"
        "from harness.rules import Context, check_source\n"
        "print(check_source(pathlib.Path(sys.argv[1]), Context(scenario='vector', catalog=c.load())))"
    )
    import harness.catalog

    command = [sys.executable, "-c", code, str(kernel), str(harness.catalog.PATH)]
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, cwd=ROOT / "template", capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Processor time: what it takes on a machine with nothing else to do.
        seconds.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        assert done.stdout.strip() == "[]"
    assert min(seconds) < 0.5, seconds


def test_silencing() -> None:
    line = "c = T.alloc_ub((8, 8), dtype)"
    buffers = "a = T.alloc_shared((block_M // 2, block_N), dtype)\nb = T.alloc_shared((block_M // 2, block_N), dtype)\n"
    assert ids(rule_kernels.findings("vector", buffers=buffers + line)) == ["TLA410"]
    assert rule_kernels.findings("vector", buffers=buffers + line + "  # tla: ignore[TLA410] for later") == []
    assert rule_kernels.findings("vector", buffers=buffers + line + "  # tla: ignore[TLA001, TLA410]: for later") == []
    assert ids(rule_kernels.findings("vector", buffers=buffers + line + "  # tla: ignore[TLA410]")) == [
        "TLA003",
        "TLA410",
    ]
    assert ids(rule_kernels.findings("vector", buffers=buffers + line + "  # tla: ignore[TLA409] no")) == [
        "TLA004",
        "TLA410",
    ]


def test_columns_count_characters() -> None:
    body = "T.tile.add(a, a, b); print(cid)"
    plain = next(f for f in rule_kernels.findings("vector", body=body))
    wide = next(f for f in rule_kernels.findings("vector", body='T.printf("核核"); ' + body))
    assert wide.column == plain.column + len('T.printf("核核"); ')


FIXABLE = [name for name in WRONG if any(f.edits for f in rule_kernels.findings(WRONG[name][0], WRONG[name][2]))]
PAGES_FIXABLE = [
    s
    for _, s in SOURCE
    if s.kind == "wrong" and s.base in rule_kernels.BASES and any(f.edits for f in check_snippet(s))
]


@pytest.mark.parametrize("name", FIXABLE)
def test_fixes(name: str, tmp_path: Path) -> None:
    """A mended file breaks the rule no longer, and is still Python."""
    base, rule, regions = WRONG[name]
    mend(tmp_path, base, rule, regions)


@pytest.mark.parametrize("snippet", PAGES_FIXABLE, ids=lambda s: "-".join(s.regions))
def test_page_fixes(snippet: Snippet, tmp_path: Path) -> None:
    mend(tmp_path, snippet.base, "", snippet.parts)


def mend(tmp_path: Path, base: str, rule: str, regions: dict[str, str]) -> None:
    path = tmp_path / "kernel.py"
    path.write_bytes(rule_kernels.build(base, regions).replace("\n", "\r\n").encode())
    where = rule_kernels.context(base)
    before = check_source(path, where)
    assert apply(path, before)
    after = check_source(path, where)
    assert {f.rule for f in after if f.edits} == set(), path.read_text()
    assert "TLA001" not in ids(after)
    assert b"\r\n" in path.read_bytes()


def test_fixable_rules() -> None:
    rules = {WRONG[name][1] for name in FIXABLE} | {f.rule for s in PAGES_FIXABLE for f in check_snippet(s) if f.edits}
    assert rules == {"TLA101", "TLA104", "TLA123", "TLA124", "TLA203", "TLA608"}


@pytest.mark.parametrize("scenario", ["expert", "mixed", "vector"])
def test_no_switch_goes_without_a_replacement(scenario: str) -> None:
    """A Developer kernel in a package of another scenario keeps its switches."""
    where = rule_kernels.context("fusion", scenario=scenario)
    (found,) = (f for f in rule_kernels.findings("fusion", where=where) if f.rule == "TLA101")
    assert "written for another scenario" in found.message
    assert "TL_ASCEND_AUTO_CV_COMBINE" in found.message
    assert "adopt.py" in (found.fix or "")
    assert found.edits == ()


def test_the_ladder_says_what_to_do_next(package: Callable[..., Path], tmp_path: Path) -> None:
    root = shutil.copytree(package(kernel_name="softmax"), tmp_path / "softmax")
    kernel = root / "src" / "softmax" / "kernel.py"
    switch = "tilelang.PassConfigKey.TL_ASCEND_AUTO_SYNC: "
    kernel.write_text(kernel.read_text().replace(f"{switch}True", f"{switch}False"))
    project, shown = projects.load(root), io.StringIO()
    rungs = list(itertools.islice(Ladder(project).climb(), 2))
    print_rungs(Console(file=shown, width=300), project, rungs)
    assert "kernel.py:" in shown.getvalue()
    assert "error TLA101 of the four" in shown.getvalue()
    assert ". Fix: set the switches" in shown.getvalue()
    assert "harness check --fix mends 1 of " in shown.getvalue()
    assert "python -m harness explain TLA101 says why" in shown.getvalue()
    told = io.StringIO()
    rules_cli.run(project, fix=True, told=told)
    assert re.match(r"src/softmax/kernel\.py:\d+: TLA101 mended: set the switches", told.getvalue())
    assert "\n1 finding mended\n" in told.getvalue()


def test_a_warning_under_a_passed_rung_says_so(package: Callable[..., Path]) -> None:
    project = projects.load(package())
    warning = Finding("TLA002", "can't tell", project.kernel, severity="warning")
    _, (line,), _ = Ladder(project)._judge([warning], "")
    assert "kernel.py:1:1: warning TLA002 can't tell" in line


@pytest.fixture
def some() -> list[Finding]:
    return [
        replace(f, path=Path("/p/src/k/kernel.py"))
        for f in rule_kernels.findings("gemm", body="T.gemm_v0(a_l1, b_l1, c_l0)  # 50 %")
    ]


@pytest.mark.parametrize("form", FORMATS)
def test_formats(form: str, some: list[Finding]) -> None:
    text = render(some, form, Path("/p"))
    assert "src/k/kernel.py" in text
    assert "TLA409" in text
    if form == "json":
        row = json.loads(text)["findings"][0]
        assert set(row) == {"rule", "name", "severity", "message", "path", "line", "column", "fix", "fixable"}
    if form == "sarif":
        run = json.loads(text)["runs"][0]
        result = run["results"][0]
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "TLA409"
        assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == some[0].line
    if form == "github":
        assert text.startswith("::error file=src/k/kernel.py,line=")
    assert render([], form, Path("/p")) is not None
    with pytest.raises(ValueError, match="text, json"):
        render(some, "xml", Path("/p"))


def test_a_workflow_command_needs_a_finding(package: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert rules_cli.run(projects.load(package()), form="github") == 0
    assert capsys.readouterr().out == ""


FOLDER = [(id, s) for id, s in SNIPPETS if s.base == "folder"]


@pytest.mark.parametrize(("id", "snippet"), FOLDER, ids=[f"{id}-{s.kind}" for id, s in FOLDER])
def test_folder_rules(id: str, snippet: Snippet, tmp_path: Path) -> None:
    (tmp_path / "src" / "kernel").mkdir(parents=True)
    (tmp_path / "src" / "kernel" / "kernel.py").write_text(rule_kernels.build("vector"))
    (tmp_path / snippet.regions[0]).write_text(snippet.text)
    found = check_project(tmp_path, rule_kernels.context("vector"))
    assert ids(found) == ([id] if snippet.kind == "wrong" else [])


def test_a_conflict_in_the_kernel_is_said_once(tmp_path: Path) -> None:
    kernel = tmp_path / "src" / "kernel" / "kernel.py"
    kernel.parent.mkdir(parents=True)
    kernel.write_text("<<<<<<< before updating\n" + rule_kernels.build("vector") + ">>>>>>> after updating\n")
    assert [f.rule for f in check_project(tmp_path, rule_kernels.context("vector"))] == ["TLA701"]


def test_the_picture_of_memories() -> None:
    """Valid SVG; buffers that share addresses stand in rows of their own, nearly full memories are marked."""
    apart = Buffer("a<b", "UB", 0, 4096), Buffer("c", "UB", 4096, 4096)
    over = Buffer("tmp", "UB", 0, 8192)
    assert lanes(apart) == [list(apart)]
    assert [len(row) for row in lanes([*apart, over])] == [1, 2]
    uses = (Use("UB", 8192, 8400, (*apart, over)), Use("L0C", 64, 131072, (Buffer("acc", "L0C", 0, 64),)))
    text = svg(uses, "k & k")
    root = ElementTree.fromstring(text)
    titles = [node.text for node in root.iter() if node.tag.endswith("title")]
    assert titles == [
        "k & k",
        "tmp: 8,192 bytes at 0",
        "a<b: 4,096 bytes at 0",
        "c: 4,096 bytes at 4,096",
        "acc: 64 bytes at 0",
    ]
    assert text.count("axis full") == 1
    assert "16,384 without reuse" in text
    assert svg((), "nothing").startswith("<svg")


GENERATED = """
extern "C" __global__ AICORE void main_kernel(__gm__ uint8_t *A_handle_raw, uint64_t ffts_Addr) {
  auto cid = get_block_idx();
  tl::ascend_pto::TileUbDataND<float, 64, 128, 64, 128> c_ub;
  TASSIGN(c_ub, 0);
  auto vid = get_subblockid();
#if defined(__DAV_C220_CUBE__)
    tl::ascend_pto::set_flag_pipeline<PIPE_MTE1, PIPE_MTE2> (0);
    tl::ascend_pto::set_flag_pipeline<PIPE_MTE1, PIPE_MTE2> (1);
    int32_t trips;
    if ((cid < 16)) {
      trips = 4;
    } else {
      trips = 0;
    }
  for (int32_t k = 0; k < trips; ++k) {
      tl::ascend_pto::wait_flag_pipeline<PIPE_MTE1, PIPE_MTE2> ((k % 2));
      if ((k < LAST) && (vid == 0)) {
        tl::ascend_pto::set_flag_pipeline<PIPE_MTE1, PIPE_MTE2> ((k % 2));
      }
    }
    tl::ascend_pto::set_cross_flag<PIPE_FIX>(0, 2);
#endif
#if defined(__DAV_C220_VEC__)
    tl::ascend_pto::wait_cross_flag(0);
    for (int32_t i = 0; i < A.GetValue(0); ++i) {
      TADDS(c_ub, c_ub, 1.0f);
    }
    set_flag(PIPE_MTE2, PIPE_V, EVENT_ID1);
    wait_flag(PIPE_MTE2, PIPE_V, EVENT_ID1);
#endif
}

extern "C" void call(uint8_t *A_handle, void *stream)
"""


def test_flags_are_counted() -> None:
    """Over all iterations; what depends on data but holds no flag does not matter."""
    right = lowered.count(GENERATED.replace("LAST", "2"), "C")
    assert right == {("set", ("MTE1", "MTE2", i)): 2 for i in (0, 1)} | {
        ("wait", ("MTE1", "MTE2", i)): 2 for i in (0, 1)
    }
    surplus = lowered.count(GENERATED.replace("LAST", "4"), "C")
    assert surplus["set", ("MTE1", "MTE2", 0)] == 3
    assert lowered.count(GENERATED, "V") == {("set", ("MTE2", "V", 1)): 1, ("wait", ("MTE2", "V", 1)): 1}
    with pytest.raises(lowered.Unknown):
        lowered.count(GENERATED.replace("LAST", "A.GetValue(0)"), "C")
    with pytest.raises(lowered.Unknown):
        lowered.count(GENERATED.replace("LAST", "4").replace("trips = 4", "trips = 1000000"), "C")


L1 = """
a_l1 = T.alloc_L1((2, block_M, block_K), dtype)
b_l1 = T.alloc_L1((block_K, block_N), dtype)
c_l0 = T.alloc_L0C((block_M, block_N), "float32")
c_ub = T.alloc_ub((half, block_N), dtype)
d_ub = T.alloc_ub((half, block_N), dtype)
"""


def lowered_kernel(id: str, snippet: Snippet) -> str:
    if id == "TLA414":
        body = snippet.text.replace("for i, j", "for i, k").replace("[j, i]", "[k, i]").replace("[i, j]", "[i, k]")
        return rule_kernels.build("vector", body=body)
    text = snippet.text.replace("bx * block_M, k * block_K", "cid * block_M, 0")
    cube = rule_kernels.EXPERT.split("#<cube>\n")[1].split("            #</cube>")[0]
    cube = textwrap.dedent(cube).replace("T.copy(A[cid * block_M, 0], a_l1)\n", textwrap.indent(text, "    ").lstrip())
    return rule_kernels.build("expert", cube=cube.replace("T.gemm_v0(a_l1", "T.gemm_v0(a_l1[0, :, :]"), buffers=L1)


@pytest.mark.ladder
@pytest.mark.parametrize(("id", "snippet"), [(id, s) for id, s in SNIPPETS if s.base == "lowered"])
def test_pages_of_generated_code(id: str, snippet: Snippet, compiler: None, tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(lowered_kernel(id, snippet), encoding="utf-8")
    base = "vector" if id == "TLA414" else "expert"
    assert ids(check_source(path, rule_kernels.context(base))) == []
    arguments = {"M": 128, "N": 256} if base == "vector" else {"M": 128}
    with find_compiler() as opened:
        kernel = opened.lower(Request(path, "kernel", arguments, "pto", "A2"))
    found = check_lowered(kernel, path, rule_kernels.context(base))
    assert ids(found) == ([id] if snippet.kind == "wrong" else [])
    if found:
        line = path.read_text().splitlines()[found[0].line - 1]
        assert "for " in line or "flag" in line


@pytest.mark.render
@pytest.mark.parametrize("starter", list(repository.starters()), ids=str)
def test_starters_break_no_rule(starter: Starter, package: Callable[..., Path]) -> None:
    assert_clean(package(**starter.answers))


@pytest.mark.render
@pytest.mark.parametrize("answers", [{"platform": "A5"}, {"platform": "A3", "compiler_era": "strict-scope"}])
@pytest.mark.parametrize("starter", repository.operators(), ids=str)
def test_starters_break_no_rule_elsewhere(
    starter: Starter, answers: dict[str, str], package: Callable[..., Path]
) -> None:
    """Another chip, another compiler era."""
    assert_clean(package(**starter.answers, **answers))


def assert_clean(root: Path) -> None:
    context = replace(context_of(projects.load(root)), catalog=rule_kernels.context("vector").catalog)
    found = check_project(root, context)
    assert found == [], "\n".join(f"{f.path.name}:{f.line}: {f.rule} {f.message}" for f in found)


def test_a_form_of_the_rules_climbs_no_ladder(package: Callable[..., Path], tmp_path: Path) -> None:
    root = Path(shutil.copytree(package(kernel_name=repository.NAME), tmp_path / "package"))
    both = run_harness(root, "check", "--format", "github", "--require", "simulated")
    assert (both.returncode, both.stdout) == (3, "")
    assert "leave out --require" in both.stderr
    (root / f"src/{repository.NAME}/kernel.py").unlink()
    gone = run_harness(root, "check", "--format", "json")
    assert gone.returncode == 1
    assert "TLA001" in gone.stdout
