"""Rules that look at generated code: flags counted over the whole run of one block, and scalar loops."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from harness.rules.registry import Context, Finding, Hit, declare, finding

if TYPE_CHECKING:
    from harness.compiler.client import Lowered

declare(
    "TLA214",
    "flag-count",
    "Every wait needs its own set: a surplus set is there for the next kernel, a missing one hangs.",
)
declare("TLA414", "scalar-loop", "A loop over single elements uses one lane of the vector unit.", severity="warning")

LIMIT = 200_000
"""Steps after which counting is given up."""

_SET = re.compile(
    r"(?:set_flag_pipeline|SetFlag)<(?:AscendC::HardEvent::)?(?:PIPE_)?(\w+?)(?:, PIPE_|_)(\w+)> ?\((.+)\)"
)
_WAIT = re.compile(
    r"(?:wait_flag_pipeline|WaitFlag)<(?:AscendC::HardEvent::)?(?:PIPE_)?(\w+?)(?:, PIPE_|_)(\w+)> ?\((.+)\)"
)
_PLAIN = re.compile(r"^(set_flag|wait_flag)\(PIPE_(\w+), PIPE_(\w+), (?:EVENT_ID)?(.+)\)")
_CROSS_SET = re.compile(r"(?:set_cross_flag<PIPE_\w+>\((\w.*?), (\d)\)|CrossCoreSetFlag<0x(\d), PIPE_\w+>\((.+)\))")
_CROSS_WAIT = re.compile(r"(?:wait_cross_flag|CrossCoreWaitFlag)\((.+?)\)$")
_FOR = re.compile(r"for \(int(?:32|64)_t (\w+) = (.+?); \1 < (.+?); \+\+\1\) \{")
_DECLARED = re.compile(r"(?:auto|u?int(?:32|64)_t|bool) (\w+) = (.+)$")
_CORE = {"__DAV_C220_CUBE__": "C", "__DAV_C220_VEC__": "V", "ASCEND_IS_AIC": "C", "ASCEND_IS_AIV": "V"}


class Unknown(Exception):
    """The code's course depends on what is known only on the device."""


def body(source: str) -> list[str]:
    """Statements of the kernel function, one a line."""
    start = source.index("main_kernel(")
    end = source.find('extern "C" void call', start)
    end = source.find("void main_kernel_tiling", start) if "main_kernel_tiling" in source[start:] else end
    return [line.strip().rstrip(";") for line in source[start:end].splitlines()[1:] if line.strip()]


def _expression(text: str) -> str:
    """A C integer expression as Python."""
    text = re.sub(r"\((?:bool|u?int(?:32|64)_t|int|half|float)\)", "", text)
    text = re.sub(r"(?<![<>=!/])/(?!/)", "//", text.replace("&&", " and ").replace("||", " or "))
    text = re.sub(r"!(?!=)", " not ", text)
    if re.search(r"[?\[{\"]|->|GetValue|::", text):
        raise Unknown(text)
    return re.sub(r"\b(\d+)[uUlL]+\b", r"\1", text)


def program(lines: list[str], core: str) -> str:
    """The course of one core as a Python function that yields ``(kind, key)`` for every flag call.

    Raises:
        Unknown: A loop bound, condition or flag number depends on data.
    """
    out, depth, stack = ["def run(cid, vid):"], 1, [""]
    skip = 0  # braces or preprocessor blocks of the other core

    def emit(text: str) -> None:
        out.append("    " * depth + text)

    has_flags = [re.search(r"[Ff]lag", line) is not None for line in lines]
    guard: list[str] = []
    for number, line in enumerate(lines):
        if line.startswith("#if"):
            guard.append(next((c for name, c in _CORE.items() if name in line), "?"))
            continue
        if line.startswith("#endif"):
            guard.pop()
            continue
        if line.startswith("#") or any(g not in (core, "?") for g in guard):
            continue
        if skip:
            skip += line.count("{") - line.count("}")
            continue
        if line in ("}", "} else {") or line.startswith("} else"):
            depth -= 1
            kind = stack.pop()
            if line != "}" and kind == "if":
                emit("else:")
                stack.append("if")
                depth += 1
                emit("pass")
            continue
        loop = _FOR.match(line)
        if loop is not None:
            block = _block(lines, number)
            if not any(has_flags[number : number + block]):
                skip = 1
                continue
            emit(f"for {loop[1]} in range({_expression(loop[2])}, {_expression(loop[3])}):")
        elif line.startswith("if ASCEND_IS"):
            if _CORE[line.split()[1]] != core:
                skip = 1
                continue
            emit("if True:")
        elif line.startswith("if (") and line.endswith("{"):
            if not any(has_flags[number : number + _block(lines, number)]):
                skip = 1
                continue
            emit(f"if {_expression(line[3:-1].strip())}:")
        elif line.startswith("while"):
            raise Unknown(line)
        elif line.endswith("{"):
            emit("if True:")
        else:
            for kind, key in _event(line):
                emit(f"yield {kind!r}, {key}")
            declared = _DECLARED.match(line)
            if declared is not None and declared[1] not in ("cid", "vid"):
                try:
                    emit(f"{declared[1]} = {_expression(declared[2])}")
                except Unknown:
                    emit(f"{declared[1]} = None")
            continue
        stack.append("if" if not line.startswith("for") else "for")
        depth += 1
        emit("pass")
    emit("return")
    emit("yield")
    return "\n".join(out)


