"""Make TileLang importable for tracing and lowering alone: fast, without PyTorch, a C++ compiler or an NPU.

Runs inside the worker, before ``import tilelang``. Three parts of TileLang that lowering never uses are replaced:
PyTorch (by `torch_placeholder`), TVM's two big front ends (loaded only when asked for) and the adapter which
compiles and runs a kernel on a device.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

ASCEND_KEY = "tl.ascend_auto_sync"


class NotAscend(Exception):
    """The importable ``tilelang`` is not TileLang-Ascend."""


class _OnDemand(types.ModuleType):
    """Stands in for a front end of TVM and imports the real one when an attribute is first needed."""

    # What TVM looks up here while it is imported, and for ``isinstance`` alone.
    known: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            if name in self.known:
                return self.known[name]()
            del sys.modules[self.__name__]
            parent, _, leaf = self.__name__.rpartition(".")
            setattr(sys.modules[parent], leaf, importlib.import_module(self.__name__))
        return getattr(sys.modules[self.__name__], name)


class _RelaxFunction:
    """No function is ever one of these."""


class LoweringAdapter:
    """Takes the place of the adapter that builds and runs a kernel: keeps what it is given and does neither.

    Only modules that call a factory themselves come here.
    """

    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)
        self.dynamic_symbolic_map: dict[str, Any] = {}

    def get_kernel_source(self, kernel_only: bool = False) -> Any:
        return self.__dict__.get("kernel_global_source")

    def func(self, *_: object, **__: object) -> None:
        raise RuntimeError("kernels are only lowered here; running one needs an NPU")


def locate() -> Path:
    """Find the ``tilelang`` package without importing it.

    Raises:
        ModuleNotFoundError: There is none.
        NotAscend: It is another edition, such as the one for GPUs.
    """
    spec = importlib.util.find_spec("tilelang")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("no module named 'tilelang'")
    package = Path(next(iter(spec.submodule_search_locations)))
    keys = package / "transform" / "pass_config.py"
    if not keys.is_file() or ASCEND_KEY not in keys.read_text(encoding="utf-8"):
        raise NotAscend(f"{package} is not TileLang-Ascend: its PassConfigKey has no Ascend keys")
    return package


def version(package: Path) -> str:
    """The version that the package states, without the commit of whatever repository the process was started in."""
    for folder in (package.parent, package):
        with contextlib.suppress(OSError):
            return (folder / "VERSION").read_text(encoding="utf-8").strip()
    return "unknown"


def prepare(torch: types.ModuleType | None) -> None:
    """Replace the parts that lowering does not need, and import TileLang.

    Args:
        torch: The placeholder; None keeps whatever PyTorch is installed.
    """
    os.environ.setdefault("CXX", "unused")  # TileLang asks only whether a compiler has a name
    # Examples wipe this folder when they are imported.
    os.environ["TILELANG_CACHE_DIR"] = f"{tempfile.gettempdir()}/tilelang-lowering-{os.getpid()}"
    if torch is not None:
        utils, dlpack = types.ModuleType("torch.utils"), types.ModuleType("torch.utils.dlpack")
        utils.__path__ = []
        vars(dlpack).update(to_dlpack=torch.Tensor, from_dlpack=torch.Tensor)
        vars(utils).update(dlpack=dlpack)
        vars(torch).update(utils=utils)
        sys.modules.update({"torch": torch, "torch.utils": utils, "torch.utils.dlpack": dlpack})
    relay, relax = _OnDemand("tvm.relay"), _OnDemand("tvm.relax")
    relay.known = {"TensorType": lambda: importlib.import_module("tvm.ir").TensorType}
    relax.known = {"Function": lambda: _RelaxFunction}
    adapter = types.ModuleType("tilelang.jit.adapter.cython")
    vars(adapter).update(CythonKernelAdapter=LoweringAdapter)
    sys.modules.update({module.__name__: module for module in (relay, relax, adapter)})
    tilelang = importlib.import_module("tilelang")
    tilelang.disable_cache()
    if not hasattr(tilelang.PassConfigKey, "TL_ASCEND_AUTO_SYNC"):
        raise NotAscend(f"{tilelang.__file__} is not TileLang-Ascend: its PassConfigKey has no Ascend keys")
