"""The text of what the user owns besides the kernel: host function, reference, cases, design."""

from __future__ import annotations

import re
from collections.abc import Sequence

from adoption.description import NAMED, Description, Option, Problem, Tensor, names_in
from harness.catalog import Catalog
from harness.rules.cores import CUBE
from harness.rules.model import ITEMSIZE

WIDTH = 120
LONGEST = 60  # characters of a case's name
ML_DTYPES = {"bfloat16": "bfloat16", "float8_e4m3": "float8_e4m3fn", "float8_e5m2": "float8_e5m2"}
ANNOTATIONS = {bool: "bool", int: "int", float: "float", str: "str"}


def host(description: Description, name: str, source: str) -> str:
    """``__init__.py``: the checks and the host function."""
    d = description
    tensors = [
        f'    inputs.tensor("{t.host}", {t.host}, {dims(t)}, "{ML_DTYPES.get(t.dtype, t.dtype)}")' for t in d.inputs
    ]
    expressions = list(dict.fromkeys(dim.text for t in d.inputs for dim in t.dims if dim.kind == "expression"))
    read = [size for size in d.sizes if any(size in names_in(text) for text in expressions)]
    checks = [f'    {size} = inputs.sizes["{size}"]' for size in read]
    if expressions:
        pairs = [f'("{text}", {text})' for text in expressions]
        checks += wrapped("    for computed, wanted in (", [*pairs, ""] if len(pairs) == 1 else pairs, "):")
        checks += [
            "        if inputs.sizes[computed] != wanted:",
            f'            raise ValueError(f"{name}: {{computed}} is {{wanted}}, got {{inputs.sizes[computed]}}")',
        ]
    entries = [f'"{size}": inputs.sizes["{size}"]' for size in d.arguments]
    entries += [f'"{option.name}": {option.name}' for option in d.options]
    entries += [f'"{option.name}": {literal(option.value)}' for option in d.constants]
    inner = [t.host for t in d.inputs]
    keywords = [f"{option.name}={option.name}" for option in d.options]
    call = ", ".join([*inner, *keywords])
    result = ", ".join(shown(t) for t in d.outputs) or "Nothing."
    return "\n".join(
        [
            f'"""{name} for Ascend NPUs, adopted from {source}."""',
            "",
            "from __future__ import annotations",
            "",
            "from functools import cache",
            "from typing import Any",
            "",
            "from .inputs import Inputs",
            "",
            f'__all__ = ["check_inputs", "{name}"]',
            "",
            "",
            *signature(d, "check_inputs", "dict[str, Any]", "Any", ['device: str = "npu"']),
            f'    """Checks the arguments of `{name}` and describes the kernel they need.',
            "",
            "    Returns:",
            "        Keyword arguments of the kernel factory.",
            "",
            "    Raises:",
            "        TypeError: Not a tensor, or another element type.",
            "        ValueError: Sizes that do not go together, an empty or non-contiguous tensor, another device.",
            '    """',
            *([f'    inputs = Inputs("{name}", device)'] if d.inputs else []),
            *tensors,
            *checks,
            *wrapped("    return {", entries, "}"),
            "",
            "",
            "@cache",
            "def _compiled(**arguments: Any) -> Any:",
            f"    from .kernel import {name} as factory",
            "",
            "    return factory(**arguments)",
            "",
            "",
            *signature(d, name, "Any", "Any", []),
            f'    """{name}: to be described.',
            "",
            *arguments_section(d),
            "    Returns:",
            f"        {result}",
            '    """',
            *(
                [f"    return _compiled(**check_inputs({call}))({', '.join(inner)})"]
                if len(call) + len(", ".join(inner)) < WIDTH - 50
                else [
                    *wrapped("    arguments = check_inputs(", [*inner, *keywords], ")"),
                    *wrapped("    return _compiled(**arguments)(", inner, ")"),
                ]
            ),
            "",
        ]
    )


