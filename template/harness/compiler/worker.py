"""The lowering worker: a process that imports TileLang-Ascend once and answers many requests.

The client starts any Python with ``-u -m code -q`` and sends two lines; the command line then holds nothing that a
remote shell could misread, and no file has to exist on the other side::

    import sys, json; exec(json.loads(sys.stdin.readline()))
    "<a JSON string: source text that installs `boot`, `torch_placeholder` and this module, and calls `serve`>"

From there on each line is one JSON object. Lines of the worker begin with U+001E (RFC 7464), so that anything a login
shell or a library prints in between can be told apart.

The first line is the greeting: ``protocol, python, machine, package, version``, or ``protocol, error``.

Requests: ``id``, ``op``, ``time_limit`` (seconds) and, by ``op``:

========= =====================================================================================
lower     path, source, factory, arguments (keyword arguments), target, platform
inspect   path, source, platform
headers   names (folders below the package) -> ``archive``, a base64 .tar.gz
========= =====================================================================================

``source`` is the text of the kernel's file and ``path`` the name it has for the user; the worker need not be able to
open it. Answers: ``id``, ``seconds``, ``log`` (what was printed, its end) and either ``result`` or ``error`` with
``kind`` (``python``, ``compiler``, ``crash``, ``timeout``), ``message`` and where known ``line``, ``exception``,
``signal``, ``status``. After tracing, ``stage`` is ``lower`` and ``allocations`` lists the kernel's on-chip buffers
(``name, scope, bytes``), also when the compiler then crashes.

Every request runs in a fork: a crash, an endless loop or a stray global is the fork's own. The first request for a
target lowers a small kernel in the worker itself, so that what TVM sets up lazily is inherited by every later fork.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import importlib
import inspect
import io
import json
import linecache
import os
import platform as machine
import re
import select
import signal
import sys
import tarfile
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PROTOCOL = 1
LOG_LIMIT = 8000  # bytes of printed text kept of a request

# Storage scopes of lowered buffers, by the memory they stand for.
MEMORIES = {
    "shared": "UB",
    "shared.dyn": "L1",
    "wmma.matrix_a": "L0A",
    "wmma.matrix_b": "L0B",
    "wmma.accumulator": "L0C",
}

WARM_UP = """
import tilelang
import tilelang.language as T

KEYS = ("AUTO_SYNC", "MEMORY_PLANNING", "AUTO_CV_COMBINE", "AUTO_CV_SYNC")

