"""Adopting kernels: what is read from a file, what is written, what is refused, and what updates leave alone."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import adopt
import projects
import repository
from adoption.description import Describer, Description
from adoption.kernel_file import kernel_file
from adoption.problem import CannotAdopt
from adoption.reading import choose, read
from conftest import run_harness

DATA = Path(__file__).parent / "data"
Package = Callable[..., Path]

# A kernel as people write them: options, switches, a factory, a test run at the end.
FILE = '''\
# Copyright of somebody.
"""Twice a tensor."""

import argparse
import math

import tilelang
import tilelang.language as T
import torch

tilelang.cache.clear_cache()

parser = argparse.ArgumentParser()
parser.add_argument("--m", type=int, default=96)
parser.add_argument("--row-length", type=int, default=192)
args = parser.parse_args()

VEC_NUM = 2  # vector cores
pass_configs = {tilelang.PassConfigKey.TL_ASCEND_AUTO_SYNC: True}
pass_configs[tilelang.PassConfigKey.TL_ASCEND_MEMORY_PLANNING] = True


def helper(n):
    return n // VEC_NUM


# What doubles.
@tilelang.jit(out_idx=[1], pass_configs=pass_configs)
def double(M, N, block_M, block_N=64, dtype="float32"):
    rows = helper(block_M)
    n_num = T.ceildiv(N, block_N)

    @T.prim_func
    def main(
        X: T.Tensor((M, N), dtype),
        Y: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(M, block_M) * n_num, is_npu=True) as (cid, vid):
            row = cid // n_num * block_M + vid * rows
            x = T.alloc_shared((rows, block_N), dtype)
            y = T.alloc_shared((rows, block_N), dtype)
            T.copy(X[row, cid % n_num * block_N], x)
            T.tile.add(y, x, x)
            T.copy(y, Y[row, cid % n_num * block_N])

    return main


def run(M, N):
    func = double(M, N, 32)
    x = torch.randn(M, N).npu()
    torch.testing.assert_close(func(x), 2 * x)


if __name__ == "__main__":
    run(args.m, args.row_length)
    run(64, 128)
    print(math.pi, "Kernel Output Match!")
'''


def write(tmp_path: Path, text: str = FILE, name: str = "double_it.py") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def describe(path: Path, factory: str | None = None, **given: Any) -> Description:
    module = read(path)
    return Describer(module, choose(module, factory), given, {}, adopt.read_catalog(), None).describe()


def refusal(path: Path, factory: str | None = None, **given: Any) -> str:
    with pytest.raises(CannotAdopt) as caught:
        describe(path, factory, **given)
    return str(caught.value)


# What is read.


def test_what_is_read(tmp_path: Path) -> None:
    found = describe(write(tmp_path))
    assert (found.entry, found.dtype) == ("double", "float32")
    assert [(t.name, t.host, [dim.text for dim in t.dims]) for t in found.inputs] == [("X", "x", ["M", "N"])]
    assert [t.name for t in found.outputs] == ["Y"]
    assert found.arguments == ["M", "N"]
    assert [(option.name, option.value) for option in found.options] == [("block_M", 32)]


def test_problems_come_from_the_calls_in_the_file(tmp_path: Path) -> None:
    """Through argparse, a function's parameters, and with tails where sizes are only rounded up."""
    found = [(p.level, dict(p.sizes)) for p in describe(write(tmp_path)).problems]
    assert found == [("l0", {"M": 96, "N": 192}), ("l0", {"M": 64, "N": 128}), ("l1", {"M": 65, "N": 129})]


CALLS = {
    "loop": "for M, N in [(32, 64), (48, 80)]:\n    double(M, N, 32)",
    "table": "SIZES = [(32, 64), (48, 80)]\nfor size in SIZES:\n    double(*size, block_M=32)",
    "pytest": (
        "import pytest\n@pytest.mark.parametrize('M, N', [(32, 64), (48, 80)])\n"
        "def test(M, N):\n    double(M, N, block_M=32)"
    ),
    "wrapper": "def call(N, M=32):\n    return double(M, N, 32)\ncall(64)\ncall(80, M=48)",
    "enumerate": (
        "for i, (M, N) in enumerate([(32, 64), (48, 80)], 1):\n    double(M, N, block_M=32)\n"
        "double(1 << 16, 1 << 16, block_M=32)  # too large to be tried\ndouble(0, 64, block_M=32)"
    ),
    "tensor": (
        "def call(x):\n    M, N = x.shape\n    return double(M, N, 32)\n"
        "call(torch.randn(32, 64).half().npu())\nx = torch.zeros((48, 80), dtype=torch.half)\ncall(x)"
    ),
    "known options": (
        "def main():\n    parser.add_argument('-n', default=0)\n    args, rest = parser.parse_known_args()\n"
        "    N = args.n or 64\n"
        "    double(32, N, 32)\n    N = 80\n    double(48, N, 32)\n"
    ),
    "dictionary": "double(**{'M': 32, 'N': 64}, block_M=32)\ndouble(M=48, N=80, block_M=32)",
}


