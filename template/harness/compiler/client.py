"""Lowering kernels with the real TileLang-Ascend compiler, wherever it is on this machine.

The compiler is the first that is there of: ``TILELANG_PYTHON`` (any command line that starts a Python which can import
TileLang-Ascend), the current interpreter, the managed toolchain. It runs in a `process.Worker`; results are cached by
content, and a cached result starts nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.compiler import process
from harness.compiler.cache import Cache, digest, user_cache
from harness.compiler.errors import CompilerError, explained
from harness.compiler.lowered import Buffer, Factory, Lowered, Parameter, Request
from harness.compiler.origin import Identity, Origin, candidates, fetch_headers

__all__ = ["Buffer", "Compiler", "CompilerError", "Factory", "Lowered", "Parameter", "Request", "find_compiler"]

TIME_LIMIT = 60.0  # seconds for one request
INSTALL = "python -m harness toolchain install"


def find_compiler(*, install: bool = False, time_limit: float = TIME_LIMIT) -> Compiler:
    """Finds a usable compiler; starts it only where nothing is known about it yet.

    Args:
        install: Install the managed toolchain where there is no compiler.
        time_limit: Seconds for one request.

    Raises:
        CompilerError: ``unavailable`` or ``wrong-package``, with what to do.
    """
    problems: list[CompilerError] = []
    for origin in candidates(install=install):
        compiler = Compiler(origin, time_limit=time_limit)
        try:
            compiler.identity()
        except CompilerError as error:
            compiler.close()
            if origin.name == "TILELANG_PYTHON":
                raise  # asked for by name: another compiler would be a surprise
            problems.append(error)
        else:
            compiler.passed_over = tuple(problem.message for problem in problems)
            return compiler
    told = "".join(f"\n{problem.message}" for problem in problems)
    raise CompilerError(
        problems[0].kind if problems else "unavailable",
        f"no TileLang-Ascend compiler on this machine{told}",
        cause=f"`{INSTALL}` installs one (or set TILELANG_PYTHON to a Python that has it)",
    )


class Compiler:
    """A compiler that can be asked for lowered code. Starts its worker with the first request that needs it.

    Usable from several threads, which then take turns. Ends its worker with `close`, as a context manager, or with
    the process.
    """

    def __init__(self, origin: Origin, *, time_limit: float = TIME_LIMIT) -> None:
        self.origin, self.time_limit = origin, time_limit
        self.passed_over: tuple[str, ...] = ()
        self._cache = Cache(user_cache() / "lowered")
        self._identity: Identity | None = None
        self._worker: process.Worker | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the worker; a later request starts another."""
        worker, self._worker = self._worker, None
        atexit.unregister(self.close)
        if worker is not None and self._owner == os.getpid():
            worker.close()

    @property
    def version(self) -> str:
        """TileLang-Ascend's version, as ``0.1.4``."""
        return self.identity().version

    @property
    def package(self) -> Path:
        """The compiler's ``tilelang`` folder with the device headers (``src``, ``3rdparty/pto-isa``).

        Where the compiler runs on another machine, a copy of these folders.

        Raises:
            CompilerError: They cannot be reached.
        """
        identity = self.identity()
        if self.origin.sees(identity):
            return Path(identity.package)
        return fetch_headers(identity, lambda names: self._do("headers", None, names=names)["result"]["archive"])

    def identity(self) -> Identity:
        """What the compiler is; asks the worker only where it is not remembered."""
        if self._identity is None:
            self._identity = self.origin.remembered()
        if self._identity is None:
            with self._lock:
                self._start()
        assert self._identity is not None, "starting the worker sets it"
        return self._identity

    def describe(self) -> dict[str, Any]:
        """What ``doctor`` shows: origin, command, version, package and the compilers that did not work."""
        identity = self.identity()
        return {
            "origin": self.origin.name,
            "command": " ".join(self.origin.command),
            "version": identity.version,
            "package": identity.package,
            "python": identity.python,
            "machine": identity.machine,
            "passed_over": list(self.passed_over),
        }

    def lower(self, request: Request) -> Lowered:
        """Lowers one kernel.

        Raises:
            CompilerError: With the innermost cause and the line of the kernel's file.
        """
        source = _read(request.path)
        arguments = _plain(request)
        text = (source, _mentioned(request.path, source))
        what = (request.factory, arguments, request.target, request.platform)
        key = digest(process.sources(), self.identity().key, *text, *what)
        if (answer := self._cache.get(key)) is not None:
            with contextlib.suppress(KeyError, TypeError):  # damaged
                return Lowered.from_answer(request, answer, cached=True)
        fields = {"factory": request.factory, "arguments": arguments, "target": request.target}
        answer = self._do("lower", request.path, source=source, platform=request.platform, **fields)
        self._cache.put(key, {"result": answer["result"], "seconds": answer["seconds"]})
        return Lowered.from_answer(request, answer)

    def inspect(self, path: Path, *, platform: str = "A2") -> tuple[Factory, ...]:
        """Describes the kernel factories of a file without calling them.

        Raises:
            CompilerError: The file cannot be run, for example since its module-level code needs PyTorch.
        """
        answer = self._do("inspect", path, source=_read(path), platform=platform)
        return tuple(Factory.from_answer(factory) for factory in answer["result"]["factories"])

    def _do(self, operation: str, path: Path | None, **fields: Any) -> dict[str, Any]:
        job = {"op": operation, "path": str(path), "time_limit": self.time_limit, **fields}
        answer = self._ask(job)
        if "error" in answer:
            raise explained(answer, job, path)
        return answer

    def _ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            for attempt in (1, 2):
                worker = self._start()
                try:
                    return worker.ask(job, self.time_limit)
                except process.WorkerFailure as failure:
                    self.close()
                    if attempt == 2:
                        raise CompilerError("unavailable", f"{failure}, twice", log=failure.log) from failure
                except BaseException:
                    self.close()
                    raise
        raise AssertionError("unreachable")

    def _start(self) -> process.Worker:
        if self._worker is not None and self._owner == os.getpid():
            return self._worker
        self._owner = os.getpid()
        worker = None
        for placeholder in (True, False):  # another edition may need the real PyTorch
            try:
                worker = process.Worker(self.origin.command, self.origin.environment, placeholder=placeholder)
            except process.WorkerFailure as failure:
                raise self._unreachable("unavailable", str(failure), failure.log) from failure
            refusal = worker.greeting.get("error")
            if refusal is None:
                break
            log = worker.log()
            worker.close()
            missing = "package" not in worker.greeting
            if refusal["kind"] == "wrong-package" or missing or not placeholder or self.origin.name == "managed":
                raise self._unreachable(refusal["kind"], refusal["message"], log)
        assert worker is not None
        self._worker = worker
        self._identity = self.origin.remember(worker.greeting)
        atexit.register(self.close)
        return worker

    def _unreachable(self, kind: Any, message: str, log: str) -> CompilerError:
        advice = {
            "TILELANG_PYTHON": "It must start a Python that can import TileLang-Ascend. Unset it to use another.",
            "interpreter": "",
            "managed": f"`python -m harness toolchain remove`, then `{INSTALL}`, puts it right.",
        }[self.origin.name]
        if kind == "wrong-package":
            message += " (PyPI's plain `tilelang` is the edition for GPUs; `tilelang-ascend` is the right one)"
        last = f": {log.splitlines()[-1].strip()}" if log and kind == "unavailable" else ""
        where = f"{self.origin.title} ({' '.join(self.origin.command)})"
        return CompilerError(kind, f"{where}: {message}{last}", cause=advice, log=log)


def _mentioned(path: Path, source: str) -> dict[str, str]:
    """Contents of the files beside a kernel that its text names: what it may read while it is traced."""
    found = {}
    for file in sorted(path.parent.iterdir()):
        if file.name in source and file != path and file.is_file():
            with contextlib.suppress(OSError):
                found[file.name] = digest(file.read_bytes().hex())
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # editors on some systems put a mark in front
    except (OSError, UnicodeDecodeError) as error:
        raise CompilerError("python", f"cannot be read: {error}", file=path) from error


def _plain(request: Request) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(request.arguments)))
    except (TypeError, ValueError) as error:
        what = ", ".join(f"{name}={value!r}" for name, value in request.arguments.items())
        raise CompilerError("python", f"factory arguments must be plain values: {what}", file=request.path) from error
    return plain