@tilelang.jit(out_idx=[2], pass_configs={getattr(tilelang.PassConfigKey, "TL_ASCEND_" + key): True for key in KEYS})
def kernel():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float16")):
        with T.Kernel(T.ceildiv(64, 32), threads=2, is_npu=True) as (cid):
            a = T.alloc_shared((32, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((32, 64), "float32")
            d = T.alloc_shared((32, 64), "float32")
            e = T.alloc_shared((32, 64), "float16")
            row = T.alloc_shared((32, 1), "float32")
            for k in T.serial(2):
                T.copy(A[cid * 32, k * 32], a)
                T.copy(B, b)
                T.gemm_v0(a, b, c, init=(k == 0))
            T.copy(c, d)
            T.reduce_max(d, row, dim=-1)
            for i, j in T.Parallel(32, 64):
                d[i, j] = T.exp(d[i, j])
            T.copy(d, e)
            T.copy(e, C[cid * 32, 0])
    return main
"""

Json = dict[str, Any]
_diagnostics: list[tuple[int, str]] = []  # line and message of each error that TVM's parser reports in this process
_stage = "load"
_warm: set[str] = set()


def load(path: str, source: str) -> types.ModuleType:
    """Run a kernel's file from its text, under the name that the user knows."""
    # TVM reads the source back through `inspect`, which asks `linecache`; an entry without a time is never checked.
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    module = types.ModuleType("kernel_under_test")
    module.__file__ = path
    sys.modules[module.__name__] = module
    sys.argv = [path]
    exec(compile(source, path, "exec", dont_inherit=True), vars(module))
    return module


def implementation(value: Any) -> Any:
    """What ``@tilelang.jit`` keeps about a factory, also below ``@autotune``; None for anything else."""
    if isinstance(value, type):
        return None
    found = vars(value).get("__jit_impl__") if hasattr(value, "__dict__") else None
    return found if found is not None else getattr(value, "jit_impl", None) if hasattr(value, "__dict__") else None


def indices(value: Any, count: int | None = None) -> list[int]:
    """Parameter positions as a list; negative ones are resolved as the device adapter does."""
    found = [] if value is None else [value] if isinstance(value, int) else [int(item) for item in value]
    return found if count is None else [index + count if index < 0 else index for index in found]


def switches(impl: Any) -> dict[str, Any]:
    return {str(getattr(key, "value", key)): value for key, value in (impl.pass_configs or {}).items()}


def buffers(addresses: Any, sizes: Any) -> list[Json]:
    """The on-chip buffers of a lowered function: name, memory, address and size in bytes."""
    found: list[Json] = []
    for variable, size in sizes.items():
        scope, name = str(variable.type_annotation.storage_scope), str(variable.name)
        address = next((int(at) for other, at in addresses.items() if other.same_as(variable)), None)
        twins = sum(buffer["name"].split("#")[0] == name for buffer in found)
        name += f"#{twins + 1}" if twins else ""
        found.append({"name": name, "memory": MEMORIES.get(scope, scope), "address": address, "bytes": int(size)})
    return found


def allocations(prim_func: Any) -> list[Json]:
    """The on-chip buffers that a traced kernel asks for: name, storage scope, bytes; those of fixed size."""
    tvm: Any = importlib.import_module("tvm")
    found: list[Json] = []

    def visit(node: Any) -> None:
        for buffer in node.alloc_buffers if isinstance(node, tvm.tir.Block) else ():
            size = (tvm.DataType(buffer.dtype).bits + 7) // 8
            for extent in buffer.shape:
                size *= int(extent) if isinstance(extent, tvm.tir.IntImm) else 0
            found.append({"name": str(buffer.name), "scope": str(buffer.scope()), "bytes": size})

    tvm.tir.stmt_functor.post_order_visit(prim_func.body, visit)
    return found


def lower(request: Json, tell: Callable[[Json], None] = lambda _: None) -> Json:
    """Trace one factory call and generate device code; ``tell`` hears what is known before the dangerous part."""
    global _stage
    tilelang: Any = importlib.import_module("tilelang")
    tvm: Any = importlib.import_module("tvm")
    _stage = "load"
    module = load(request["path"], request["source"])
    factories = {name: impl for name, value in vars(module).items() if (impl := implementation(value)) is not None}
    impl = factories.get(request["factory"])
    if impl is None:
        known = ", ".join(sorted(factories)) or "none"
        raise LookupError(f"no function {request['factory']!r} decorated with @tilelang.jit; there are: {known}")
    _stage = "trace"
    prim_func = impl.func(**request["arguments"])
    if not isinstance(prim_func, tvm.tir.PrimFunc):
        raise TypeError(f"{request['factory']}() must return its @T.prim_func function, not {type(prim_func).__name__}")
    tell({"stage": "lower", "allocations": allocations(prim_func)})
    _stage = "lower"
    with tvm.transform.PassContext(opt_level=3, config=impl.pass_configs or {}):
        artifact = tilelang.lower(prim_func, target=request["target"], platform=request["platform"])
    attributes = dict(artifact.device_mod.functions_items()[0][1].attrs.items())
    count = len(artifact.params)
    return {
        "source": artifact.kernel_source,
        "parameters": [
            {
                "dtype": str(parameter.dtype).removeprefix("torch."),
                "shape": [size if isinstance(size, int) else str(size) for size in parameter.shape],
            }
            for parameter in artifact.params
        ],
        "out_idx": indices(impl.out_idx, count),
        "workspace_idx": indices(impl.workspace_idx, count),
        "auto_workspaces": indices(attributes.get("auto_gm_indices")),
        "pass_configs": switches(impl),
        "buffers": buffers(attributes.get("address_map", {}), attributes.get("size_map", {})),
    }


def inspect_file(request: Json, _: Callable[[Json], None]) -> Json:
    """Describe the factories of a file without calling them."""
    module = load(request["path"], request["source"])
    described = []
    for name, value in vars(module).items():
        impl = implementation(value)
        if impl is None or impl.func.__module__ != module.__name__:
            continue
        described.append(
            {
                "name": name,
                "line": impl.func.__code__.co_firstlineno,
                "parameters": [
                    {
                        "name": parameter.name,
                        "required": parameter.default is parameter.empty,
                        "default": plain(None if parameter.default is parameter.empty else parameter.default),
                    }
                    for parameter in inspect.signature(impl.func).parameters.values()
                ],
                "out_idx": indices(impl.out_idx),
                "workspace_idx": indices(impl.workspace_idx),
                "pass_configs": switches(impl),
                "target": str(impl.target),
                "platform": str(impl.platform),
            }
        )
    return {"factories": described}


def plain(value: Any) -> Any:
    """A value that JSON can carry; others as their text."""
    return value if isinstance(value, (int, float, str, bool, type(None))) else repr(value)


def headers(request: Json, _: Callable[[Json], None]) -> Json:
    """Pack folders of the package, for a client that cannot see this file system."""
    package = Path(importlib.import_module("tilelang").__file__ or "").parent
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=6) as archive:
        for name in request["names"]:
            if (package / name).exists():
                archive.add(package / name, arcname=name)
    return {"archive": base64.b64encode(packed.getvalue()).decode()}


OPERATIONS: dict[str, Callable[[Json, Callable[[Json], None]], Json]] = {
    "lower": lower,
    "inspect": inspect_file,
    "headers": headers,
}


def chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and those it was raised from or while handling, outermost first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def explain(error: BaseException, path: str) -> Json:
    """The innermost cause of a failure, and the line of the user's file where it happened.

    TVM's parser wraps what goes wrong inside a kernel's body in an error of its own printer; the cause is innermost.
    """
    errors = list(chain(error))
    cause = errors[-1]
    name = type(cause).__name__
    internal = type(cause).__module__.startswith("tvm") or name == "DiagnosticError"
    line, message = None, essence(str(cause))
    if isinstance(cause, SyntaxError) and cause.filename == path:
        line, message = cause.lineno, f"{cause.msg}: {(cause.text or '').strip()}" if cause.text else cause.msg
    elif _diagnostics:
        line, told = _diagnostics[0]
        if internal:
            message, internal = essence(told), False
            name = "" if message == told.strip() else name
    if line is None:
        line = next(
            (
                frame.lineno
                for one in reversed(errors)
                for frame in reversed(traceback.extract_tb(one.__traceback__))
                if frame.filename == path
            ),
            None,
        )
    if isinstance(cause, SystemExit):
        name, message = "SystemExit", f"the kernel's file ended the process (status {cause.code})"
    kind = "compiler" if internal or _stage == "lower" else "python"
    return {"kind": kind, "message": message, "exception": name, "line": line}


def essence(text: str) -> str:
    """A message of TVM without its stack trace, time stamps and the paths of its C++ source files."""
    if text.startswith("Traceback"):
        text = re.split(r'\n  File "[^"]*", line \d+\n', text)[-1]
    text = text.split("Stack trace:")[0].strip()
    text = re.split(r"\[\d\d:\d\d:\d\d\] \S+:\d+: ", text)[-1]
    return re.sub(r"^(InternalError|TVMError|ValueError): ", "", text).strip()


def listen() -> None:
    """Note the errors of TVM's parser where they arise: later only the failure of its printer is left of them."""
    diagnostics: Any = importlib.import_module("tvm.script.parser.core.diagnostics")
    original = getattr(diagnostics.Diagnostics, "error", None)
    if original is None:
        return

    def error(self: Any, node: Any, message: str) -> Any:
        offset = getattr(self.source, "start_line", 1) - 1
        _diagnostics.append(((getattr(node, "lineno", None) or 1) + offset, str(message)))
        return original(self, node, message)

    diagnostics.Diagnostics.error = error


def warm_up(target: str, platform: str) -> None:
    """Lower a small kernel once per target in this process."""
    if target in _warm:
        return
    _warm.add(target)
    request = {"path": "<warm-up>", "source": WARM_UP, "factory": "kernel", "arguments": {}}
    with contextlib.suppress(Exception):  # another edition may refuse this kernel; requests are then only slower
        lower({**request, "target": target, "platform": platform})
    _diagnostics.clear()


def child(request: Json, pipe: int, log: int) -> None:
    """Do the request in this fork, write the answer and end."""
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the worker
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["TL_PLATFORM"] = request.get("platform", "A2")

    def tell(message: Json) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(pipe, data) :]

    try:
        tell({"result": OPERATIONS[request["op"]](request, tell)})
    except BaseException as error:
        tell({"error": explain(error, request.get("path", ""))})
    os._exit(0)