def reference(description: Description, name: str) -> str:
    """``reference.py``: a golden that says what is to be written."""
    d = description
    arrays = "Array" if len(d.outputs) < 2 else "tuple[Array, ...]"
    wanted = ", ".join(f"{t.name} [{', '.join(dim.text for dim in t.dims)}]" for t in d.outputs) or "its outputs"
    return "\n".join(
        [
            f'"""Golden reference of {name}: TO BE WRITTEN. The tests fail until it is."""',
            "",
            "from __future__ import annotations",
            "",
            "from typing import Any",
            "",
            "from numpy.typing import NDArray",
            "",
            "Array = NDArray[Any]",
            "",
            "",
            *wrapped("def reference(", [*(f"{t.host}: Array" for t in d.inputs), "**options: Any"], f") -> {arrays}:"),
            '    """What the kernel computes, in NumPy and in float64 (integers: int64).',
            "",
            "    Args:",
            *(f"        {t.host}: {shown(t)}" for t in d.inputs),
            "        options: Those of the host function; block sizes change nothing here.",
            "",
            "    Returns:",
            f"        {', '.join(shown(t) for t in d.outputs) or 'The outputs.'}",
            '    """',
            "    raise NotImplementedError(",
            f'        "the golden reference of {name} is to be written: "',
            *(f'        "{part}"' for part in pieces(f"return {wanted}, computed in NumPy in higher precision")),
            "    )",
            "",
        ]
    )


def spec(description: Description, name: str, source: str) -> str:
    """``tests/spec.py``: inputs, work and cases, as far as the file tells."""
    d = description
    used = {t.dtype for t in d.inputs}
    special = sorted({ML_DTYPES[dtype] for dtype in used if dtype in ML_DTYPES})
    whole = [dtype for dtype in used if not dtype.startswith(("float", "bfloat"))]
    body = ['    if case.fill == "zeros":', "        return np.zeros(shape, dtype)"]
    if whole:
        body += [
            '    if np.dtype(dtype).kind in "iub":',
            "        # FILL IN: indices, masks and packed values need a range of their own.",
            "        return rng.integers(0, 2, shape).astype(dtype)",
        ]
    body += ["    return rng.standard_normal(shape, dtype=np.float32).astype(dtype)"]
    arrays = [f"values(case, rng, {shape_of(t)}, {element(t.dtype)})" for t in d.inputs]
    known = [t for t in (*d.inputs, *d.outputs) if all(dim.kind != "unknown" for dim in t.dims)]
    outputs = [f"{count_of(t)} * {ITEMSIZE[t.dtype]}" for t in known]
    products = any(True for _ in d.factory.kernels[0].named(*CUBE))
    cases: list[str] = []
    for problem in d.problems:
        cases += case_lines(d, problem)
    cases += case_lines(d, d.problems[0], fill="zeros")
    return "\n".join(
        [
            f'"""What {name} is tested, simulated and benchmarked on; harness/spec.py explains the types.',
            "",
            f"Proposed by adopt from what {source} calls its kernel with: check every FILL IN.",
            '"""',
            "",
            "from __future__ import annotations",
            "",
            "from typing import Any",
            "",
            "import numpy as np",
            *([f"from ml_dtypes import {', '.join(special)}"] if special else []),
            "",
            "from harness.spec import Array, Case, ErrorCase, Spec, Work",
            "",
            "",
            "def values(case: Case, rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:",
            '    """FILL IN: what the inputs hold; random numbers find more than constants do."""',
            *body,
            "",
            "",
            "def inputs(case: Case, rng: np.random.Generator) -> tuple[Array, ...]:",
            '    """The input arrays of a case, in the host function\'s order."""',
            *unpacked(d, d.inputs),
            *wrapped("    return (", [*arrays, ""] if len(arrays) == 1 else arrays, ")"),
            "",
            "",
            "def work(case: Case) -> Work:",
            '    """FILL IN: arithmetic operations; bytes are those of inputs and outputs."""',
            *unpacked(d, known),
            *wrapped("    moved = sum((", [*outputs, ""] if len(outputs) == 1 else outputs, "))"),
            "    return Work(flops=moved, bytes=moved)",
            "",
            "",
            "CASES = (",
            *cases,
            ")",
            "",
            *errors(d),
            "SPEC = Spec(",
            "    inputs=inputs,",
            "    work=work,",
            "    cases=CASES,",
            "    errors=ERRORS,",
            *(['    tolerance="large",'] if products else []),
            ")",
            "",
        ]
    )


