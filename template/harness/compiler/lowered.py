"""A lowering request and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True)
class Request:
    """One call of a kernel factory to be lowered.

    Attributes:
        path: The kernel's file.
        factory: Name of the function decorated with ``@tilelang.jit``.
        arguments: Its keyword arguments; numbers, strings, booleans and lists of them.
        target: ``ascendc`` or ``pto``.
        platform: ``A2``, ``A3`` or ``A5``.
    """

    path: Path
    factory: str
    arguments: Mapping[str, object]
    target: str
    platform: str


@dataclass(frozen=True)
class Parameter:
    """A tensor or scalar parameter of a lowered kernel.

    Attributes:
        dtype: NumPy or ml_dtypes name.
        shape: Elements per dimension; -1 where the size is known only at run time. Empty for a scalar.
        symbolic: The compiler's text of each dimension, where any is known only at run time: ``("M", "N // 2")``.
    """

    dtype: str
    shape: tuple[int, ...]
    symbolic: tuple[str, ...] = ()

    @classmethod
    def of(cls, dtype: str, shape: list[int | str]) -> Self:
        symbolic = tuple(map(str, shape)) if any(isinstance(size, str) for size in shape) else ()
        return cls(dtype, tuple(size if isinstance(size, int) else -1 for size in shape), symbolic)


@dataclass(frozen=True)
class Buffer:
    """An on-chip buffer of a lowered kernel.

    Attributes:
        name: As in the generated code.
        memory: ``UB``, ``L1``, ``L0A``, ``L0B`` or ``L0C``.
        address: Offset in that memory, bytes.
        bytes: Size. Buffers may overlap where the compiler reuses memory.
    """

    name: str
    memory: str
    address: int
    bytes: int


@dataclass(frozen=True)
class Lowered:
    """Device code of one kernel for one target and platform.

    Attributes:
        source: The generated C++.
        target: ``ascendc`` or ``pto``.
        platform: ``A2``, ``A3`` or ``A5``.
        parameters: All parameters of the kernel, workspaces that the compiler appended included.
        out_idx: Positions of outputs, never negative.
        workspace_idx: Positions of workspaces that the kernel declares.
        auto_workspaces: Positions of workspaces that the compiler appended.
        pass_configs: The compiler switches that the kernel sets, by their string keys.
        address_map: Offset in bytes of each on-chip buffer, by name.
        size_map: Its size in bytes.
        seconds: Time to trace and lower, when it was done.
        cached: The result comes from the cache.
        memories: The memory of each on-chip buffer (``UB``, ``L1``, ``L0A``, ``L0B``, ``L0C``).
    """

    source: str
    target: str
    platform: str
    parameters: tuple[Parameter, ...]
    out_idx: tuple[int, ...]
    workspace_idx: tuple[int, ...]
    auto_workspaces: tuple[int, ...]
    pass_configs: dict[str, bool]
    address_map: dict[str, int]
    size_map: dict[str, int]
    seconds: float = 0.0
    cached: bool = False
    memories: dict[str, str] = field(default_factory=dict)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The on-chip buffers by memory, address and name."""
        found = (
            Buffer(name, memory, self.address_map.get(name, 0), self.size_map[name])
            for name, memory in self.memories.items()
        )
        return tuple(sorted(found, key=lambda buffer: (buffer.memory, buffer.address, buffer.name)))

    @classmethod
    def from_answer(cls, request: Request, answer: Mapping[str, Any], *, cached: bool = False) -> Self:
        """The record of a worker's answer to a request.

        Raises:
            KeyError, TypeError: It is of another version of the worker.
        """
        result = dict(answer["result"])
        found, parameters = result.pop("buffers"), result.pop("parameters")
        positions: dict[str, Any] = {
            name: tuple(result.pop(name)) for name in ("out_idx", "workspace_idx", "auto_workspaces")
        }
        return cls(
            target=request.target,
            platform=request.platform,
            parameters=tuple(Parameter.of(**parameter) for parameter in parameters),
            address_map={buffer["name"]: buffer["address"] for buffer in found if buffer["address"] is not None},
            size_map={buffer["name"]: buffer["bytes"] for buffer in found},
            memories={buffer["name"]: buffer["memory"] for buffer in found},
            seconds=answer["seconds"],
            cached=cached,
            **positions,
            **result,
        )


@dataclass(frozen=True)
class FactoryParameter:
    """A parameter of a kernel factory; ``default`` is its value, or its text where JSON has no such value."""

    name: str
    required: bool
    default: object


@dataclass(frozen=True)
class Factory:
    """A function decorated with ``@tilelang.jit``, as written: indices may be negative."""

    name: str
    line: int
    parameters: tuple[FactoryParameter, ...]
    out_idx: tuple[int, ...]
    workspace_idx: tuple[int, ...]
    pass_configs: dict[str, bool]
    target: str
    platform: str

    @classmethod
    def from_answer(cls, data: Mapping[str, Any]) -> Self:
        lists = {name: tuple(data[name]) for name in ("out_idx", "workspace_idx")}
        return cls(**{**data, **lists, "parameters": tuple(FactoryParameter(**item) for item in data["parameters"])})
