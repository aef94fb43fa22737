"""Showing an installation's steps, several of which run at once."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

WIDTH = 44  # columns of a step's name


class Progress:
    """Steps as plain lines on standard error, one when each ends; a line each half minute while nothing does."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        over = threading.Event()

        def remind() -> None:
            while not over.wait(30):
                self.note(f"  {name}: {time.monotonic() - began:.0f} s so far")

        threading.Thread(target=remind, daemon=True).start()
        try:
            yield
        finally:
            over.set()
        self.note(f"  {name:{WIDTH}} {time.monotonic() - began:5.1f} s")


class LiveProgress(Progress):
    """The same on a terminal, with rich: running steps spin."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import Progress as Bars
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        self._bars: Any = Bars(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn(f"{{task.description:{WIDTH}}}"),
            TimeElapsedColumn(),
            console=Console(stderr=True, highlight=False),
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bars.stop()

    def note(self, text: str) -> None:
        self._bars.console.print(text)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        task = self._bars.add_task(name, total=1)
        try:
            yield
        except BaseException:
            self._bars.update(task, description=f"[red]{name}: failed")
            self._bars.stop_task(task)
            raise
        self._bars.update(task, completed=1)


def show() -> Progress:
    """The progress that suits standard error: live on a terminal where rich is there, else plain lines."""
    if sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            return LiveProgress()
    return Progress()
