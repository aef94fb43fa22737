"""Rules that look at generated code: flags counted over the whole run of one block, and scalar loops."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.rules.model import Module
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
"""Flag calls after which counting is given up."""

_FLAG = re.compile(
    r"(set|wait)_flag(?:_pipeline<PIPE_(\w+), PIPE_(\w+)> \(|\(PIPE_(\w+), PIPE_(\w+), (?:EVENT_ID)?)(.+)\)$"
)
_FOR = re.compile(r"for \(int(?:32|64)_t (\w+) = (.+?); \1 < (.+?); \+\+\1\) \{")
_ASSIGNED = re.compile(r"(?:(?:auto|bool|u?int\d+_t|int) )?(\w+) = (.+)$")
_GUARD = {"C": "__DAV_C220_CUBE__", "V": "__DAV_C220_VEC__"}
_SCALAR_LOOP = re.compile(r"for \([^\n]*\{\s*for \([^\n]*\{[^{}]*\.SetValue\(")

Flag = tuple[str, str, int]  # setting pipe, waiting pipe, id


class Unknown(Exception):
    """The code's course depends on what is known only on the device."""


def _expression(text: str) -> str:
    """A C integer expression as Python."""
    text = re.sub(r"\((?:bool|u?int\d+_t|int|half|float)\)", "", text)
    text = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or "))
    if re.search(r"[?\[{\"]|->|GetValue|::", text):
        raise Unknown(text)
    return text.replace("/", "//")


def _length(lines: Sequence[str], start: int) -> int:
    """How many lines the block has that opens at ``start``."""
    depth = 0
    for offset, line in enumerate(lines[start:]):
        depth += line.count("{") - line.count("}")
        if depth <= 0 and offset:
            return offset
    return len(lines) - start


def program(source: str, core: str) -> str:
    """One core's course through generated ``pto`` code, as a Python generator of its flag calls.

    Raises:
        Unknown: A loop, a condition or a flag depends on data.
    """
    code = source[source.index("main_kernel(") : source.index('extern "C" void call')]
    lines = [line.strip().rstrip(";") for line in code.splitlines()[1:] if line.strip()]
    out = ["def run(cid, vid):"]
    indent, other = 1, False
    skipped_until = 0
    for number, line in enumerate(lines):
        if line.startswith("#"):
            other = line.startswith("#if") and _GUARD[core] not in line
            continue
        if other or number < skipped_until:
            continue
        put = "    " * indent
        if line.startswith("}"):
            indent -= 1
            if indent == 0:
                break
            if "else" in line:
                out.append("    " * indent + "else:")
                indent += 1
                out.append("    " * indent + "pass")
        elif line.endswith("{"):
            size = _length(lines, number)
            inside = any(_FLAG.search(inner) for inner in lines[number : number + size])
            loop = _FOR.match(line)
            try:
                if loop is not None and inside:
                    out.append(f"{put}for {loop[1]} in range({_expression(loop[2])}, {_expression(loop[3])}):")
                elif line.startswith("if "):
                    out.append(f"{put}if {_expression(line[3:-1].strip())}:")
                elif line == "{":
                    out.append(f"{put}if True:")
                else:
                    raise Unknown(line)
            except Unknown:
                if inside:
                    raise
                skipped_until = number + size + 1
                continue
            indent += 1
            out.append("    " * indent + "pass")
        elif (flag := _FLAG.search(line)) is not None:
            names = f"{flag[2] or flag[4]!r}, {flag[3] or flag[5]!r}"
            out.append(f"{put}yield {flag[1]!r}, ({names}, {_expression(flag[6])})")
        elif (assigned := _ASSIGNED.match(line)) is not None and assigned[1] not in ("cid", "vid"):
            try:
                value = _expression(assigned[2])
            except Unknown:
                value = "None"
            out += [f"{put}try: {assigned[1]} = {value}", f"{put}except (NameError, TypeError): {assigned[1]} = None"]
    return "\n".join([*out, "    return", "    yield"])


def count(source: str, core: str) -> Counter[tuple[str, Flag]]:
    """How often block 0 sets and waits for each flag on one core (``C``, or ``V``: its first vector core).

    Raises:
        Unknown: That depends on data, or takes too many steps.
    """
    scope: dict[str, Any] = {"__builtins__": {"range": range, "NameError": NameError, "TypeError": TypeError}}
    counter: Counter[tuple[str, Flag]] = Counter()
    try:
        exec(compile(program(source, core), "<generated code>", "exec"), scope)
        for event in scope["run"](0, 0):
            counter[event] += 1
            if counter.total() > LIMIT:
                raise Unknown("too many flags to count")
    except (NameError, TypeError, SyntaxError, ArithmeticError, ValueError) as error:
        raise Unknown(str(error)) from error
    return counter


def check(lowered: Lowered, path: Path, context: Context) -> list[Finding]:
    """Findings in one lowered kernel, placed where the file makes the flag or the loop."""
    if lowered.target != "pto":
        return []
    try:
        module = Module(path)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return []
    hits = [("TLA214", hit) for core in "CV" for hit in _flags(lowered.source, core, module)]
    if _SCALAR_LOOP.search(lowered.source):
        loops = (op for factory in module.factories for k in factory.kernels for op in k.named("T.assign") if op.loops)
        place = next((op.loops[0].node for op in loops), 1)
        fix = "write the T.Parallel body as arithmetic on whole rows, or use T.tile operations"
        hits.append(("TLA414", Hit(place, "nested loops set single elements of a tile", fix)))
    return [finding(rule, path, hit, module.lines) for rule, hit in hits]


def _flags(source: str, core: str, module: Module) -> Iterator[Hit]:
    try:
        counted = count(source, core)
    except Unknown:
        return
    for flag in dict.fromkeys(flag for _, flag in counted):
        sets, waits = counted["set", flag], counted["wait", flag]
        if sets != waits:
            calls = (op for f in module.factories for k in f.kernels for op in k.named("T.set_flag", "T.wait_flag"))
            pair = [f"'{pipe.lower()}'" for pipe in flag[:2]]
            place = next((op.node for op in calls if [ast.unparse(a).lower() for a in op.arguments[:2]] == pair), 1)
            word = {"C": "cube", "V": "vector"}[core]
            message = (
                f"the {word} core sets flag {flag[2]} from {flag[0]} to {flag[1]} {sets} times"
                f" and waits for it {waits} times"
            )
            yield Hit(
                place, message, "set before the first loop what it waits for, wait after the last for what is left"
            )
