"""Builds a lowered kernel in the cost model of the installed PTO-ISA headers, traces its blocks and schedules them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.clock.model import ROLES, Extra
from harness.compiler.cache import digest
from harness.compiler.lowered import Lowered
from harness.spec import Array
from harness.vnpu.build import GUARDS, BuildError, GeneratedKernel, headers
from harness.vnpu.toolset import CompileError, Profile, find_cxx, library, program

NATIVE = Path(__file__).parent / "native"
TIME_LIMIT = 120.0  # seconds for tracing and scheduling
UNKNOWN_SIZE = 1 << 32  # bytes mapped for a tensor whose size is known only at run time; costs nothing until read

# One row of the timeline file that the driver writes.
TIMELINE = np.dtype([("start", "f8"), ("end", "f8"), ("kind", "i4"), ("role", "u1"), ("pipe", "u1"), ("pad", "u2")])


class ClockError(Exception):
    """There is no estimate; the message says why.

    Attributes:
        kind: ``deadlock``, ``uncosted``, ``data``, ``large``, ``work``, ``platform``, ``build`` or ``crash``.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Traced:
    """What the driver reports, and the kernel's source to read it with.

    Attributes:
        kernel: The generated source, taken apart.
        report: The driver's JSON document.
        timeline: Instructions of the slowest block, one row each (see ``TIMELINE``); empty unless asked for.
        assumed: Lines of the generated source whose control flow depends on on-chip data, which is taken as zero.
    """

    kernel: GeneratedKernel
    report: dict[str, Any]
    timeline: np.ndarray[Any, np.dtype[Any]]
    assumed: tuple[int, ...]


def trace(
    lowered: Lowered,
    package: Path,
    *,
    cores: int,
    extra: Extra,
    inputs: Sequence[Array] = (),
    scalars: Mapping[str, int] | None = None,
    vector_broadcast: bool = False,
    budget: int = 4_000_000,
    timeline: bool = True,
) -> Traced:
    """Runs the kernel in the cost model.

    Args:
        lowered: Output of the ``pto`` backend.
        package: The installed ``tilelang`` folder.
        cores: AI cores of the chip.
        inputs: Input tensors in order; only those that the kernel's control flow reads matter. Others read as zero.
        scalars: Values of the kernel's scalar parameters, by name.
        vector_broadcast: Cost row broadcasts as the ascendc backend makes them.
        budget: Events to trace before blocks are sampled.

    Raises:
        ClockError: No estimate is possible.
        CompilerNotFound: This machine has no C++ compiler.
    """
    try:
        kernel = GeneratedKernel.parse(lowered.source)
    except BuildError as error:
        raise ClockError("build", str(error)) from error
    scalars = {"ffts_Addr": 0, **(scalars or {})}
    tensors = dict(zip(input_positions(lowered), inputs, strict=False))
    names = [name for _, name in kernel.parameters]
    assumed = _dependences(kernel, {names[i] for i in tensors if i < len(names)})
    libraries = build(kernel, package)
    with tempfile.TemporaryDirectory(prefix="vclock-") as scratch:
        orders = [f"library {kind} {path}" for kind, path in libraries.items()]
        orders += [f"blocks {_grid(kernel, scalars)}", f"cores {cores}", f"jobs {min(2, os.cpu_count() or 1)}"]
        orders += [f"budget {budget}", f"vector_broadcast {int(vector_broadcast)}", *extra.orders()]
        orders += _arguments(kernel, lowered, tensors, scalars, Path(scratch))
        path = Path(scratch, "timeline")
        if timeline:
            orders.append(f"timeline {path}")
        report = run_driver(orders, kernel)
        rows = np.fromfile(path, TIMELINE) if timeline else np.empty(0, TIMELINE)
    return Traced(kernel, report, rows, assumed)


def input_positions(lowered: Lowered) -> list[int]:
    """Positions of the tensors that the host passes in, in order."""
    made = {*lowered.out_idx, *lowered.workspace_idx, *lowered.auto_workspaces}
    return [i for i in range(len(lowered.parameters)) if i not in made]


def profile(package: Path) -> Profile:
    """How kernels are built for their time."""
    include, stamp = headers(package)
    own = [path.read_text() for path in sorted(NATIVE.rglob("*.*"))]
    return Profile(NATIVE / "clock.hpp", (NATIVE / "include", NATIVE, *include), (), digest(stamp, own))