@pytest.mark.parametrize("text", CALLS.values(), ids=CALLS)
def test_calls(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, FILE[: FILE.index("def run(M, N):")] + text + "\n")
    found = [dict(problem.sizes) for problem in describe(path).problems if problem.level == "l0"]
    assert found == [{"M": 32, "N": 64}, {"M": 48, "N": 80}]


SPELLINGS = {
    "from": ("import tilelang.language as T", "from tilelang import language as T"),
    "jit": ("@tilelang.jit(", "from tilelang import jit\n@jit("),
    "alias": ("import tilelang\nimport tilelang.language as T", "import tilelang as tilelang, tilelang.language as T"),
    "other name": ("double", "Double"),
    "symbolic": ("    rows = helper", "    M = T.symbolic('M')\n    rows = helper"),
}


@pytest.mark.parametrize(("old", "new"), SPELLINGS.values(), ids=SPELLINGS)
def test_spellings(tmp_path: Path, old: str, new: str) -> None:
    found = describe(write(tmp_path, FILE.replace(old, new)))
    assert [t.name for t in found.inputs] == ["X"]
    assert found.scenario.scenario == "vector"


def test_decorated_after_the_fact(tmp_path: Path) -> None:
    head, tail = FILE.split("@tilelang.jit(out_idx=[1], pass_configs=pass_configs)\n")
    definition, _ = tail.split("def run(M, N):")
    text = head + definition + "fast = tilelang.jit(out_idx=[1], pass_configs=pass_configs)(double)\nfast(32, 64, 32)\n"
    path = write(tmp_path, text)
    found = describe(path)
    assert found.entry == "fast"
    assert found.scenario.scenario == "vector"
    module = read(path)
    kernel = kernel_file(module, choose(module, None), "double_it")
    assert "(double)\n" in kernel.text
    assert kernel.text.endswith("\ndouble_it = fast\n")


def test_dimensions_that_are_computed(tmp_path: Path) -> None:
    text = FILE.replace(
        "X: T.Tensor((M, N), dtype)", "X: T.Tensor((M, N), dtype), H: T.Tensor([T.ceildiv(N, 2), VEC_NUM], 'int8')"
    )
    found = describe(write(tmp_path, text.replace("out_idx=[1]", "out_idx=[2]")))
    assert [(dim.text, dim.kind) for dim in found.inputs[1].dims] == [("-(-N // 2)", "expression"), ("2", "number")]


def test_symbolic_sizes_are_read_off_the_tensors(tmp_path: Path) -> None:
    text = FILE.replace("def double(M, N, block_M", "def double(N, block_M").replace(
        "rows = helper", "M = T.symbolic('m')\n    rows = helper", 1
    )
    found = describe(write(tmp_path, text[: text.index("def run(M, N):")]), N=64, block_M=32)
    assert (found.sizes, found.arguments) == (["M", "N"], ["N"])
    assert any("M is symbolic" in note for note in found.notes)


@pytest.mark.parametrize("scenario", ["vector", "gemm", "flash_attention", "cv_fusion", "mixed", "expert"])
def test_scenarios(package: Package, scenario: str) -> None:
    """Every starter is found to belong where the catalog has it."""
    for operator, record in repository.catalog()["operators"][scenario].items():
        root = package(kernel_name=repository.NAME, scenario=scenario, operator=operator)
        if "switches" not in record:
            module = read(root / f"src/{repository.NAME}/kernel.py")
            factory = choose(module, None)
            known = {"causal": 0} | sizes_of(root)
            given = {p.arg: known[p.arg] for p in factory.parameters if p.arg in known}
            described = Describer(module, factory, given, {}, adopt.read_catalog(), None).describe()
            assert described.scenario.scenario == scenario, operator
            assert described.scenario.era == "0.1.4"


