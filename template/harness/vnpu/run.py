"""Runs a built kernel on the virtual NPU, in a process of its own.

Tensors are shared with that process in memory, not copied through pipes. Outputs and workspaces start
as NaN (integers: a pattern), so that what the kernel forgot to write or read too early shows.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from harness import catalog
from harness.spec import Array
from harness.vnpu.build import KINDS, BuildError, Built, NotSimulated

PAGE = 4096
# What memory holds until it is written: 16 bits that are a quiet NaN as fp16 and bf16, and twice as fp32. Arithmetic
# keeps the payload, so a NaN in an output tells where it came from.
POISON = {
    "were never written": 0xFFCD,
    "come from a workspace before it was written": 0xFFD3,
    "come from on-chip memory that was never written": 0xFFE5,  # as in instructions.hpp
}
OUTPUT, WORKSPACE, _ = POISON.values()
SMALL_MEMORIES = {"A2": (1024, 2048), "A3": (1024, 2048), "A5": (4096, 4096)}  # bias table, fixpipe buffer; bytes


class RunError(Exception):
    """A run that did not give numbers; the message is the report.

    Attributes:
        line: Line of the generated source that it points at, from 1; 0 where there is none.
    """

    def __init__(self, report: str, line: int = 0) -> None:
        super().__init__(report)
        self.line = line


class Deadlock(RunError):
    """All cores that are left wait for signals that nobody sends."""


class TimeLimit(RunError):
    """The run took too long."""


class OutOfRange(RunError):
    """Memory was touched outside of a tensor or of an on-chip memory."""


class Unwritten(RunError):
    """Elements of an output were never written, or were computed from memory that was not."""


class Crash(RunError):
    """The run was ended by a signal or a failed check of the device headers."""


@dataclass(frozen=True)
class RunResult:
    """What a run gave.

    Attributes:
        outputs: Arrays in the order of ``out_idx``.
        seconds: Time of the run itself.
        blocks: Blocks that ran.
        notes: What was right here but risky or undefined on a device.
        peak_bytes: Largest memory of the simulating process, tensors included.
        printed: Output of the kernel's own print statements.
    """

    outputs: tuple[Array, ...]
    seconds: float
    blocks: int
    peak_bytes: int
    notes: tuple[str, ...] = ()
    printed: str = ""


@dataclass
class Tensor:
    """A tensor parameter and its place in the shared memory: it ends on the end of a page."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int = 0
    view: Array = field(default_factory=lambda: np.empty(0))

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def pages(self) -> int:
        return -(-self.bytes // PAGE) * PAGE

    def index(self, byte: int) -> str:
        """The element at a byte offset, as ``[3, 17]``; outside of the tensor, as an offset from its end or start."""
        element = byte // self.dtype.itemsize
        if byte < 0:
            return f"{-element} elements before the first"
        if byte >= self.bytes:
            return f"{element - math.prod(self.shape)} elements past the last"
        return str([int(i) for i in np.unravel_index(element, self.shape)])

    def __str__(self) -> str:
        return f"{self.name} ({self.dtype.name} {list(self.shape)})"


def run(built: Built, inputs: Sequence[Array], *, time_limit: float = 60.0, threads: int = 0) -> RunResult:
    """Runs a kernel once.

    Args:
        inputs: Arrays for the parameters that are neither output nor workspace, in their order.
        time_limit: Seconds until the run is given up.
        threads: Blocks that run side by side; 0: one per processor, or one under pytest-xdist.

    Raises:
        ValueError: An input does not fit its parameter.
        RunError: The run failed; see its subclasses.
    """
    tensors, scalars, positions = _arguments(built, inputs)
    outputs = [positions[i] for i in built.lowered.out_idx]
    with tempfile.TemporaryDirectory(prefix="vnpu-") as name, _shared(tensors) as memory:
        folder = Path(name)
        _fill(tensors, {positions[i]: array for i, array in _pairs(built, inputs)}, outputs)
        plan = [
            str(folder / "report"),
            f"/proc/self/fd/{memory}",
            *(str(built.libraries.get(kind, "-")) for kind in KINDS),
            f"{threads or _threads()} {time_limit} {int(built.platform == 'A5')}",
            " ".join(map(str, _capacities(built.platform))),
        ]
        rest = iter(tensors)
        for scalar in scalars:
            tensor = next(rest) if scalar is None else None
            plan.append(f"tensor {tensor.offset} {tensor.bytes}" if tensor else f"scalar {scalar}")
        (folder / "plan").write_text("\n".join(plan) + "\n")
        with (folder / "printed").open("wb") as printed:
            try:
                process = subprocess.run(
                    [built.driver, folder / "plan"],
                    stdout=printed,
                    stderr=subprocess.STDOUT,
                    timeout=time_limit + 10,
                    pass_fds=[memory],
                    check=False,
                )
                status = process.returncode
            except subprocess.TimeoutExpired:
                raise TimeLimit(f"the simulator did not answer within {time_limit + 10:g} s") from None
        with (folder / "printed").open("rb") as printed:
            text = printed.read(1 << 16).decode(errors="replace")
        events = _events(folder / "report")
        notes = _judge(built, tensors, events, status, text)
        for number, position in enumerate(outputs):
            _check_written(number, tensors[position])
        done = events[-1]
        arrays = tuple(np.array(tensors[position].view) for position in outputs)
        return RunResult(arrays, done["seconds"], done["blocks"], done["peak_kib"] * 1024, notes, text)


def _capacities(platform: str) -> list[int]:
    """Bytes of each on-chip memory, in the order of core.hpp."""
    known = catalog.load()
    return [*(known.capacity(platform, memory) for memory in catalog.MEMORIES), *SMALL_MEMORIES[platform]]


def _threads() -> int:
    return 1 if os.environ.get("PYTEST_XDIST_WORKER") else len(os.sched_getaffinity(0))


def _pairs(built: Built, inputs: Sequence[Array]) -> Iterator[tuple[int, Array]]:
    """Positions of the input parameters with their arrays."""
    lowered = built.lowered
    own = {*lowered.out_idx, *lowered.workspace_idx, *lowered.auto_workspaces}
    wanted = [i for i in range(len(lowered.parameters)) if i not in own]
    if len(wanted) != len(inputs):
        names = ", ".join(_name(built, i) for i in wanted)
        raise ValueError(f"the kernel has {len(wanted)} inputs ({names}), got {len(inputs)} arrays")
    return zip(wanted, inputs, strict=True)


def _name(built: Built, position: int) -> str:
    return re.sub(r"_handle(_raw)?$", "", built.kernel.parameters[position][1])


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def _arguments(built: Built, inputs: Sequence[Array]) -> tuple[list[Tensor], list[int | None], dict[int, int]]:
    """Tensors; the value of each C parameter (None: the next tensor); index of each parameter's tensor.

    Sizes that are known only at run time are taken from the inputs.
    """
    given = dict(_pairs(built, inputs))
    sizes: dict[str, int] = {}
    for position, array in given.items():
        for text, size in zip(built.lowered.parameters[position].symbolic, np.shape(array), strict=False):
            if text.isidentifier():
                sizes[text] = size
    tensors: list[Tensor] = []
    scalars: list[int | None] = []
    positions: dict[int, int] = {}
    position = 0
    for kind, name in built.kernel.parameters:
        if "*" in kind:
            parameter = built.lowered.parameters[position]
            symbolic = parameter.symbolic or tuple(map(str, parameter.shape))
            shape = tuple(_size(text, sizes) for text in symbolic)
            tensor = Tensor(_name(built, len(scalars)), _dtype(parameter.dtype), shape)
            if position in given:
                _check_input(tensor, given[position])
            positions[position] = len(tensors)
            tensors.append(tensor)
            scalars.append(None)
            position += 1
        elif position in given and built.lowered.parameters[position].shape == () and name not in sizes:
            scalars.append(_scalar(name, given[position]))
            position += 1
        else:
            scalars.append(sizes.get(name, 0))  # a run-time size, or the address of the flag memory: unused here
    return tensors, scalars, positions


def _scalar(name: str, value: Array) -> int:
    if np.asarray(value).dtype.kind not in "iub":
        raise NotSimulated("parameter", f"scalar parameter {name} is not an integer")
    return int(value)


def _size(text: str, sizes: Mapping[str, int]) -> int:
    """Evaluates a dimension such as ``M``, ``(N // 2)`` or ``128``."""
    if not re.fullmatch(r"[\w\s+*/()%-]*", text):
        raise BuildError(f"dimension {text!r} is not an expression of sizes")
    return int(eval(text, {"__builtins__": {}}, dict(sizes)))


def _check_input(tensor: Tensor, array: Array) -> None:
    if array.shape != tensor.shape or array.dtype != tensor.dtype:
        raise ValueError(f"input {tensor} was given {array.dtype.name} {list(array.shape)}")


@contextmanager
def _shared(tensors: Sequence[Tensor]) -> Iterator[int]:
    """Memory that another process can map, gone with the last process that uses it; gives each tensor its view.

    Returns:
        The file descriptor.
    """
    size = 0
    for tensor in tensors:
        tensor.offset = size
        size += tensor.pages
    file = os.memfd_create("vnpu")
    try:
        os.ftruncate(file, size + PAGE)  # not empty, even if all tensors are
        memory = np.frombuffer(mmap.mmap(file, size + PAGE), np.uint8)
        for tensor in tensors:
            end = tensor.offset + tensor.pages
            tensor.view = memory[end - tensor.bytes : end].view(tensor.dtype).reshape(tensor.shape)
        yield file
    finally:
        os.close(file)


def _fill(tensors: Sequence[Tensor], given: Mapping[int, Array], outputs: Collection[int]) -> None:
    """Inputs as given, outputs and workspaces poisoned."""
    for number, tensor in enumerate(tensors):
        if number in given:
            tensor.view[...] = given[number]
        else:
            tensor.view.reshape(-1).view(np.uint8)[...] = _blank(tensor, OUTPUT if number in outputs else WORKSPACE)


def _blank(tensor: Tensor, poison: int) -> Array:
    """Bytes that nobody would write: NaN for floats; for small integers, where any value may be meant, random ones."""
    if _small_integer(tensor.dtype):
        return np.random.default_rng(poison).integers(0, 256, tensor.bytes, np.uint8)
    return np.full(tensor.bytes // 2, poison, "<u2").view(np.uint8)


def _small_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.itemsize == 1 or (dtype.itemsize == 2 and dtype.kind in "iu")


def _traces(dtype: np.dtype[Any], poison: int) -> Array:
    """Bit patterns of poison in a float type, also after conversions from other types."""
    half = np.array([poison], "<u2").view(np.float16)
    single = np.array([poison << 16 | poison, poison << 16, half.astype(np.float32).view(np.uint32)[0]], np.uint32)
    if dtype.itemsize == 4:
        return single
    cut = single.view(np.float32).astype(np.float16).view("<u2") if dtype == np.float16 else single >> 16
    return np.append(cut.astype("<u2"), np.uint16(poison))


def _check_written(number: int, tensor: Tensor) -> None:
    """Raises Unwritten where an output holds, or was computed from, memory that was never written."""
    raw = np.ascontiguousarray(tensor.view).reshape(-1)
    size = tensor.dtype.itemsize
    bits = raw.view(np.uint8 if size == 1 else f"<u{size}")
    suspects = np.arange(0) if tensor.dtype.kind in "iub" else np.flatnonzero(np.isnan(raw))
    for what, poison in POISON.items():
        if _small_integer(tensor.dtype):
            if poison != OUTPUT:
                break
            found = _long_runs(bits == _blank(tensor, poison).view(bits.dtype), 8 // size)
        elif tensor.dtype.kind in "iub":
            found = np.flatnonzero(bits == np.full(size // 2, poison, "<u2").view(bits.dtype))
        else:
            found = suspects[np.isin(bits[suspects], _traces(tensor.dtype, poison))]
        if found.size:
            where = np.stack(np.unravel_index(found, tensor.shape))
            low, high = where.min(axis=1), where.max(axis=1)
            box = ", ".join(f"{a}" if a == b else f"{a}..{b}" for a, b in zip(low, high, strict=True))
            raise Unwritten(
                f"output {number}, {tensor}: {found.size} of {raw.size} elements ({100 * found.size / raw.size:.3g} %) "
                f"{what}; the first is {[int(i) for i in where[:, 0]]}, all lie within [{box}]"
            )


def _long_runs(same: Array, length: int) -> Array:
    """Positions in runs of at least ``length`` true elements: single ones may be equal by chance."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])))).reshape(-1, 2)
    long = edges[edges[:, 1] - edges[:, 0] >= min(length, same.size)]
    steps = np.zeros(same.size + 1, np.int8)
    steps[long[:, 0]], steps[long[:, 1]] = 1, -1
    return np.flatnonzero(np.cumsum(steps[:-1], dtype=np.int8))


def _events(path: Path) -> list[dict[str, Any]]:
    events = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            events.append(json.loads(line))
        except ValueError:  # cut off by a crash
            break
    return events


def _judge(
    built: Built, tensors: Sequence[Tensor], events: Sequence[Mapping[str, Any]], status: int, printed: str
) -> tuple[str, ...]:
    """Raises what the driver reported; returns notes."""

    def at(line: int) -> str:
        return f"generated line {line}: {built.kernel.statement(line)}" if line else "before the first statement"

    def named(text: str) -> str:
        return re.sub(r"parameter (\d+)", lambda match: str(tensors[int(match[1])]), text)

    notes = [f"{event['text']} ({event['core']}, {at(event['line'])})" for event in events if event["event"] == "note"]
    strays = [event for event in events if event["event"] == "stray-read"]
    fault = next((event for event in events if event["event"] == "fault"), None)
    if fault:
        kind, line = fault["kind"], fault["line"]
        if kind in ("deadlock", "time"):
            waits = "\n".join(_core_line(core, at) for core in fault["cores"])
            error = Deadlock if kind == "deadlock" else TimeLimit
            first = fault["cores"][0]["line"] if fault["cores"] else 0
            raise error(f"{'deadlock' if kind == 'deadlock' else 'time limit'}: {fault['text']}\n{waits}", first)
        where = f"\n  {fault['core']}, {at(line)}" if fault["core"] else ""
        if kind == "stray-write":
            offset = re.search(r"at byte (-?\d+) of parameter (\d+)", fault["text"])
            element = f" ({tensors[int(offset[2])].index(int(offset[1]))})" if offset else ""
            raise OutOfRange(f"outside of a tensor: {named(fault['text'])}{element}{where}", line)
        if kind == "on-chip":
            raise OutOfRange(f"outside of on-chip memory: {fault['text']}{where}", line)
        said = f"\n  {printed.strip()[-1000:]}" if printed.strip() else ""
        raise Crash(f"the run crashed: {fault['text']}{where}{said}", line)
    if status or not events or events[-1]["event"] != "done":
        raise Crash(f"the simulator ended with status {status} and no report\n  {printed.strip()[-1000:]}")
    if strays:
        lines = []
        for event in strays[:8]:
            tensor = tensors[event["parameter"]]
            last = tensor.index(event["offset"] + event["bytes"] - 1)
            lines.append(f"  {tensor}: {event['bytes']} bytes up to {last} ({event['core']}, {at(event['line'])})")
        raise OutOfRange("read outside of a tensor:\n" + "\n".join(lines), strays[0]["line"])
    return tuple(notes)


def _core_line(core: Mapping[str, Any], at: Callable[[int], str]) -> str:
    state = f"waits for flag {core['flag']}" if core["flag"] >= 0 else "runs"
    unread = f" (not yet waited for: flag {', '.join(map(str, core['unread']))})" if core["unread"] else ""
    return f"  {core['core']} {state}{unread}, {at(core['line'])}"
