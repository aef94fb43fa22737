"""Running the programs that an installation needs, so that all of them can be stopped at once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.toolchain.errors import MORE_SPACE, ToolchainError


class Commands:
    """Runs programs in sessions of their own; `stop` ends those that run and refuses more."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False
        self._lock = threading.Lock()

    def run(
        self,
        argv: Sequence[str],
        *,
        what: str,
        fix: str = "",
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        output: Path | None = None,
    ) -> str:
        """Runs a program to its end and returns what it wrote to standard output.

        Args:
            argv: Command line.
            what: What it does, for the error message.
            fix: What to do when it fails.
            cwd: Folder to run in.
            environment: Its whole environment.
            output: File for its standard output.

        Raises:
            ToolchainError: It could not be started or failed.
        """
        with contextlib.ExitStack() as stack, self._lock:
            if self._stopped:
                raise ToolchainError(f"{what}: stopped")
            try:
                process = subprocess.Popen(
                    argv,
                    cwd=cwd,
                    env=dict(environment) if environment is not None else None,
                    stdin=subprocess.DEVNULL,
                    stdout=stack.enter_context(output.open("wb")) if output else subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                )
            except OSError as error:
                raise ToolchainError(f"{what}: cannot start {argv[0]}: {error.strerror or error}", fix) from error
            self._running.add(process)
        try:
            text, errors = process.communicate()
        finally:
            self._running.discard(process)
        if process.returncode != 0:
            if "No space left on device" in errors:
                raise ToolchainError(f"{what}: no space left on device", MORE_SPACE)
            program = f"{Path(argv[0]).name}, exit status {process.returncode}"
            raise ToolchainError(f"{what} failed ({program}):\n{_last(errors or text)}", fix)
        return text or ""

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _last(text: str, count: int = 4) -> str:
    """The last lines, errors before anything else."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("e:", "err:", "error"))]
    return "\n".join(f"  {line}" for line in (errors or lines)[-count:])