def sizes_of(root: Path) -> dict[str, Any]:
    stored = tomllib.loads((root / "harness/project.toml").read_text(encoding="utf-8"))
    return dict(stored["shape"])


# What is written.


def test_the_kernel_file_keeps_what_the_factory_needs(tmp_path: Path) -> None:
    path = write(tmp_path)
    module = read(path)
    text = kernel_file(module, choose(module, None), "double").text
    kept = FILE[FILE.index("VEC_NUM = 2") : FILE.index("def run(M, N):")].rstrip()
    assert kept in text
    assert text.startswith('# Copyright of somebody.\n"""Twice a tensor."""\n')
    for gone in ("import torch", "import argparse", "clear_cache", "parse_args", "import math", "print(", "__main__"):
        assert gone not in text, gone
    assert "# adopt left out lines 49-58 of double_it.py: run\n" in text


@pytest.fixture
def take(plain_template: Path, tmp_path: Path) -> Callable[..., Path]:
    """Adopts a file without the check; returns the package."""

    def run(path: Path, *arguments: str) -> Path:
        destination = tmp_path / "package"
        command = [str(path), str(destination), "--template", str(plain_template), "-d", "compile_check=off"]
        assert adopt.main([*command, *arguments]) == adopt.NOT_CHECKED
        return destination

    return run


@pytest.mark.parametrize(
    ("file", "name", "sizes"),
    [
        ("expert/gemm", "matmul", "M N K"),
        ("expert/attention", "attention", "heads seq_len dim"),
        ("developer/fused", "matmul_add", "M N K"),
        ("developer/softmax", "softmax", "M N"),
    ],
)
def test_the_package_is_complete_and_lint_free(take: Callable[..., Path], file: str, name: str, sizes: str) -> None:
    root = take(DATA / f"{file}.py", *(f"--argument={size}=128" for size in sizes.split()))
    for path in [*root.glob("src/*/*.py"), root / "tests/spec.py"]:
        ast.parse(path.read_text(encoding="utf-8"))
    checked = ["src", "tests"]
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise", *checked]
    command += ["--extend-exclude", "kernel.py"]  # the user's own
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert projects.answers_of(root)["operator"] == "adopted"
    assert projects.answers_of(root)["kernel_name"] == name
    document = json.loads(run_harness(root, "check", "--json").stdout)
    rungs = {rung["rung"]: rung["status"] for rung in document["rungs"]}
    assert (document["project"]["operator"], rungs["parsed"]) == ("", "passed")


def test_level_0_fails_and_says_what_to_write(take: Callable[..., Path], tmp_path: Path) -> None:
    root = take(write(tmp_path))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"TILELANG_PYTHON": "false"}  # also where there is no compiler
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--level", "l0"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert "src/double/reference.py:" in done.stdout
    assert "golden reference of double is to be written: return Y [M, N]" in done.stdout
    assert "Test Passed!" not in done.stdout


def test_inputs_are_checked(take: Callable[..., Path], tmp_path: Path) -> None:
    """Level 2 and the error cases of the proposed spec hold as they are."""
    root = take(write(tmp_path))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--level", "l2"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_package_that_lost_its_kernel_says_so(plain_template: Path, tmp_path: Path) -> None:
    root = repository.render(plain_template, tmp_path / "lost", {"kernel_name": "lost", "operator": "adopted"})
    spec = importlib.util.spec_from_file_location("lost", root / "src/lost/__init__.py")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ImportError, match="bring it back from git"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


# What is refused.