def build(kernel: GeneratedKernel, package: Path) -> dict[str, Path]:
    """One library per kind of core.

    Raises:
        ClockError: ``uncosted`` or ``build``.
    """
    how, cxx = profile(package), find_cxx()

    def one(kind: str) -> Path:
        try:
            return library(instrumented(kernel, kind), how, cxx)
        except CompileError as error:
            raise explain(error.log, kernel) from error

    with ThreadPoolExecutor() as pool:
        return dict(zip(kernel.kinds, pool.map(one, kernel.kinds), strict=True))


def instrumented(kernel: GeneratedKernel, kind: str) -> str:
    """The source for one kind of core, line by line the same; statements and scalar accesses announce themselves."""
    source = kernel.source[: kernel.source.index('extern "C" void call')]
    lines, inside = [], False
    for number, line in enumerate(source.splitlines(), 1):
        text = line.strip()
        if text.startswith("#include"):
            line = ""  # clock.hpp has them all
        elif inside:
            line = re.sub(r"(\w+)\.(GetValue|SetValue)\(", r"::vclock::\2(\1, ", line)
            line = re.sub(r"\*\((\w+_handle)\b", r"::vclock::global(\1", line)
            if re.match(r"(?!for\b|if\b|else\b|while\b|using\b|return\b|[#}]).*;$", text):
                line = f"VCLOCK_LINE({number}) {line}"
        inside |= f"void {kernel.name}(" in line
        lines.append(line)
    arguments = ", ".join(f"({kind_})a[{i}]" for i, (kind_, _) in enumerate(kernel.parameters))
    defines = "".join(f"#define {guard}\n" for guard in GUARDS[kind])
    return f"""{defines}#line 1 "kernel.cpp"
{chr(10).join(lines)}
VCLOCK_EXPORT void vclock_trace(const uint64_t *a, const vclock::Order *order, vclock::Trace *out) {{
    vclock::recorder.begin(*order);
    try {{
        {kernel.name}({arguments});
        vclock::recorder.finish(out);
    }} catch (vclock::Overflow) {{
        vclock::recorder.finish(out, true);
    }}
}}
"""


def explain(log: str, kernel: GeneratedKernel) -> ClockError:
    """Turns the C++ compiler's output into an error that names the instruction and the generated statement."""
    first = re.search(r"^\S+?:\d+:\d+: (?:fatal )?error: (.*)$", log, re.MULTILINE)
    if not first:
        return ClockError("build", f"the C++ compiler failed:\n{log.strip()[-2000:]}")
    at = re.search(r"kernel\.cpp:(\d+):", log[first.start() :]) or re.search(r"kernel\.cpp:(\d+):", log)
    where = f"\n  generated line {at[1]}: {kernel.statement(int(at[1]))}" if at else ""
    missing = re.search(r"(?:identifier|call to) '(\w+?)(?:_IMPL)?'", first[1])
    if missing:
        return ClockError("uncosted", f"no cost is known for {missing[1]}{where}")
    return ClockError("build", f"{first[1]}{where}")