def _block(lines: list[str], start: int) -> int:
    """How many lines the block that opens at ``start`` has."""
    depth = 0
    for offset, line in enumerate(lines[start:]):
        depth += line.count("{") - line.count("}")
        if depth <= 0 and offset:
            return offset
    return len(lines) - start


def _event(line: str) -> Iterator[tuple[str, str]]:
    for kind, pattern in (("set", _SET), ("wait", _WAIT)):
        match = pattern.search(line)
        if match is not None:
            yield kind, f"('{match[1]}', '{match[2]}', {_expression(match[3])})"
            return
    plain = _PLAIN.match(line)
    if plain is not None:
        yield plain[1][:-5], f"('{plain[2]}', '{plain[3]}', {_expression(plain[4])})"
        return
    crossing = _CROSS_SET.search(line)
    if crossing is not None:
        yield "cross set", f"({_expression(crossing[1] or crossing[4])}, {crossing[2] or crossing[3]})"
        return
    awaiting = _CROSS_WAIT.search(line)
    if awaiting is not None:
        yield "cross wait", f"({_expression(awaiting[1])},)"


def count(source: str, core: str) -> Counter[tuple[str, tuple[object, ...]]]:
    """How often block 0 sets and waits for each flag on one core (``C``, or ``V``: its first vector core).

    Raises:
        Unknown: That depends on data, or takes too many steps.
    """
    scope: dict[str, object] = {}
    try:
        exec(
            compile(program(body(source), core), "<generated code>", "exec"), {"__builtins__": {"range": range}}, scope
        )
        events = scope["run"](0, 0)  # type: ignore[operator]
        counter: Counter[tuple[str, tuple[object, ...]]] = Counter()
        for steps, event in enumerate(events):
            if steps > LIMIT:
                raise Unknown("too long")
            counter[event] += 1
        return counter
    except (NameError, TypeError, SyntaxError, ZeroDivisionError, IndexError) as error:
        raise Unknown(str(error)) from error


def check(lowered: Lowered, path: Path, context: Context) -> list[Finding]:
    """Findings in one lowered kernel; positions are those of the kernel file as a whole."""
    findings = []
    for core, word in (("C", "cube"), ("V", "vector")):
        try:
            counted = count(lowered.source, core)
        except (Unknown, ValueError):
            continue
        for key in dict.fromkeys(key for kind, key in counted if kind in ("set", "wait")):
            sets, waits = counted["set", key], counted["wait", key]
            if sets != waits:
                flag = f"flag {key[2]} from {key[0]} to {key[1]}"
                message = f"on the {word} core {flag} is set {sets} times and waited for {waits} times"
                fix = "before the first loop, set what it waits for; after the last, wait for what it set"
                findings.append(finding("TLA214", path, Hit(1, message, fix)))
    if re.search(r"for \([^\n]*\{\s*for \([^\n]*\{[^{}]*\.SetValue\(", lowered.source):
        fix = "write the T.Parallel body as plain arithmetic on whole rows, or use T.tile operations"
        findings.append(finding("TLA414", path, Hit(1, "two nested loops set single elements of a tile", fix)))
    return findings