def collect(pipe: int, seconds: float) -> tuple[bytes, bool]:
    """Read a fork's answer until it ends; the flag tells whether the time was enough. Ends with the client."""
    data, deadline = b"", time.monotonic() + seconds
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    poll.register(0, 0)  # reports only that the client has gone
    while (left := deadline - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(left * 1000):
            if descriptor == 0:
                raise EOFError
            block = os.read(pipe, 1 << 16)
            if not block:
                return data, True
            data += block
    return data, False


def answer(request: Json) -> Json:
    """Run one request in a fork and turn whatever becomes of it into data."""
    if request["op"] == "lower":
        warm_up(request["target"], request["platform"])
    began = time.monotonic()
    with tempfile.TemporaryFile() as log:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            child(request, writer, log.fileno())
        os.close(writer)
        data, finished = b"", False
        try:
            data, finished = collect(reader, request["time_limit"])
        finally:
            if not finished:
                os.kill(pid, signal.SIGKILL)
            os.close(reader)
            _, status = os.waitpid(pid, 0)
        log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_LIMIT))
        text = log.read().decode(errors="replace")
    reply: Json = {}
    for line in data.split(b"\n")[:-1]:
        reply.update(json.loads(line))
    if not finished:
        reply["error"] = {"kind": "timeout", "message": f"no result after {request['time_limit']:g} s"}
    elif os.WIFSIGNALED(status):
        reply["error"] = {"kind": "crash", "message": "", "signal": os.WTERMSIG(status)}
    elif "result" not in reply and "error" not in reply:
        reply["error"] = {"kind": "crash", "message": "", "status": os.WEXITSTATUS(status)}
    return {**reply, "seconds": round(time.monotonic() - began, 3), "log": text}


def serve(placeholder: types.ModuleType | None) -> None:
    """Greet the client and answer its requests until it closes the connection."""
    boot: Any = sys.modules["boot"]
    output = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what libraries print must not mix with answers
    hello: Json = {"protocol": PROTOCOL, "python": machine.python_version(), "machine": machine.machine()}
    try:
        hello["package"] = str(boot.locate())
        boot.prepare(placeholder)
        listen()
        hello["version"] = boot.version(Path(hello["package"]))
    except boot.NotAscend as error:
        hello["error"] = {"kind": "wrong-package", "message": str(error)}
    except BaseException as error:
        hello["error"] = {"kind": "unavailable", "message": "".join(traceback.format_exception_only(error)).strip()}

    def send(message: Json) -> None:
        output.write("\x1e" + json.dumps(message) + "\n")
        output.flush()

    send(hello)
    try:
        while line := sys.stdin.readline():
            request = json.loads(line)
            send({"id": request["id"], **answer(request)})
    except (EOFError, BrokenPipeError):
        pass
    os._exit(0)  # nothing to tidy, and TVM is slow to