REFUSED: dict[str, tuple[str, str]] = {
    "syntax error": (FILE.replace("def helper(n):", "def helper(n:"), "not valid Python"),
    "no kernel": ("import torch\n", "no @T.prim_func anywhere"),
    "empty": ("", "no kernel"),
    "star import": ("from tilelang.language import *\n@prim_func\ndef main(): ...\n", "import *"),
    "not inside": ("import tilelang\n@tilelang.jit\ndef f():\n    return g()\n", "no @T.prim_func in it"),
    "no factory": (
        "import tilelang.language as T\n@T.prim_func\ndef main(A: T.Tensor((4,), 'int8')): ...\n",
        "a prim_func without a factory",
    ),
    "not decorated": (
        FILE.replace("@tilelang.jit(out_idx=[1], pass_configs=pass_configs)\n", ""),
        "it has no @tilelang.jit",
    ),
    "nested": (
        "def outer(n):\n" + "".join(f"    {line}\n" for line in FILE[FILE.index("import tilelang\n") :].splitlines()),
        "because it is defined inside outer (line 1)",
    ),
    "no value": (
        FILE[: FILE.index("def run(M, N):")],
        "--argument M=VALUE --argument N=VALUE --argument block_M=VALUE",
    ),
    "star arguments": (FILE.replace("block_M, block_N=64, dtype", "block_M, *block_N, dtype"), "*block_N"),
    "shape at run time": (FILE.replace("X: T.Tensor((M, N)", "X: T.Tensor(shape(M)"), "--shape X="),
    "type at run time": (FILE.replace("X: T.Tensor((M, N), dtype", "X: T.Tensor((M, N), kind(M)"), "element type of X"),
    "outputs at run time": (FILE.replace("out_idx=[1]", "out_idx=places()"), "can't tell out_idx"),
    "index out of range": (FILE.replace("out_idx=[1]", "out_idx=[7]"), "names parameter 7, the kernel has 2"),
    "no annotation": (FILE.replace("X: T.Tensor((M, N), dtype)", "X"), "can't tell what to pass for X"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(tmp_path: Path, text: str, message: str) -> None:
    said = refusal(write(tmp_path, text))
    assert message in said
    assert "double_it.py" in said
    assert "What to do: " in said


def test_arguments_that_do_not_exist(tmp_path: Path) -> None:
    assert "no parameter block_X of double; there are: M, N, block_M" in refusal(write(tmp_path), block_X=3)


def test_sizes_that_are_none(tmp_path: Path) -> None:
    path = write(tmp_path, FILE[: FILE.index("def run(M, N):")] + "double(0, 64, 32)\n")
    assert "M=0: no size" in refusal(path)
    assert dict(describe(path, M=96).problems[0].sizes) == {"M": 96, "N": 64}


def test_a_package_has_one_element_type(tmp_path: Path) -> None:
    """What decides it is no option; calls with another type are left out."""
    calls = "double(32, 64, 32, dtype='float16')\ndouble(48, 80, 32, dtype='float16')\ndouble(1, 2, 32)\n"
    found = describe(write(tmp_path, FILE[: FILE.index("def run(M, N):")] + calls))
    assert (found.dtype, [option.name for option in found.options]) == ("float16", ["block_M"])
    assert [(option.name, option.value) for option in found.constants] == [("dtype", "float16")]
    assert [dict(p.sizes) for p in found.problems if p.level == "l0"] == [{"M": 32, "N": 64}, {"M": 48, "N": 80}]
    assert "calls with other element types are left out: a package has one" in found.notes


def test_problems_that_are_too_large(tmp_path: Path) -> None:
    path = write(tmp_path, FILE[: FILE.index("def run(M, N):")] + "double(1 << 16, 1 << 14, 32)\n")
    assert any("take 8.0 GiB; smaller: --argument for M, N" in note for note in describe(path).notes)


def test_names_that_the_package_uses_itself(tmp_path: Path) -> None:
    text = FILE.replace("block_M", "device")
    assert "the package's own code uses the name device" in refusal(write(tmp_path, text))


def test_float8_is_for_the_chip_that_has_it(plain_template: Path, tmp_path: Path) -> None:
    path = write(tmp_path, FILE.replace('dtype="float32"', 'dtype="e4m3_float8"'))
    command = [str(path), str(tmp_path / "package"), "--template", str(plain_template), "-d", "compile_check=off"]
    assert adopt.main(command) == adopt.NOT_CHECKED
    answers = projects.answers_of(tmp_path / "package")
    assert (answers["dtype"], answers["platform"], answers["backend"]) == ("float8_e4m3", "A5", "pto")


def test_macros(tmp_path: Path) -> None:
    """A macro at the top level comes along; what it does decides on the scenario."""
    macro = '@T.macro\ndef flag():\n    T.set_cross_flag("MTE3", 0)\n\n\n'
    text = FILE.replace("# What doubles.", macro + "# What doubles.").replace(
        "T.copy(y, ", "flag()\n            T.copy(y, "
    )
    path = write(tmp_path, text)
    module = read(path)
    assert macro.rstrip() in kernel_file(module, choose(module, None), "double").text
    inside = FILE.replace(
        "    @T.prim_func", "    @T.macro\n    def flag():\n        T.set_cross_flag('MTE3', 0)\n\n    @T.prim_func"
    )
    inside = inside.replace(
        "pass_configs = {", "pass_configs = {tilelang.PassConfigKey.TL_ASCEND_MEMORY_PLANNING: True, "
    )
    inside = inside.replace("pass_configs[tilelang.PassConfigKey.TL_ASCEND_MEMORY_PLANNING] = True\n", "")
    found = describe(write(tmp_path, inside.replace("T.copy(y, ", "flag()\n            T.copy(y, ")))
    assert found.scenario.scenario == "mixed"


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "latin.py"
    path.write_bytes(FILE.replace("Twice", "Zweimal für", 1).encode("latin-1"))
    assert "latin.py:2: not UTF-8: byte 0xfc" in refusal(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "gone.py")


def test_several_factories(tmp_path: Path) -> None:
    second = FILE[FILE.index("# What doubles.") : FILE.index("def run(M, N):")].replace("def double", "def twice")
    path = write(tmp_path, FILE + second + "twice(32, 64, 32)\n")
    said = refusal(path)
    assert "2 kernel factories: double (line 29), twice (line 61)" in said
    assert "--factory NAME" in said
    assert describe(path, "twice").entry == "twice"
    assert "no kernel factory other" in refusal(path, "other")


def test_switches_that_are_made_at_run_time(tmp_path: Path) -> None:
    """They are no reason to refuse: the kernel's form decides, and the package says what it could not tell."""
    found = describe(write(tmp_path, FILE.replace("pass_configs=pass_configs", "pass_configs=make(3)")))
    assert found.scenario.scenario == "vector"
    assert any(
        "can't tell which switches double uses, because pass_configs is built at run time" in n for n in found.notes
    )


def test_a_factory_without_arguments(tmp_path: Path) -> None:
    text = FILE.replace(
        'def double(M, N, block_M, block_N=64, dtype="float32"):',
        "def double():\n    M, N, block_M, block_N, dtype = 64, 128, 32, 64, 'float32'",
    )
    found = describe(write(tmp_path, text[: text.index("def run(M, N):")]))
    assert [[dim.text for dim in t.dims] for t in found.inputs] == [["64", "128"]]
    assert (found.arguments, found.options, [p.sizes for p in found.problems]) == ([], [], [{}])


def test_long_files(tmp_path: Path) -> None:
    filler = "".join(f"def unused_{i}(x):\n    return x + {i}\n\n\n" for i in range(1300))
    path = write(tmp_path, FILE.replace("# What doubles.", filler + "# What doubles."))
    module = read(path)
    text = kernel_file(module, choose(module, None), "double").text
    assert len(path.read_text(encoding="utf-8").splitlines()) > 5000
    assert "unused_7" not in text.replace("unused_0, unused_1, unused_2, unused_3, unused_4, unused_5", "")
    assert describe(path).arguments == ["M", "N"]


def test_what_another_file_holds(tmp_path: Path) -> None:
    path = write(tmp_path, FILE.replace("def helper(n):\n    return n // VEC_NUM", "from .shared import helper"))
    module = read(path)
    with pytest.raises(CannotAdopt, match="needs helper from another file"):
        kernel_file(module, choose(module, None), "double")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kernel-name", "Double It"], "is not a snake_case identifier"),
        (["--kernel-name", "max"], "is a Python builtin"),
        (["--kernel-name", "helper"], "the name helper is taken here"),
        (["-d", "platform=A7"], "platform"),
        (["--shape", "X=-1"], "is no shape"),
    ],
)
def test_refused_answers(plain_template: Path, tmp_path: Path, capsys: Any, arguments: list[str], message: str) -> None:
    destination = tmp_path / "package"
    command = [str(write(tmp_path)), str(destination), "--template", str(plain_template), *arguments]
    assert adopt.main(command) == adopt.REFUSED
    assert message in capsys.readouterr().err
    assert not destination.exists()


