"""Expert to Developer: what is rewritten, what is kept, and that the numbers stay the same."""

from __future__ import annotations

import argparse
import ast
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rule_kernels
from conftest import run_harness
from harness import catalog
from harness import project as projects
from harness.compiler.client import Compiler, Request, find_compiler
from harness.convert import Conversion, convert
from harness.convert import command as convert_command
from harness.rules import Context, check_source
from harness.rules import cli as rules_cli
from harness.vnpu.build import build
from harness.vnpu.run import run

DATA = Path(__file__).parent / "data"
Arrays = tuple[np.ndarray[Any, Any], ...]


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = np.einsum("hsd,htd->hst", q.astype(float), k.astype(float)) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v.astype(float)


def softmax(x: Any) -> Any:
    weights = np.exp(x.astype(float) - x.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


# file -> factory, arguments, input shapes and type, reference, tolerance
KERNELS: dict[str, tuple[str, dict[str, int], list[tuple[int, ...]], str, Callable[..., Any], float]] = {
    "gemm": (
        "matmul", {"M": 128, "N": 256, "K": 192}, [(128, 192), (192, 256)], "float16",
        lambda a, b: a.astype(float) @ b.astype(float), 0.05,
    ),
    "vector": (
        "scaled_add", {"M": 64, "N": 128}, [(64, 128), (64, 128)], "float32", lambda a, b: 2.0 * a + b, 1e-6,
    ),
    "softmax": ("softmax", {"M": 64, "N": 128}, [(64, 128)], "float32", softmax, 1e-6),
    "attention": (
        "attention", {"heads": 2, "seq_len": 128, "dim": 64}, [(2, 128, 64)] * 3, "float16", attention, 2e-3,
    ),
    "fused": (
        "matmul_add", {"M": 128, "N": 128, "K": 192}, [(128, 192), (192, 128), (128, 128)], "float16",
        lambda a, b, d: a.astype(float) @ b.astype(float) + d, 0.05,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_the_whole_file(name: str) -> None:
    """Comments, blanks and everything that is not about the mode stay as they are."""
    result = convert(DATA / "expert" / f"{name}.py")
    assert result.complete, result.notes
    assert result.text == (DATA / "developer" / f"{name}.py").read_text(encoding="utf-8")
    again = convert(DATA / "developer" / f"{name}.py")
    assert not again.notes
    context = Context(catalog=catalog.load())
    assert check_source(DATA / "expert" / f"{name}.py", context) == []
    assert check_source(DATA / "developer" / f"{name}.py", context) == []


@pytest.fixture(scope="module")
def lowering(compiler: None) -> Iterator[Compiler]:
    with find_compiler() as opened:
        yield opened


@pytest.mark.ladder
@pytest.mark.parametrize("parallel", [False, True], ids=["tile", "parallel"])
@pytest.mark.parametrize("name", KERNELS)
def test_the_numbers_stay(name: str, parallel: bool, lowering: Compiler, tmp_path: Path) -> None:
    """The converted kernel computes what the original computes, which is right."""
    factory, arguments, shapes, dtype, reference, tolerance = KERNELS[name]
    generator = np.random.default_rng(7)
    inputs = tuple(generator.standard_normal(shape).astype(dtype) for shape in shapes)
    converted = tmp_path / f"{name}.py"
    converted.write_text(convert(DATA / "expert" / f"{name}.py", parallel=parallel).text, encoding="utf-8")
    outputs = []
    for path in (DATA / "expert" / f"{name}.py", converted):
        lowered = lowering.lower(Request(path, factory, arguments, "pto", "A2"))
        outputs.append(run(build(lowered, lowering.package), inputs).outputs[0])
        lowering.lower(Request(path, factory, arguments, "ascendc", "A2"))
    assert np.abs(outputs[0].astype(float) - reference(*inputs)).max() < tolerance
    np.testing.assert_array_equal(outputs[0], outputs[1])


def part(base: str, **regions: str) -> Conversion:
    return convert(Path("kernel.py"), rule_kernels.build(base, regions))


def test_every_row_of_the_table() -> None:
    text = part("expert").text
    assert text.count("TL_ASCEND") == 4
    assert text.count("True,") >= 4
    for gone in ("alloc_L1", "alloc_ub", "alloc_L0C", "Scope", "barrier_all", "cross_flag", "workspace", "vid"):
        assert gone not in text, gone
    assert "T.Kernel(T.ceildiv(M, block_M), threads=2, is_npu=True) as (cid):" in text
    assert "out_idx=[3]" in text
    assert "T.copy(c_l0, c_ub)" in text
    assert "T.alloc_shared((block_M, block_N), dtype)" in text


@pytest.mark.parametrize("config", [
    "pass_configs = {}",
    "pass_configs = {tilelang.PassConfigKey.TL_ASCEND_AUTO_SYNC: False}",
    'pass_configs = {"tl.ascend_auto_sync": False, "tl.Simplify": True}',
    "pass_configs = {\n    tilelang.PassConfigKey.TL_ASCEND_AUTO_SYNC: False,  # by hand\n}",
    "pass_configs = dict()",
])  # fmt: skip
def test_switches(config: str) -> None:
    decorator = "@tilelang.jit(out_idx=[3], workspace_idx=[4], pass_configs=pass_configs)"
    result = part("expert", config=config, decorator=decorator)
    if "dict()" in config:
        assert [note.kind for note in result.notes] == ["skipped"]
        assert "built at run time" in result.notes[0].text
        return
    assert result.complete
    assert result.text.count("True") >= 4 + result.text.count("is_npu=True") + result.text.count("init=True")
    assert "False" not in result.text
    assert ("# by hand" in config) == ("# by hand" in result.text)
    namespace = re.search(r"pass_configs = (\{.*?\})", result.text, re.DOTALL)
    assert namespace is not None
    assert len(ast.parse(namespace[1], mode="eval").body.keys) == 4 + ("Simplify" in config)  # type: ignore[attr-defined]


def test_bare_decorators_and_other_names() -> None:
    text = rule_kernels.build("expert", decorator="@tilelang.jit", config="pass_configs = 3")
    text = text.replace("import tilelang\n", "import tilelang as tl\n").replace("tilelang.jit", "tl.jit")
    text = text.replace("import tilelang.language as T", "from tilelang import language as lang").replace("T.", "lang.")
    result = convert(Path("kernel.py"), text)
    assert "@tl.jit(pass_configs=kernel_pass_configs)" in result.text
    assert "tl.PassConfigKey.TL_ASCEND_AUTO_CV_SYNC: True" in result.text
    assert "lang.alloc_shared" in result.text


CUBE = rule_kernels.EXPERT.split("#<cube>\n")[1].split("            #</cube>")[0]
VECTOR = rule_kernels.EXPERT.split("#<vector>\n")[1].split("            #</vector>")[0]
L0 = """
a_l1 = T.alloc_L1((2, block_M, block_K), dtype)
b_l1 = T.alloc_L1((2, block_N, block_K), dtype)
a_l0 = T.alloc_L0A((block_M, block_K // 2), dtype)
b_l0 = T.alloc_L0B((block_K // 2, block_N), dtype)
c_l0 = T.alloc_L0C((block_M, block_N), "float32")
c_ub = T.alloc_ub((half, block_N), dtype)
d_ub = T.alloc_ub((half, block_N), dtype)
"""
STAGED = """
with T.Scope("C"):
    T.copy(A[cid * block_M, 0], a_l1[0, :, :])
    T.copy(B, b_l1[0, :, :])
    T.barrier_all()
    for kk in T.serial(2):
        # halves
        T.copy(a_l1[0, 0, kk * (block_K // 2)], a_l0)
        T.copy(b_l1[0, 0, kk * (block_K // 2)], b_l0, transpose=True)
        T.barrier_all()
        T.mma(a_l0, b_l0, c_l0, init=(kk == 0))
        T.barrier_all()
    T.copy(c_l0, workspace_1[cid * block_M, 0])
    T.set_cross_flag("FIX", 0)
"""


def test_products_of_l0() -> None:
    counted = STAGED.replace("T.serial(2)", "T.serial(T.ceildiv(block_K, block_K // 2))")
    result = part("expert", buffers=L0, cube=counted)
    assert result.complete, result.notes
    assert "# halves\n" in result.text
    assert "T.gemm_v0(a_l1[0, :, :], b_l1[0, :, :], c_l0, transpose_B=True, init=True)" in result.text
    assert "alloc_L0" not in result.text
    assert "kk" not in result.text


@pytest.mark.parametrize("cube", [
    STAGED.replace("kk * (block_K // 2)", "kk * 16"),
    STAGED.replace("T.serial(2)", "T.serial(3)"),
    STAGED.replace("        T.mma", "        T.tile.fill(c_ub, 0.0)\n        T.mma"),
])  # fmt: skip
def test_products_that_need_a_person(cube: str) -> None:
    result = part("expert", buffers=L0, cube=cube)
    assert any(note.kind == "kept" and "T.mma" in note.text for note in result.notes)
    assert "# convert: T.mma is kept" in result.text
    assert "alloc_L0A" in result.text
    assert result.text == convert(Path("kernel.py"), result.text).text


BUFFERS = """
a_l1 = T.alloc_L1((block_M, block_K), dtype)
b_l1 = T.alloc_L1((block_K, block_N), dtype)
c_l0 = T.alloc_L0C((block_M, block_N), "float32")
c_ub = T.alloc_ub((64, block_N), dtype)
d_ub = T.alloc_ub((64, block_N), dtype)
"""
SUM = "T.tile.add(c_ub, c_ub, d_ub)"
KEPT = {
    "a broadcast": ({"vector": VECTOR.replace(SUM, "T.tile.broadcast(c_ub, d_ub)")}, "broadcast"),
    "a core of its own": ({"vector": VECTOR.replace(SUM, f"if vid == 0:\n                    {SUM}")}, "vid"),
    "rows that are not halves": ({"buffers": BUFFERS}, "c_ub"),
    "another tile": ({"vector": VECTOR.replace("workspace_1[cid * block_M", "workspace_1[0")}, "different places"),
    "read twice": ({"vector": VECTOR.replace("T.copy(D[", "T.copy(workspace_1[")}, "do not fit together"),
}


@pytest.mark.parametrize("name", KEPT)
def test_workspaces_that_stay(name: str) -> None:
    """Where on-chip copies are not sure, the scopes and flags go all the same, the workspaces stay."""
    regions, reason = KEPT[name]
    result = part("expert", **regions)
    notes = {note.kind: note.text for note in result.notes}
    assert set(notes) == {"changed", "kept"}
    assert reason in notes["kept"]
    for kept in ("workspace_1: T.Tensor", "workspace_idx=[4]", "as (cid, vid)"):
        assert kept in result.text
    for gone in ("Scope", "cross_flag", "barrier", "alloc_ub"):
        assert gone not in result.text


def test_refusals() -> None:
    """Nothing is changed where the conversion would change the meaning."""
    output = VECTOR.replace("workspace_1[", "C[").replace("T.tile.add(c_ub, c_ub, d_ub)", "T.tile.silu(c_ub, d_ub)")
    cases = {
        "not called workspace": {"cube": CUBE.replace("workspace_1[", "C["), "vector": output},
        "T.sync_all": {"vector": VECTOR.replace("T.wait_cross_flag(0)", "T.sync_all()")},
        "no @tilelang.jit": {"decorator": ""},
    }
    for reason, regions in cases.items():
        source = rule_kernels.build("expert", regions)
        result = convert(Path("kernel.py"), source)
        assert [note.kind for note in result.notes] == ["skipped"], reason
        assert reason in result.notes[0].text
        assert result.text == source


@pytest.mark.parametrize("base", ["vector", "gemm", "threads", "fusion"])
def test_developer_kernels_are_left_alone(base: str) -> None:
    source = rule_kernels.build(base)
    assert convert(Path("kernel.py"), source).text == source


def test_comments_survive() -> None:
    vector = """
# before the scope
with T.Scope("V"):  # vector work
    # wait for the product
    T.wait_cross_flag(0)
    T.copy(workspace_1[cid * block_M + vid * half, 0], c_ub)  # the product
    T.copy(D[cid * block_M + vid * half, 0], d_ub)

    # all loaded
    T.barrier_all()
    T.tile.add(c_ub, c_ub, d_ub)  # sum
    if M > 0:
        # only a barrier
        T.barrier_all()
    T.copy(c_ub, C[cid * block_M + vid * half, 0]); T.barrier_all()
    # the end
"""
    text = part("expert", vector=vector).text
    for comment in ("before the scope", "wait for the product", "all loaded", "sum", "the end"):
        assert f"# {comment}" in text, comment
    for gone in ("if M > 0", "only a barrier"):
        assert gone not in text
    ast.parse(text)


def test_comments_about_flags_go_with_them() -> None:
    vector = """
with T.Scope("V"):
    # At first the buffer is free.
    T.set_flag("mte3", "v", 0)

    T.wait_cross_flag(0)
    T.copy(workspace_1[cid * block_M + vid * half, 0], c_ub)
    # --- the sum ---
    # Wait for it.
    T.barrier_all()
    # D too
    T.copy(D[cid * block_M + vid * half, 0], d_ub)
    T.tile.add(c_ub, c_ub, d_ub)
    T.copy(c_ub, C[cid * block_M + vid * half, 0])

    # Every flag that was set is waited for.
    T.wait_flag("mte3", "v", 0)
"""
    text = part("expert", vector=vector).text
    assert "Every flag" not in text
    assert "Wait for it" not in text
    assert re.search(r"# --- the sum ---\n +# D too\n +T.copy\(D", text)
    assert re.search(r"# convert: .* gone\n +# At first the buffer is free.\n", text)


def test_switches_of_a_vector_kernel() -> None:
    """In every era those of the scenario vector; the comment above the decorator stays there."""
    source = (DATA / "expert" / "vector.py").read_text(encoding="utf-8")
    source = source.replace("@tilelang.jit", "# No pass_configs: all by hand.\n\n\n# Two vector cores.\n@tilelang.jit")
    later = convert(Path("kernel.py"), source, era="strict-scope").text
    text = convert(Path("kernel.py"), source).text
    assert later.count("TL_ASCEND") == 3
    assert "TL_ASCEND_AUTO_CV_SYNC" not in later
    assert text.count("TL_ASCEND") == 2
    assert "\n}\n\n\n# Two vector cores.\n@tilelang.jit" in text
    assert "VEC_NUM = 2\n\n\npass_configs = {" in text


def test_it_says_how_to_go_on(package: Callable[..., Path], tmp_path: Path) -> None:
    """A package's scenario does not change: the converted kernel becomes a package of its own."""
    answers = {"kernel_name": "vadd", "scenario": "expert", "operator": "vector_add"}
    root = shutil.copytree(package(**answers), tmp_path / "vadd")
    done = run_harness(root, "convert")
    assert "The scenario of this package stays expert" in done.stderr
    assert f"python hooks/adopt.py {root}/src/vadd/kernel.py DESTINATION" in done.stderr
    kernel = root / "src" / "vadd" / "kernel.py"
    assert "TL_ASCEND_AUTO_CV" not in kernel.read_text()
    converted = kernel.read_text()
    rules_cli.run(projects.load(root), fix=True)
    assert kernel.read_text() == converted
    loose = tmp_path / "loose.py"
    loose.write_text(rule_kernels.build("expert"))
    assert f"To make a package of it: python hooks/adopt.py {loose}" in run_harness(root, "convert", str(loose)).stderr


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_the_command(newline: str, encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kernel.py"
    source = rule_kernels.build("expert").replace("\n", newline).encode(encoding)
    path.write_bytes(source)

    def command(*options: str) -> int:
        parser = argparse.ArgumentParser()
        convert_command.add_arguments(parser)
        return convert_command.main(parser.parse_args([str(path), *options]))

    assert command("--check") == 1
    assert path.read_bytes() == source
    capsys.readouterr()
    assert command("--dry-run") == 0
    assert "+            a_l1 = T.alloc_shared" in capsys.readouterr().out
    assert path.read_bytes() == source
    assert command("--output", str(tmp_path / "new.py")) == 0
    assert command() == 0
    assert path.read_bytes() == (tmp_path / "new.py").read_bytes() != source
    assert path.read_bytes().startswith(source[:3])
    assert (b"\r\n" in path.read_bytes()) == (newline == "\r\n")
    assert command("--check") == 0


def test_bad_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kernel.py"
    parser = argparse.ArgumentParser()
    convert_command.add_arguments(parser)
    for data, said in ((b"x = \xff\n", "not UTF-8"), (b"def f(:\n", "not valid Python"), (None, "No such file")):
        path.unlink(missing_ok=True)
        if data is not None:
            path.write_bytes(data)
        assert convert_command.main(parser.parse_args([str(path)])) == 1
        assert said in capsys.readouterr().err
    path.write_text("x = 1\n")
    assert convert_command.main(parser.parse_args([str(path)])) == 0


def test_a_long_file() -> None:
    body = VECTOR.rstrip() + "\n" + "                T.tile.add(c_ub, c_ub, 1.0)\n" * 1000
    assert part("expert", vector=body).changed
