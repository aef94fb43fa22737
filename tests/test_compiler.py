"""The compiler client: what it says of broken kernels and broken compilers, and what it caches."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.compiler import cache as caching
from harness.compiler import process
from harness.compiler.client import Compiler, CompilerError, Lowered, Request, find_compiler
from harness.compiler.origin import Origin
from harness.toolchain import layout

pytestmark = pytest.mark.network  # installs the compiler where the machine has none

GOOD = """\
import tilelang
import tilelang.language as T

pass_configs = {
    tilelang.PassConfigKey.TL_ASCEND_AUTO_SYNC: True,
    tilelang.PassConfigKey.TL_ASCEND_MEMORY_PLANNING: True,
}


@tilelang.jit(out_idx=[1], pass_configs=pass_configs)
def kernel(M=128, N=256, dtype="float16"):
    block_M = 64

    @T.prim_func
    def main(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, block_M), is_npu=True) as (cid, vid):
            a = T.alloc_ub((block_M // 2, N), dtype)
            T.copy(A[cid * block_M + vid * block_M // 2, 0], a)
            T.tile.exp(a, a)
            T.copy(a, B[cid * block_M + vid * block_M // 2, 0])

    return main
"""
EXP = "            T.tile.exp(a, a)\n"
EXP_LINE = GOOD[: GOOD.index(EXP)].count("\n") + 1
LOAD = "T.copy(A[cid * block_M + vid * block_M // 2, 0], a)"
START = "    block_M = 64\n"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Request]:
    """Writes the good kernel with one replacement and returns a request for it."""

    def write(old: str = "", new: str = "", target: str = "pto", **arguments: object) -> Request:
        assert old in GOOD
        path = tmp_path / "kernel.py"
        path.write_text(GOOD.replace(old, new) if old else GOOD, encoding="utf-8")
        return Request(path, "kernel", arguments, target, "A2")

    return write


@pytest.fixture(scope="module")
def real(isolated_home: Path) -> Iterator[Compiler]:
    """The machine's compiler with one worker for the module."""
    with find_compiler(install=True) as compiler:
        yield compiler


@pytest.fixture
def uncached(real: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """The same with an empty cache."""
    monkeypatch.setattr(real, "_cache", caching.Cache(tmp_path / "cache"))
    return real


# A good kernel.


@pytest.mark.parametrize("target", ["ascendc", "pto"])
def test_lowered_code_and_facts(uncached: Compiler, write: Callable[..., Request], target: str) -> None:
    lowered = uncached.lower(write(target=target, M=96, N=128))
    assert "main_kernel" in lowered.source
    assert [(p.dtype, p.shape) for p in lowered.parameters] == [("float16", (96, 128))] * 2
    assert (lowered.out_idx, lowered.workspace_idx, lowered.auto_workspaces) == ((1,), (), ())
    assert lowered.pass_configs == {"tl.ascend_auto_sync": True, "tl.ascend_memory_planning": True}
    (buffer,) = lowered.buffers
    assert (buffer.name, buffer.memory, buffer.address, buffer.bytes) == ("a", "UB", 0, 32 * 128 * 2)
    assert not lowered.cached
    assert 0 < lowered.seconds < 60


def test_memories_and_workspaces_of_a_mixed_kernel(uncached: Compiler, tmp_path: Path) -> None:
    from harness.compiler.worker import WARM_UP

    (tmp_path / "mixed.py").write_text(WARM_UP)
    lowered = uncached.lower(Request(tmp_path / "mixed.py", "kernel", {}, "ascendc", "A2"))
    assert {"a": "L1", "b": "L1", "c": "L0C", "d": "UB", "e": "UB"}.items() <= lowered.memories.items()
    assert lowered.size_map["c"] == 32 * 64 * 4
    assert lowered.auto_workspaces == (3,)
    assert lowered.parameters[3].dtype == "float32"


def test_symbolic_sizes(uncached: Compiler, write: Callable[..., Request]) -> None:
    lowered = uncached.lower(write(START, START + '    M = T.symbolic("M")\n'))
    assert lowered.parameters[0].shape == (-1, 256)
    assert lowered.parameters[0].symbolic == ("M", "256")


def test_inspect_reports_factories_without_calling_them(uncached: Compiler, write: Callable[..., Request]) -> None:
    request = write(START, "    raise AssertionError\n")
    (factory,) = uncached.inspect(request.path)
    assert (factory.name, factory.out_idx, factory.line) == ("kernel", (1,), 10)
    assert [(p.name, p.required, p.default) for p in factory.parameters] == [
        ("M", False, 128),
        ("N", False, 256),
        ("dtype", False, "float16"),
    ]


# Broken kernels: the message names the true line and the real cause.


@pytest.mark.parametrize(
    ("old", "new", "kind", "line", "words"),
    [
        (EXP, EXP.rstrip(")\n") + "\n", "python", EXP_LINE, "SyntaxError: '(' was never closed"),
        (EXP, EXP.replace("(a, a", "(a, missing"), "python", EXP_LINE, "Undefined variable: missing"),
        (EXP, EXP.replace("exp", "expp"), "python", EXP_LINE, "has no attribute 'expp'"),
        (EXP, EXP.replace("(a, a", "(a"), "python", EXP_LINE, "missing 1 required positional argument"),
        (LOAD, LOAD.replace(", 0]", ", 0, 0]"), "python", EXP_LINE - 1, "A is 2-dimensional, cannot be indexed with"),
        ("return main", "return mian", "python", EXP_LINE + 3, "NameError: name 'mian' is not defined"),
        ("    return main", "    pass", "python", None, "must return its @T.prim_func function, not NoneType"),
        (START, "    block_M = M // 0\n", "python", 12, "ZeroDivisionError"),
        ("AUTO_SYNC", "AUTO_SINK", "python", 5, "PassConfigKey' has no attribute 'TL_ASCEND_AUTO_SINK'"),
        ("@tilelang.jit", "import torch; x = torch.rand(2)\n@tilelang.jit", "python", 10, "lowered without PyTorch"),
        (
            "def kernel",
            "def other",
            "python",
            None,
            "no function 'kernel' decorated with @tilelang.jit; there are: other",
        ),
        ("@tilelang.jit", "raise SystemExit(3)\n@tilelang.jit", "python", 10, "ended the process (status 3)"),
        ('"float16"', '"flaot16"', "compiler", 15, "unknown type flaot16"),
        ('"float16"', '"float64"', "compiler", None, "Unsupported data type: float64"),
        (START, START + "    import os; os._exit(7)\n", "crash", None, "ended with status 7 while tracing"),
    ],
)
def test_broken_kernel(
    uncached: Compiler, write: Callable[..., Request], old: str, new: str, kind: str, line: int | None, words: str
) -> None:
    request = write(old, new)
    with pytest.raises(CompilerError) as caught:
        uncached.lower(request)
    error = caught.value
    assert error.kind == kind
    assert words in error.message
    assert "Stack trace" not in str(error)
    assert error.file == request.path
    assert error.line == line
    assert str(error).startswith(f"{request.path}:{line}: " if line else f"{request.path}: ")


@pytest.mark.parametrize("function", ["alloc_ub", "alloc_shared"])
def test_overflow_is_explained_with_figures(uncached: Compiler, write: Callable[..., Request], function: str) -> None:
    with pytest.raises(CompilerError) as caught:
        uncached.lower(write("T.alloc_ub((block_M // 2, N)", f"T.{function}((block_M * 32, N)"))
    assert caught.value.kind == "crash"
    assert "SIGSEGV while lowering kernel() for pto on A2" in caught.value.message
    assert "do not fit the on-chip memory" in caught.value.cause
    assert "UB (alloc_ub, alloc_shared): 1,048,576 bytes asked for, 196,352 there: a 1,048,576" in caught.value.cause


def test_endless_loop_ends_in_time_and_the_worker_lives(
    uncached: Compiler, write: Callable[..., Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    uncached.lower(write())
    worker = uncached._worker
    monkeypatch.setattr(uncached, "time_limit", 1.0)
    with pytest.raises(CompilerError, match=r"tracing kernel\(\).* did not end within 1 s") as caught:
        uncached.lower(write(START, "    while True:\n        pass\n"))
    assert caught.value.kind == "timeout"
    monkeypatch.setattr(uncached, "time_limit", 60.0)
    assert not uncached.lower(write(target="ascendc")).cached
    assert uncached._worker is worker


def test_arguments_must_be_plain(uncached: Compiler, write: Callable[..., Request]) -> None:
    with pytest.raises(CompilerError, match=r"must be plain values: M=<object"):
        uncached.lower(write(M=object()))
    with pytest.raises(CompilerError, match=r"unexpected keyword argument 'K'"):
        uncached.lower(write(K=1))


def test_unreadable_file(uncached: Compiler, tmp_path: Path) -> None:
    with pytest.raises(CompilerError, match=r"cannot be read: .*No such file"):
        uncached.lower(Request(tmp_path / "absent.py", "kernel", {}, "pto", "A2"))


def test_worker_that_dies_is_restarted_once(uncached: Compiler, write: Callable[..., Request]) -> None:
    uncached.lower(write())
    assert uncached._worker is not None
    os.kill(uncached._worker._process.pid, signal.SIGKILL)
    assert not uncached.lower(write(N=128)).cached


# The cache.


def test_cached_result_starts_nothing(
    uncached: Compiler, write: Callable[..., Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = uncached.lower(write())
    monkeypatch.setattr(process, "Worker", None)
    again = Compiler(uncached.origin)
    monkeypatch.setattr(again, "_cache", uncached._cache)
    began = time.perf_counter()
    second = again.lower(write())
    assert time.perf_counter() - began < 0.25
    assert second.cached
    assert vars(second) == {**vars(first), "cached": True}


def test_content_decides(uncached: Compiler, write: Callable[..., Request]) -> None:
    uncached.lower(write())
    assert uncached.lower(write()).cached
    assert not uncached.lower(write(EXP, EXP + "\n")).cached
    assert not uncached.lower(write(target="ascendc")).cached
    assert not uncached.lower(write(N=128)).cached


def test_damaged_and_unwritable_caches_do_no_harm(tmp_path: Path) -> None:
    cache = caching.Cache(tmp_path / "cache")
    cache.put("ab" * 32, {"x": 1})
    assert cache.get("ab" * 32) == {"x": 1}
    (tmp_path / "cache/ab" / f"{'ab' * 32}.json").write_text('{"x": ')
    assert cache.get("ab" * 32) is None
    (tmp_path / "file").touch()
    caching.Cache(tmp_path / "file").put("ab" * 32, {"x": 1})


def test_cache_is_bounded_and_drops_the_oldest(tmp_path: Path) -> None:
    cache = caching.Cache(tmp_path, limit=10_000)
    for number in range(30):
        cache.put(f"{number:064x}", {"x": "y" * 1000})
        os.utime(cache._path(f"{number:064x}"), (number, number))
    cache.get(f"{0:064x}")  # used just now
    cache.trim()
    left = [number for number in range(30) if cache.get(f"{number:064x}") is not None]
    assert left == [0, 24, 25, 26, 27, 28, 29]


# Ways to reach the compiler.


def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *command: object) -> None:
    monkeypatch.setenv("TILELANG_PYTHON", shlex.join(map(str, command)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty-cache"))


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "python-double"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo 'no such container' >&2; exit 3", "ended with status 3: no such container"),
        ("kill -SEGV $$", "was ended by SIGSEGV"),
        ("exec sleep 60", "did not answer within 1 s"),
        ("while :; do echo garbage; sleep 0.1; done", "did not answer within 1 s: garbage"),
        ("exec cat", "did not answer within 1 s"),
    ],
)
def test_command_that_is_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, words: str) -> None:
    monkeypatch.setattr(process, "START_LIMIT", 1.0)
    use(monkeypatch, tmp_path, script(tmp_path, text))
    with pytest.raises(CompilerError) as caught:
        find_compiler()
    assert caught.value.kind == "unavailable"
    assert words in caught.value.message
    assert "TILELANG_PYTHON" in caught.value.message


def test_command_that_does_not_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, tmp_path, "/nowhere/python")
    with pytest.raises(CompilerError, match=r"cannot start /nowhere/python: No such file"):
        find_compiler()


def test_python_without_tilelang(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, tmp_path, sys.executable)
    with pytest.raises(CompilerError, match=r"no module named 'tilelang'") as caught:
        find_compiler()
    assert caught.value.kind == "unavailable"


@pytest.fixture
def gpu_edition(tmp_path: Path) -> Path:
    """A double of PyPI's plain ``tilelang``, as far as telling it apart needs it."""
    keys = tmp_path / "gpu" / "tilelang" / "transform" / "pass_config.py"
    keys.parent.mkdir(parents=True)
    keys.write_text('class PassConfigKey:\n    TL_DISABLE_TMA_LOWER = "tl.disable_tma_lower"\n')
    (keys.parent.parent / "__init__.py").write_text("raise AssertionError('must not be imported')\n")
    return tmp_path / "gpu"


def test_gpu_edition_behind_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpu_edition: Path) -> None:
    use(monkeypatch, tmp_path, "env", f"PYTHONPATH={gpu_edition}", sys.executable)
    with pytest.raises(CompilerError, match=r"is not TileLang-Ascend.*the edition for GPUs") as caught:
        find_compiler()
    assert caught.value.kind == "wrong-package"


def test_gpu_edition_in_this_interpreter_is_passed_over(
    real: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpu_edition: Path
) -> None:
    monkeypatch.syspath_prepend(str(gpu_edition))
    monkeypatch.setenv("PYTHONPATH", str(gpu_edition))
    monkeypatch.delenv("TILELANG_PYTHON", raising=False)
    with find_compiler(install=True) as compiler:
        assert compiler.origin.name == "managed"
        assert "is not TileLang-Ascend" in compiler.describe()["passed_over"][0]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty-cache"))
    with pytest.raises(CompilerError, match=r"no TileLang-Ascend compiler on this machine\n.*for GPUs") as caught:
        find_compiler()
    assert caught.value.kind == "wrong-package"


@pytest.mark.parametrize("with_torch", [True, False])
def test_edition_that_needs_pytorch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, with_torch: bool) -> None:
    """Doubles of an edition which asks more of PyTorch than the placeholder has, and of PyTorch."""
    files = {
        "tilelang/VERSION": "9.9",
        "tilelang/transform/pass_config.py": "AUTO_SYNC = 'tl.ascend_auto_sync'",
        "tilelang/__init__.py": "import torch, types\ntorch.special\ndef disable_cache(): pass\n"
        "PassConfigKey = types.SimpleNamespace(TL_ASCEND_AUTO_SYNC='')",
        "tvm/script/parser/core/diagnostics.py": "Diagnostics = None",
        "torch.py": "special = 1" if with_torch else "raise ImportError('libhccl.so: cannot open shared object file')",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    use(monkeypatch, tmp_path, "env", f"PYTHONPATH={tmp_path}", sys.executable)
    if with_torch:
        with find_compiler() as compiler:
            assert compiler.version == "9.9"
    else:
        with pytest.raises(CompilerError, match=r"ImportError: libhccl.so: cannot open shared object file"):
            find_compiler()


def test_no_compiler_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TILELANG_PYTHON", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty-cache"))
    with pytest.raises(CompilerError, match=r"python -m harness toolchain install") as caught:
        find_compiler()
    assert caught.value.kind == "unavailable"


def test_command_on_another_machine(
    real: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, write: Callable[..., Request]
) -> None:
    """A command like ssh: its words reach a second shell, and its file system is not ours."""
    prefix = layout.installed()
    if prefix is None:
        pytest.skip("needs the managed toolchain as the other machine")
    own = {name: value for name, value in prefix.environment.items() if name.startswith(("PYTHON", "QEMU"))}
    remote = script(tmp_path, 'echo "Welcome to the other machine"\nexec sh -c "$*"')
    use(monkeypatch, tmp_path, remote, "env", *(f"{name}={value}" for name, value in own.items()), *prefix.command)
    monkeypatch.setattr(Origin, "sees", lambda self, identity: False)
    with find_compiler() as compiler:
        lowered = compiler.lower(write())
        assert "main_kernel" in lowered.source
        package = compiler.package
        assert package.is_relative_to(tmp_path)
        assert list(package.glob("src/tl_templates/pto/common.h"))
        assert list(package.glob("3rdparty/pto-isa/include/pto/*.hpp"))
    with find_compiler() as again:  # remembered: not started
        assert again.lower(write()) == Lowered(**{**vars(lowered), "cached": True})
        assert again.package == package
        assert again._worker is None


# No orphans.

CLIENT = """
import sys
from pathlib import Path
from harness.compiler.client import Request, find_compiler
with find_compiler() as compiler:
    print(compiler._start()._process.pid, flush=True)
    compiler.lower(Request(Path(sys.argv[1]), "kernel", {}, "pto", "A2"))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_client_leaves_no_process(
    real: Compiler, write: Callable[..., Request], number: signal.Signals
) -> None:
    request = write(START, "    while True:\n        pass\n")
    template = Path(process.__file__).parents[2]
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(request.path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(template)},
    )
    assert client.stdout is not None
    with client:
        group = int(client.stdout.readline())
        time.sleep(1)  # it is warming up, or in the loop
        client.send_signal(number)
        assert client.wait(10) != 0
    deadline = time.monotonic() + 20
    while group_lives(group):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