def test_a_destination_that_exists(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/mine.txt").write_text("mine")
    assert adopt.main([str(write(tmp_path)), str(tmp_path / "package")]) == adopt.REFUSED
    assert "exists already" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "package").iterdir()] == ["mine.txt"]


def test_usage() -> None:
    with pytest.raises(SystemExit) as caught:
        adopt.main(["only-one-argument"])
    assert caught.value.code == adopt.REFUSED


# The whole line, with the compiler.

MIXED = """

func = matmul_add(128, 128, 192)
"""


def mixed_kernel(package: Package) -> str:
    root = package(kernel_name="fused", scenario="mixed", operator="matmul_add")
    return (root / "src/fused/kernel.py").read_text(encoding="utf-8") + "\n\nfunc = fused(128, 256, 192)\n"


WHOLE: dict[str, tuple[str, str]] = {
    "vector": ("vector", ""),
    "gemm": ("gemm", "\n\nfunc = matmul(128, 256, 192)\n"),
    "attention": ("expert", "\n\nfunc = attention(2, 128, 64)\n"),
    "mixed": ("mixed", ""),
}


@pytest.mark.ladder
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("name", WHOLE)
def test_climbs_to_lowered_at_once(name: str, package: Package, plain_template: Path, tmp_path: Path) -> None:
    scenario, calls = WHOLE[name]
    text = {
        "vector": FILE,
        "gemm": (DATA / "developer/gemm.py").read_text(encoding="utf-8") + calls,
        "attention": (DATA / "expert/attention.py").read_text(encoding="utf-8") + calls,
        "mixed": mixed_kernel(package),
    }[name]
    destination = tmp_path / "package"
    command = [sys.executable, str(repository.ROOT / "hooks/adopt.py"), str(write(tmp_path, text)), str(destination)]
    command += ["--template", str(plain_template), "-d", "create_venv=no"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode in (adopt.ADOPTED, adopt.FAILED), done.stdout + done.stderr
    assert f": {scenario} (" in done.stdout
    document = json.loads(run_harness(destination, "check", "--json", "--require", "lowered").stdout)
    rungs = {rung["rung"]: rung for rung in document["rungs"]}
    assert document["project"]["scenario"] == scenario
    assert rungs["lowered"]["status"] == "passed", rungs["lowered"]
    assert rungs["simulated"]["status"] == "not run"
    assert "is to be written" in rungs["simulated"]["summary"]
    # With the golden written, the package climbs on.
    if name == "vector":
        reference = destination / "src/double/reference.py"
        body = reference.read_text(encoding="utf-8").split("    raise NotImplementedError(")[0]
        reference.write_text(body + "    return 2.0 * x\n", encoding="utf-8")
        document = json.loads(run_harness(destination, "check", "--json", "--require", "simulated").stdout)
        assert document["exit"] == 0, document


# Updates.


@pytest.mark.update
def test_an_update_leaves_an_adopted_package_alone(git_template: Path, tmp_path: Path) -> None:
    """What is owned stays byte for byte, managed files come along, and the answers stay those of an adopted package."""
    template = tmp_path / "template"
    subprocess.run(["git", "clone", "--quiet", str(git_template), str(template)], check=True)
    project = tmp_path / "project"
    command = [str(write(tmp_path)), str(project), "--template", str(template), "--vcs-ref", repository.VERSION]
    assert adopt.main([*command, "-d", "compile_check=off", "-d", "create_venv=no"]) == adopt.NOT_CHECKED
    repository.commit_all(project, "Adopted")
    before = projects.files(project)
    (template / "template/benchmarks/bench.py").write_text("# newer\n", encoding="utf-8")
    for name in ("kernel.py", "reference.py", "__init__.py"):
        (template / "template/src/{{kernel_name}}" / f"{name}.jinja").write_text("# newer\n", encoding="utf-8")
    repository.commit_all(template, "Newer", "100.0.0")
    projects.update(project, "100.0.0")
    after = projects.files(project)
    assert after["benchmarks/bench.py"] == b"# newer\n"
    changed = {path for path in before if before[path] != after[path]}
    assert changed == {"benchmarks/bench.py", projects.ANSWERS}
    answers = projects.answers_of(project)
    assert (answers["operator"], answers["_commit"]) == ("adopted", "100.0.0")
    assert not repository.git(project, "ls-files", "--unmerged")
    projects.commit(project)
    projects.update(project, "100.0.0", data={"platform": "A3"})
    assert projects.answers_of(project)["platform"] == "A3"
    assert projects.files(project)["src/double/kernel.py"] == before["src/double/kernel.py"]