def design(description: Description, name: str, source: str, notes: Sequence[str], catalog: Catalog) -> str:
    """``design.md``: what was read, what was decided and what is to be done."""
    d = description
    row = catalog.switches(d.scenario.scenario, d.scenario.era)
    on = d.factory.config.switches
    switches = ", ".join(k.upper() for k, value in (on or {}).items() if value) or "none"
    wanted = ", ".join(k.upper() for k, value in row.items() if value) or "none"
    tensors = [f"| `{t.name}` | input | `{dims_text(t)}` | {t.dtype} |" for t in d.inputs]
    tensors += [f"| `{t.name}` | output | `{dims_text(t)}` | {t.dtype} |" for t in d.outputs]
    tensors += [f"| `{space}` | workspace | | |" for space in d.workspaces]
    return "\n".join(
        [
            f"# Design of {name}",
            "",
            f"Adopted from `{source}`, factory `{d.factory.name}`. This page is yours: say here how the kernel works.",
            "",
            "| | |",
            "|---|---|",
            f"| scenario | `{d.scenario.scenario}`: {d.scenario.why} |",
            f"| switches on in the kernel | {switches if on is not None else 'not known from the text'} |",
            f"| switches on in the scenario's row | {wanted} (compiler era {d.scenario.era}) |",
            f"| arguments from tensors | {', '.join(f'`{a}`' for a in d.arguments) or 'none'} |",
            f"| element types | {listed(d.constants) or 'as the factory has them'} |",
            f"| options | {listed(d.options) or 'none'} |",
            "",
            "| tensor | role | shape | element type |",
            "|---|---|---|---|",
            *tensors,
            "",
            "## To do",
            "",
            f"1. `src/{name}/reference.py`: the golden reference. Until it is there, level 0 fails and says so.",
            "2. `tests/spec.py`: every FILL IN; more cases, above all irregular sizes (level 1).",
            "3. `python -m harness check`: what the rules find in the kernel; `--fix` mends what is safe to mend.",
            "",
            *(["## What adopt noticed", "", *(f"- {note}" for note in notes), ""] if notes else []),
        ]
    )


# Parts.


def signature(d: Description, name: str, result: str, kind: str, more: Sequence[str]) -> list[str]:
    """The first lines of a function that takes the tensors and the options."""
    parts = [f"{t.host}: {kind}" for t in d.inputs]
    keywords = [option_parameter(option) for option in d.options] + list(more)
    return wrapped(f"def {name}(", [*parts, *(["*", *keywords] if keywords else [])], f") -> {result}:")


def option_parameter(option: Option) -> str:
    return f"{option.name}: {ANNOTATIONS.get(type(option.value), 'Any')} = {literal(option.value)}"


def listed(options: Sequence[Option]) -> str:
    return ", ".join(f"`{option.name} = {option.value!r}`" for option in options)


def literal(value: object) -> str:
    """A value as Python text, with double quotes."""
    text = repr(value)
    return '"' + text[1:-1] + '"' if isinstance(value, str) and '"' not in text else text


def wrapped(start: str, parts: Sequence[str], end: str) -> list[str]:
    """A bracketed list on one line, or an item a line where that is too long."""
    line = f"{start}{', '.join(parts).rstrip(' ') if parts else ''}{end}"
    if len(line) <= WIDTH and "\n" not in line:
        return [line]
    indent = re.match(r" *", start)
    inner = (indent[0] if indent else "") + "    "
    return [start, *(f"{inner}{part}," for part in parts if part), f"{inner[4:]}{end}"]


def pieces(text: str, width: int = 90) -> list[str]:
    """A text in parts of at most a width, to be put one after the other."""
    found, words = [""], text.split(" ")
    for word in words:
        if len(found[-1]) + len(word) > width:
            found.append("")
        found[-1] += word + " "
    return [*found[:-1], found[-1].rstrip()]


