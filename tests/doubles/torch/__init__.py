"""A test double: PyTorch on an NPU, as far as the benchmark uses it. NumPy computes; the times are made up.

Every "launch" appends a line ``name,kind,microseconds,blocks`` to the file that ``DOUBLE_TASKS`` names; the double of
msprof makes its table of them. Nothing that this produces is a measurement.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

__version__ = "test double"


class dtype:
    def __init__(self, name: str) -> None:
        self.name = name
        self.numpy = np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)

    def __repr__(self) -> str:
        return f"torch.{self.name}"


float16, float32, bfloat16 = dtype("float16"), dtype("float32"), dtype("bfloat16")
int8, int16, int32, int64 = dtype("int8"), dtype("int16"), dtype("int32"), dtype("int64")
_DTYPES = {kind.numpy: kind for kind in (float16, float32, bfloat16, int8, int16, int32, int64)}


class Device(str):
    @property
    def type(self) -> str:
        return self.split(":")[0]


class Tensor:
    def __init__(self, array: np.ndarray[Any, Any], device: str = "cpu") -> None:
        self.array, self.device = array, Device(device)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> Any:
        return _DTYPES[self.array.dtype]

    def is_contiguous(self) -> bool:
        return bool(self.array.flags.c_contiguous)

    def to(self, device: str) -> Tensor:
        return Tensor(self.array, device)

    def cpu(self) -> Tensor:
        return Tensor(self.array)

    def numpy(self) -> np.ndarray[Any, Any]:
        return self.array

    def view(self, kind: Any) -> Tensor:
        return Tensor(self.array.view(kind.numpy), self.device)

    def zero_(self) -> Tensor:
        launch("ZerosLike", "ZerosLike", 40.0, 40)
        return self


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    return Tensor(array)


def empty(count: int, dtype: dtype, device: str) -> Tensor:
    return Tensor(np.empty(0, dtype.numpy), device)


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    launch("aclnnSoftmax_SoftmaxV2", "SoftmaxV2", 30.0, 40)
    return _softmax(x)


def _softmax(x: Tensor) -> Tensor:
    values = x.array.astype(np.float64)
    values = np.exp(values - values.max(-1, keepdims=True))
    return Tensor((values / values.sum(-1, keepdims=True)).astype(x.array.dtype), x.device)


def kernel_softmax(x: Tensor, microseconds: float, *, wrong: bool = False) -> Tensor:
    """What the double of a compiled TileLang kernel calls."""
    launch("main_kernel", "main_kernel", microseconds, 24)
    result = _softmax(x)
    return Tensor(result.array * 2, x.device) if wrong else result


_clock = 0.0
_launches = 0


def launch(name: str, kind: str, microseconds: float, blocks: int) -> None:
    global _clock, _launches
    _launches += 1
    spread = zlib.crc32(f"{name}{_launches}".encode()) % 101 / 100 - 0.5  # the same in every run
    duration = microseconds * (1 + 0.04 * spread)
    _clock += duration
    if path := os.environ.get("DOUBLE_TASKS"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{name},{kind},{_clock - duration:.3f},{duration:.3f},{blocks}\n")


class npu:
    """The part of torch_npu that hangs off torch."""

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            self.time = 0.0

        def record(self) -> None:
            self.time = _clock

        def elapsed_time(self, other: npu.Event) -> float:
            return (other.time - self.time) / 1000 + 0.002  # milliseconds; an event costs two microseconds

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return len(os.environ.get("ASCEND_RT_VISIBLE_DEVICES", os.environ.get("DOUBLE_NPUS", "0")).split(","))

    @staticmethod
    def set_device(index: int) -> None: ...

    @staticmethod
    def synchronize() -> None: ...

    @staticmethod
    def get_device_name(index: int) -> str:
        return os.environ.get("DOUBLE_NAME", "Ascend910B1")
