"""What TileLang touches of PyTorch while it traces and lowers: names of element types, no tensors, no devices.

Runs inside the worker in the place of ``torch``. Everything else raises and says so, so that nothing is computed
wrongly. Leaving the real PyTorch out saves the worker seconds, and makes lowering the same with and without it.
"""

from __future__ import annotations

import os
import types
from typing import Any

__version__ = "0.0.0+placeholder"
__path__: list[str] = []  # a package, so that ``import torch.utils.dlpack`` looks for its submodules in sys.modules

_CHIPS = {"A2": "Ascend910B2", "A3": "Ascend910_9392", "A5": "Ascend950PR"}
_DTYPES = (
    "float16 float32 float64 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool "
    "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2 complex64"
)
_ALIASES = {"half": "float16", "float": "float32", "double": "float64", "int": "int32", "long": "int64"}


class dtype:
    """An element type; ``str()`` gives ``torch.float16`` as PyTorch does."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return "torch." + self.name


class Tensor:
    """Exists for annotations and ``isinstance``."""

    def __init__(self, *_: object, **__: object) -> None:
        raise RuntimeError("kernel modules are lowered without PyTorch: there are no tensors here")


class device:
    """A device's name."""

    def __init__(self, kind: str = "cpu", index: int | None = None) -> None:
        self.type, self.index = kind, index


class npu:
    """Answers as on a machine with an NPU: without one the compiler decides differently about reusing buffers."""

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def get_device_properties(_index: int = 0) -> types.SimpleNamespace:
        return types.SimpleNamespace(name=_CHIPS.get(os.environ.get("TL_PLATFORM", "A2"), _CHIPS["A2"]))


class cuda:
    """No GPU."""

    @staticmethod
    def is_available() -> bool:
        return False


_TYPES = {name: dtype(name) for name in _DTYPES.split()}
_TYPES.update({alias: _TYPES[name] for alias, name in _ALIASES.items()})


def __getattr__(name: str) -> Any:
    if name in _TYPES:
        return _TYPES[name]
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(f"torch.{name}: kernel modules are lowered without PyTorch; keep tensor code out of them")