def run_driver(orders: Sequence[str], kernel: GeneratedKernel | None = None) -> dict[str, Any]:
    """Traces and schedules in a process of its own; returns its report.

    Raises:
        ClockError: It found no time, crashed, or took too long.
    """
    driver = program([NATIVE / "driver.cpp"], find_cxx(), stamp=digest(*(p.read_text() for p in NATIVE.glob("*.hpp"))))
    text = "\n".join(orders) + "\n"
    try:
        done = subprocess.run([str(driver)], input=text, capture_output=True, text=True, timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        raise ClockError(
            "large", f"the trace has not ended after {TIME_LIMIT:.0f} s; estimate a smaller shape"
        ) from None
    if done.returncode:
        reason = f"signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
        raise ClockError(
            "crash",
            f"the kernel crashed in the cost model ({reason}); does it read beyond a tensor? {done.stderr.strip()}",
        )
    report: dict[str, Any] = json.loads(done.stdout)
    if "error" in report:
        raise _failure(report["error"], report["message"], kernel)
    uncosted = sorted({k[0] for kinds in report["kinds"] for k in kinds if k[0].endswith("_intra_block")})
    if uncosted:
        raise ClockError("uncosted", f"no cost is known for {', '.join(uncosted)}")
    return report


def _failure(kind: str, message: str, kernel: GeneratedKernel | None) -> ClockError:
    if kind == "uncosted":
        return ClockError(
            kind, f"no cost is known for {', '.join(message.split())}: the cost model records nothing for it"
        )
    if kind == "deadlock":
        waits = [words for entry in message.split(";") if len(words := entry.split()) == 7]
        return ClockError(kind, "\n  ".join(["the kernel never ends:", *(_wait(words, kernel) for words in waits[:6])]))
    if kind == "empty":
        return ClockError("work", "the kernel executes no instruction for these arguments")
    if kind == "large":
        return ClockError(kind, f"too large to trace: {message}; estimate a smaller shape")
    return ClockError("crash", message)


def _wait(words: Sequence[str], kernel: GeneratedKernel | None) -> str:
    block, role, line, name = int(words[0]), int(words[1]), int(words[2]), words[3]
    if name == "sync_all":
        return "all cores are to meet (sync_all), but there are more blocks than cores: some never start"
    what = f"waits for cross-core flag {int(words[4]) & 15}" if name == "wait_flag_dev" else f"waits at {name}"
    text = f", generated line {line}: {kernel.statement(line)}" if kernel else ""
    return f"block {block}, {ROLES[role]} core {what}{text}"


def _grid(kernel: GeneratedKernel, scalars: Mapping[str, int]) -> int:
    """The number of blocks: a C expression over integers and the scalar parameters."""
    text = re.sub(r"\([a-z]\w*_t\)|\((?:int|uint32_t|unsigned)\)", "", kernel.grid).replace("/", "//")
    unknown = sorted(set(re.findall(r"[A-Za-z_]\w*", text)) - scalars.keys())
    if unknown:
        raise ClockError("data", f"the number of blocks depends on {', '.join(unknown)}: pass a value")
    if not re.fullmatch(r"[\w\s()+*/%-]+", text):
        raise ClockError("build", f"cannot evaluate the number of blocks: {kernel.grid}")
    blocks = int(eval(text, {"__builtins__": {}}, dict(scalars)))
    if blocks < 1:
        raise ClockError("work", f"the kernel starts {blocks} blocks for these arguments")
    return blocks


def _arguments(
    kernel: GeneratedKernel, lowered: Lowered, tensors: Mapping[int, Array], scalars: Mapping[str, int], scratch: Path
) -> list[str]:
    """The driver's orders for the kernel's parameters. Only tensors that scalar code reads get their content."""
    orders = []
    for i, (kind, name) in enumerate(kernel.parameters):
        if "*" not in kind:
            if name not in scalars:
                raise ClockError("data", f"the kernel needs the value of {name}")
            orders.append(f"scalar {scalars[name]}")
            continue
        size, content = _bytes(lowered, i), ""
        if i in tensors and re.search(rf"\*\({_handle(name)}\b", kernel.source):
            size, content = tensors[i].nbytes, str(scratch / name)
            tensors[i].tofile(content)
        orders.append(f"tensor {size} {content}".rstrip())
    return orders


def _bytes(lowered: Lowered, position: int) -> int:
    if position >= len(lowered.parameters) or any(size < 0 for size in lowered.parameters[position].shape):
        return UNKNOWN_SIZE
    parameter = lowered.parameters[position]
    item = {"float64": 8, "int64": 8, "uint64": 8, "float32": 4, "int32": 4, "uint32": 4}.get(parameter.dtype, 2)
    return max(1, int(np.prod(parameter.shape)) * item)


def _handle(name: str) -> str:
    return name.removesuffix("_raw")


def _dependences(kernel: GeneratedKernel, supplied: set[str]) -> tuple[int, ...]:
    """Finds control flow that depends on data.

    Returns:
        Lines that depend on on-chip data, which reads as zero.

    Raises:
        ClockError: A line depends on a tensor whose content was not supplied.
    """
    known = {_handle(name) for name in supplied}
    sources: dict[str, set[str]] = {}  # variable -> handles and "on-chip data" that its value comes from
    assumed = []
    for number, line in enumerate(kernel.source.splitlines(), 1):
        read = {f"*{name}" for name in re.findall(r"\*\((\w+_handle)\b", line)}
        read |= {"on-chip"} if ".GetValue(" in line else set()
        for name in set(re.findall(r"[A-Za-z_]\w*", line)) & sources.keys():
            read |= sources[name]
        if not read:
            continue
        variable = re.match(r"\s*(?:[\w:]+ )?(\w+) = ", line)
        if re.match(r"\s*(for|if|while|\} else if) ?\(", line):
            missing = sorted(
                name[1:].removesuffix("_handle") for name in read if name[0] == "*" and name[1:] not in known
            )
            if missing:
                text = f"generated line {number}: {kernel.statement(number)}"
                raise ClockError(
                    "data", f"control flow depends on the content of {', '.join(missing)}: pass it\n  {text}"
                )
            if "on-chip" in read:
                assumed.append(number)
        elif variable:
            sources[variable[1]] = sources.get(variable[1], set()) | read
    return tuple(assumed)
