"""The worker as a child process: starting it, talking to it line by line, ending it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

MARK = b"\x1e"
START_LIMIT = 90.0  # seconds; a cold disk under emulation needs about 15
BOOTSTRAP = b"import sys, json; exec(json.loads(sys.stdin.readline()))\n"
MODULES = ("torch_placeholder", "boot", "worker")
INSTALL = """
import sys, types
for name, text in {texts!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name + ".py", "exec"), vars(module))
sys.modules["worker"].serve(sys.modules["torch_placeholder"] if {placeholder!r} else None)
"""


class WorkerFailure(Exception):
    """The worker could not start, ended, or did not answer in time. ``log`` holds what it printed last."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


@cache
def sources() -> dict[str, str]:
    """The text of the modules that run on the worker's side."""
    folder = Path(__file__).parent
    return {name: (folder / f"{name}.py").read_text(encoding="utf-8") for name in MODULES}


class Worker:
    """A running worker. Not safe to share between threads or forks.

    Args:
        command: Command line that starts a Python; ``-u -m code -q`` is appended.
        environment: Its environment.
        placeholder: Let the worker do without PyTorch.

    Raises:
        WorkerFailure: It does not start or greet.
    """

    greeting: dict[str, Any]

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, placeholder: bool = True) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._noise = b""
        self._buffer = b""
        self._number = 0
        try:
            # A session of its own: Ctrl-C in the terminal reaches the client alone, and the group can be ended whole.
            self._process = subprocess.Popen(
                [*command, "-u", "-m", "code", "-q"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=dict(environment),
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            self._errors.close()
            raise WorkerFailure(f"cannot start {command[0]}: {error.strerror or error}") from error
        try:
            text = INSTALL.format(texts=sources(), placeholder=placeholder)
            self._send(BOOTSTRAP + json.dumps(text).encode() + b"\n", START_LIMIT)
            self.greeting = self._receive(START_LIMIT)
        except BaseException:
            self.close()
            raise

    def ask(self, request: Mapping[str, Any], limit: float) -> dict[str, Any]:
        """Sends a request and waits for its answer.

        Args:
            request: ``op`` and its fields.
            limit: Seconds the worker may spend on it; it gets some more to report that it could not.

        Raises:
            WorkerFailure: It died or fell silent. It is closed then, as after any other exception.
        """
        self._number += 1
        line = json.dumps({**request, "id": self._number, "time_limit": limit}).encode() + b"\n"
        try:
            self._send(line, limit)
            answer = self._receive(limit + 30)
            if answer.get("id") != self._number:
                raise WorkerFailure("the compiler process answered out of turn", self.log())
            return answer
        except BaseException:  # Ctrl-C too: what it would answer later belongs to no request
            self.close()
            raise

    def _send(self, data: bytes, limit: float) -> None:
        assert self._process.stdin is not None
        descriptor, deadline = self._process.stdin.fileno(), time.monotonic() + limit
        os.set_blocking(descriptor, False)  # a process that reads nothing must not block this one
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_WRITE)
            while data:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise WorkerFailure(f"the compiler process reads nothing for {limit:g} s", self.log())
                try:
                    data = data[os.write(descriptor, data) :]
                except BrokenPipeError:
                    raise self._ended() from None

    def _receive(self, limit: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor, deadline = self._process.stdout.fileno(), time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while True:
                line, found, rest = self._buffer.partition(b"\n")
                if found:
                    self._buffer = rest
                    noise, mark, document = line.partition(MARK)
                    if mark:
                        with contextlib.suppress(ValueError):
                            answer: dict[str, Any] = json.loads(document)
                            return answer
                    self._noise = (self._noise + noise + b"\n")[-4000:]
                    continue
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise WorkerFailure(f"the compiler process did not answer within {limit:g} s", self.log())
                block = os.read(descriptor, 1 << 16)
                if not block:
                    raise self._ended()
                self._buffer += block

    def _ended(self) -> WorkerFailure:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        status = self._process.returncode
        how = "closed its output" if status is None else f"ended with status {status}"
        if status is not None and status < 0:
            how = f"was ended by {signal.Signals(-status).name}"
        return WorkerFailure(f"the compiler process {how}", self.log())

    def log(self) -> str:
        """The end of what the process printed outside the protocol."""
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 4000))
        text = (self._noise + self._buffer[-1000:] + self._errors.read()).decode(errors="replace")
        return "\n".join(line for line in text.splitlines() if line.strip(" >.")).strip()

    def close(self) -> None:
        """Ends the process and its forks; may be called again."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()
