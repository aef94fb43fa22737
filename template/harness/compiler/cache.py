"""Results kept by content in the user's cache folder, shared by processes and bounded in size."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = "tilelang-ascend-kernels"
LIMIT = 256 * 1024 * 1024  # bytes; about 10,000 lowered kernels


def user_cache() -> Path:
    """The folder of this harness in the user's cache (``$XDG_CACHE_HOME``, else ``~/.cache``)."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / FOLDER


def digest(*parts: object) -> str:
    """A name for content: the hash of the parts' JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file so that readers see all of it or none.

    Raises:
        OSError: The folder cannot be written, or the disk is full; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


class Cache:
    """JSON documents by content hash.

    A cache that cannot be read or written never fails a run: it then remembers nothing.
    """

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self.folder, self.limit = folder, limit
        self._stores = 0

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"

    def get(self, key: str) -> dict[str, Any] | None:
        """The document, or None; what is damaged counts as absent."""
        path = self._path(key)
        try:
            document = json.loads(path.read_bytes())
            os.utime(path)  # used: among the last to be dropped
        except (OSError, ValueError):
            return None
        return document if isinstance(document, dict) else None

    def put(self, key: str, document: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            write_atomically(self._path(key), json.dumps(document).encode())
            if self._stores % 64 == 0:
                self.trim()
            self._stores += 1

    def trim(self) -> None:
        """Where there is more than the limit, drops what was used longest ago until three quarters of it are left."""
        entries = []
        for path in self.folder.glob("*/*"):
            with contextlib.suppress(OSError):
                status = path.stat()
                entries.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        if total <= self.limit:
            return
        for _, size, path in sorted(entries):
            if total <= self.limit * 3 // 4:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