def arguments_section(d: Description) -> list[str]:
    lines = [f"        {t.host}: {shown(t)}" for t in d.inputs]
    lines += [f"        {option.name}: As the kernel factory takes it." for option in d.options]
    return ["    Args:", *lines, ""] if lines else []


def shown(t: Tensor) -> str:
    return f"[{', '.join(dim.text for dim in t.dims)}], {t.dtype}."


def dims(t: Tensor) -> str:
    """The dimensions as Inputs.tensor takes them."""
    parts = [dim.text if dim.kind == "number" else f'"{dim.text}"' for dim in t.dims]
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def dims_text(t: Tensor) -> str:
    return f"({', '.join(dim.text for dim in t.dims)})"


def shape_of(t: Tensor) -> str:
    return f"({', '.join(dim.text for dim in t.dims)}{',' if len(t.dims) == 1 else ''})"


def count_of(t: Tensor) -> str:
    return " * ".join(f"({dim.text})" if dim.kind == "expression" else dim.text for dim in t.dims) or "1"


def element(dtype: str) -> str:
    return ML_DTYPES.get(dtype) or {"bool": "np.bool_"}.get(dtype, f"np.{dtype}")


def unpacked(d: Description, tensors: Sequence[Tensor]) -> list[str]:
    """Local names for the sizes and options that the tensors' dimensions use."""
    used = {name for t in tensors for dim in t.dims if dim.kind in NAMED for name in names_in(dim.text)}
    lines = [f'    {size} = case.shape["{size}"]' for size in d.sizes if size in used]
    options = [option for option in d.options if option.name in used]
    return lines + [f'    {o.name} = int(case.options.get("{o.name}", {literal(o.value)}))' for o in options]


def case_lines(d: Description, problem: Problem, fill: str = "") -> list[str]:
    level = "boundary" if fill else problem.level
    sizes = "x".join(str(size) for size in problem.sizes.values()) or "fixed"
    changed = [re.sub(r"[^\w.]+", "-", f"{key}={value}") for key, value in problem.options.items()]
    if len(sizes) + sum(map(len, changed)) > LONGEST:
        sizes, changed = f"problem{d.problems.index(problem) + 1}", []
    name = "-".join([level, sizes, *changed, *([fill] if fill else [])])
    parts = [f'name="{name}"', f'level="{level}"']
    parts += ["\n".join(wrapped("        shape={", [f'"{k}": {v}' for k, v in problem.sizes.items()], "}")).lstrip()]
    parts += [f'fill="{fill}"'] if fill else []
    if problem.options:
        parts.append("options={" + ", ".join(f'"{k}": {literal(v)}' for k, v in problem.options.items()) + "}")
    lines = [f"    # {problem.why}"] if problem.why and not fill else []
    return [*lines, *wrapped("    Case(", parts, "),")]


def errors(d: Description) -> list[str]:
    """What check_inputs must refuse, told by the first tensor."""
    if not d.inputs:
        return ["ERRORS: tuple[ErrorCase, ...] = ()", ""]
    first, rank, others = d.inputs[0], len(d.inputs[0].dims), len(d.inputs) - 1
    right = element(first.dtype)
    rest = f", *[None] * {others}" if others > 1 else ", None" if others else ","
    wrong = "np.float64" if first.dtype != "float64" else "np.int8"
    return [
        "# FILL IN: arguments that check_inputs must refuse, with a part of the message.",
        "ERRORS = (",
        *wrapped(
            "    ErrorCase(",
            [
                'name="another rank"',
                f"inputs=lambda: (np.zeros((1,) * {rank + 1}, {right}){rest})",
                'match="dimension"',
            ],
            "),",
        ),
        *wrapped(
            "    ErrorCase(",
            [
                'name="wrong type"',
                f"inputs=lambda: (np.zeros((1,) * {rank}, {wrong}){rest})",
                f'match="{wrong[3:]}"',
                "error=TypeError",
            ],
            "),",
        ),
        *wrapped(
            "    ErrorCase(",
            ['name="not a tensor"', f"inputs=lambda: (1.0{rest})", 'match="must be a tensor"', "error=TypeError"],
            "),",
        ),
        ")",
        "",
    ]
