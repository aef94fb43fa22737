"""Estimates the starters against upstream's examples at equal shapes; writes docs/upstream-comparison.md.

    python benchmarks/compare_upstream.py --tilelang-ascend CHECKOUT [--only SCENARIO/OPERATOR]

The checkout is a git repository (a bare one too) of tile-ai/tilelang-ascend. Needs the TileLang-Ascend compiler and a
C++ compiler. Times are the virtual clock's, without launch.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "template"), str(ROOT / "tests")]

import numpy as np  # noqa: E402

import harness.project  # noqa: E402
import repository  # noqa: E402
from harness import catalog  # noqa: E402
from harness.budget import budget  # noqa: E402
from harness.clock import ClockError, Extra, estimate  # noqa: E402
from harness.clock.model import PIPES  # noqa: E402
from harness.clock.trace import input_positions  # noqa: E402
from harness.compare import compare as compared  # noqa: E402
from harness.compare import gate  # noqa: E402
from harness.compiler.client import Compiler, CompilerError, Lowered, Request, find_compiler  # noqa: E402
from harness.execution import make_inputs  # noqa: E402
from harness.ladder import is_basic  # noqa: E402
from harness.project import Project  # noqa: E402
from harness.spec import Case, Spec, Work  # noqa: E402
from harness.vnpu.build import BuildError, build  # noqa: E402
from harness.vnpu.run import RunError, run  # noqa: E402
from lowering import foreign_modules  # noqa: E402
from upstream import Repository, extract  # noqa: E402

DOCUMENT = ROOT / "docs" / "upstream-comparison.md"
MN, MNK = ("M", "N"), ("M", "N", "K")
ODD = {"M": 130, "N": 300, "K": 200}  # with a tail in every direction


@dataclass(frozen=True)
class Example:
    """An example of upstream.

    Attributes:
        path: In the checkout.
        factory: The decorated function.
        shape: Sizes of the starter's shape that it takes by the same name.
        arguments: Its other arguments, as its own test passes them.
        dtype: Element type that is compared; it is passed on where ``typed``.
        defines: Module-level names to set, in place of parsed arguments.
    """

    path: str
    factory: str
    shape: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float16"
    typed: bool = False
    defines: tuple[str, ...] = ()


def _vector(path: str, factory: str, block_m: int, block_n: int, **options: Any) -> Example:
    return Example(path, factory, MN, {"block_M": block_m, "block_N": block_n}, **options)


SOFTMAX = _vector("examples/softmax/example_online_softmax.py", "online_softmax", 128, 128, typed=True)
GEMM = {"block_M": 128, "block_N": 256, "K_L1": 64}
PIPELINED = {"block_M": 128, "block_N": 256, "block_K": 64, "K_L1": 256, "S1": 2, "S2": 2}
ADD = Example(
    "examples/elementwise/elementwise_add.py", "vec_add", MN, {"block_M": 128, "block_N": 256}, typed=True, defines=MN
)
FUSED = {"block_M": 128, "block_N": 256, "block_K": 64}
ATTENTION = {"batch": 1, "heads_q": 8, "heads_kv": 8, "seq_len": 1024, "dim": 128}
FA = "examples/flash_attention/fa_opt/flash_attn_bhsd_{}_h16_d128.py"

# What the starters are held against: the examples that the catalog names, and faster ones of the same kind.
EXAMPLES: Mapping[str, tuple[Example, ...]] = {
    "vector/softmax": (SOFTMAX,),
    "vector/add": (ADD,),
    "vector/rms_norm": (
        Example(
            "examples/normalization/rms_norm.py",
            "_rms_norm",
            MN,
            {"block_M_in": 64, "block_N_in": 128},
            typed=True,
        ),
    ),
    "vector/gelu": (),
    "vector/silu": (_vector("examples/activation/silu.py", "silu", 64, 64, typed=True),),
    "vector/layer_norm": (_vector("examples/normalization/layer_norm.py", "layer_norm", 128, 128, typed=True),),
    "vector/row_reduce": (
        Example("examples/reduce/example_reduce_min.py", "reduce_min", MN, {"block_M": 128}, typed=True),
    ),
    "gemm/matmul": (Example("examples/developer_mode/gemm_developer.py", "matmul", MNK, GEMM, defines=MNK),),
    "cv_fusion/matmul_bias_gelu": (
        Example("examples/developer_mode/matmul_add_developer.py", "matmul_add", MNK, FUSED, defines=MNK),
    ),
    "cv_fusion/int8_matmul_dequant": (
        Example(
            "examples/quant_batch_matmul/example_quant_matmul.py",
            "simple_quant_matmul",
            MNK,
            FUSED | {"scale_size": "N", "in_dtype": "int8", "out_dtype": "float16", "accum_dtype": "int32"}
            | {"scale_dtype": "float32"},
            dtype="int8",
        ),
    ),
    "cv_fusion/w4a8_matmul": (
        Example("examples/dequantize_gemm/example_dequant_gemm_w4a8.py", "w4a8_gemm_cv", MNK, dtype="int8"),
    ),
    "mixed/matmul_add": (Example("examples/simple_fusion/matmul_add.py", "matmul_add", MNK, FUSED, defines=MNK),),
    "mixed/softmax": (SOFTMAX,),
    "mixed/flash_attention": (Example(FA.format("auto_pipeline"), "flash_attention_fwd", (), ATTENTION),),
    "expert/matmul": (
        Example("examples/gemm/example_gemm_intrinsic.py", "matmul", MNK, PIPELINED, defines=MNK),
        Example("examples/gemm/example_gemm_intrinsic_persistent.py", "matmul", MNK, PIPELINED, defines=MNK),
    ),
    "expert/matmul_plain": (Example("examples/gemm/example_gemm.py", "matmul", MNK, GEMM, defines=MNK),),
    "expert/flash_attention": (Example(FA.format("expert"), "flash_attention_fwd", (), ATTENTION),),
    "flash_attention/forward": (Example(FA.format("auto_pipeline"), "flash_attention_fwd", (), ATTENTION),),
}  # fmt: skip


@dataclass(frozen=True)
class Side:
    """What one kernel costs.

    Attributes:
        microseconds: Estimated time without launch.
        pipe: The busiest pipe of the core that has it, as ``vector V``.
        count: Instructions that this pipe executes on one core, over all rounds of the grid.
        busy_us: What they keep it busy for, in microseconds, average over the cores.
        memory: Bytes used of each on-chip memory.
        limit: What limits the kernel, in words.
    """

    microseconds: float
    pipe: str
    count: int
    busy_us: float
    memory: Mapping[str, int]
    limit: str


@dataclass(frozen=True)
class Comparison:
    """One starter. ``upstream`` maps examples to their costs, or to why there are none; ``numbers`` to what they
    compute on the virtual NPU."""

    name: str
    dtype: str
    shape: str
    ours: Side
    upstream: Mapping[str, Side | str]
    numbers: Mapping[str, str]

    @property
    def best(self) -> Side | None:
        sides = [side for side in self.upstream.values() if isinstance(side, Side)]
        return min(sides, key=lambda side: side.microseconds, default=None)


def compare(name: str, repo: Repository, compiler: Compiler, scratch: Path) -> Comparison:
    scenario, operator = name.split("/")
    examples = EXAMPLES.get(name, ())
    dtypes = repository.catalog()["operators"][scenario][operator]["dtypes"]
    dtype = examples[0].dtype if examples and examples[0].dtype in dtypes else dtypes[0]
    answers = {"kernel_name": repository.NAME, "scenario": scenario, "operator": operator, "dtype": dtype}
    root = repository.render(ROOT, scratch / scenario / operator, answers)
    found: dict[str, Side | str] = {}
    numbers: dict[str, str] = {}
    with foreign_modules():
        project = harness.project.load(root)
        spec = project.spec()
        case = next(case for case in spec.cases if is_basic(case))
        work = spec.work(case)
        arguments = project.check_inputs()(*make_inputs(spec, case), device="cpu", **case.options)
        request = Request(project.kernel, project.name, arguments, "pto", "A2")
        ours = lowered_side(compiler.lower(request), work, compiler)
        for example in examples:
            try:
                lowered = lower(example, case.shape, dtype, repo, compiler, scratch)
                found[example.path] = lowered_side(lowered, work, compiler)
            except (ClockError, CompilerError) as error:
                found[example.path] = str(error).splitlines()[0]
            odd = {size: ODD[size] for size in example.shape}
            told = []
            for sizes in [case.shape, dict(case.shape) | odd] if odd else [case.shape]:
                problem = Case(name="compared", level="l1", shape=sizes)
                told.append(f"{shown(sizes)}: {judged(example, problem, project, spec, repo, compiler, scratch)}")
            numbers[example.path] = "; ".join(told)
    return Comparison(name, dtype, shown(case.shape), ours, found, numbers)


def shown(sizes: Mapping[str, Any]) -> str:
    return ", ".join(f"{k}={v}" for k, v in sizes.items() if isinstance(v, int) and not isinstance(v, bool))


def judged(
    example: Example, case: Case, project: Project, spec: Spec, repo: Repository, compiler: Compiler, scratch: Path
) -> str:
    """What upstream's kernel computes from the starter's inputs, held against the starter's reference."""
    inputs = make_inputs(spec, case)
    try:
        lowered = lower(example, case.shape, project.dtype, repo, compiler, scratch)
        shapes = [lowered.parameters[position].shape for position in input_positions(lowered)]
        if [math.prod(map(int, shape)) for shape in shapes] != [array.size for array in inputs]:
            return "not compared, it takes other inputs"
        tensors = [array.reshape(tuple(map(int, shape))) for array, shape in zip(inputs, shapes, strict=True)]
        got = run(build(lowered, compiler.package), tensors, time_limit=300).outputs[0]
    except (CompilerError, BuildError, RunError, ValueError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0].replace(f'{scratch}/', '')}"
    expected = project.reference()(*inputs, **case.options)
    expected = np.asarray(expected[0] if isinstance(expected, tuple) else expected)
    if got.size != expected.size:
        return "not compared, it returns another shape"
    found = compared(got.reshape(expected.shape), expected, gate(catalog.load(), got.dtype.name), None)
    return "right" if found.passed else f"wrong: {found.report.splitlines()[0]}"


def lowered_side(lowered: Lowered, work: Work, compiler: Compiler) -> Side:
    found = estimate(lowered, compiler.package, work=work, platform="A2", backend="ascendc", extra=Extra())
    assert found.trace is not None, "estimates carry their trace"
    core, pipe = max(
        ((core, pipe) for core, shares in found.busy.items() for pipe in shares),
        key=lambda item: found.busy[item[0]][item[1]],
    )
    rows = found.trace.timeline
    of_pipe = rows[rows["pipe"] == PIPES.index(pipe)]
    counts = Counter(int(role) for role in of_pipe["role"] if (role == 0) == (core == "cube"))
    rounds = -(-found.blocks // found.cores)
    return Side(
        microseconds=max(found.pipes_us, found.memory_us),
        pipe=f"{core} {pipe}",
        count=max(counts.values(), default=0) * rounds,
        busy_us=found.busy[core][pipe] * found.pipes_us,
        memory={use.memory: use.used for use in budget(lowered, catalog.load(), "A2")},
        limit=found.limit,
    )


def lower(
    example: Example, sizes: Mapping[str, Any], dtype: str, repo: Repository, compiler: Compiler, scratch: Path
) -> Lowered:
    shape = {name: sizes[name] for name in example.shape}
    source = extract(repo.read(example.path), example.factory)
    heading = "".join(f"{name} = {shape[name]}\n" for name in example.defines)
    path = scratch / f"{Path(example.path).stem}.py"
    path.write_text(heading + _without(source, example.defines))
    arguments = (
        shape | dict(example.arguments) | ({"dtype": "float" if dtype == "float32" else dtype} if example.typed else {})
    )
    return compiler.lower(Request(path, example.factory, arguments, "pto", "A2"))


def _without(source: str, names: tuple[str, ...]) -> str:
    """Drops the module-level assignments of names that are set otherwise, and the argument parser they came from."""
    lines = source.splitlines(keepends=True)
    drop = (*(f"{name} = " for name in (*names, "args", "parser")), "parser.")
    return "".join(line for line in lines if not line.startswith(drop))


def document(comparisons: list[Comparison], repo: Repository, version: str) -> str:
    rows = [
        "| starter | problem | µs | upstream's | ratio | busiest pipe: instructions | upstream's | on-chip KiB "
        "| upstream's |",
        "| --- | --- | ---: | ---: | ---: | --- | --- | --- | --- |",
    ]
    notes, limits, numbers = [], [], []
    for c in comparisons:
        best = c.best
        cells = [c.name, f"{c.dtype}, {c.shape}", f"{c.ours.microseconds:.1f}"]
        if best is None:
            cells += ["–", "–", instructions(c.ours), "–", kibibytes(c.ours), "–"]
        else:
            cells += [f"{best.microseconds:.1f}", f"{c.ours.microseconds / best.microseconds:.2f}"]
            cells += [instructions(c.ours), instructions(best), kibibytes(c.ours), kibibytes(best)]
        rows.append(f"| {' | '.join(cells)} |")
        limits.append(f"- {c.name}: {c.ours.limit}")
        for path, side in c.upstream.items():
            notes.append(f"- {c.name}: `{path}`" + (f": {side}" if isinstance(side, str) else ""))
            numbers.append(f"- `{path}`: {c.numbers[path]}")
    return f"""# The starters against upstream's examples

Generated by `benchmarks/compare_upstream.py` with TileLang-Ascend {version} and tilelang-ascend {repo.revision()}:
estimates of the virtual clock ([what they are worth](clock-validation.md)) for an Ascend 910B1 from the pto backend's
code, launch left out. Differences below 5 % mean nothing. Instructions are those of the busiest pipe of one core over
all its rounds, beside the time they keep it busy; on-chip memory is what the compiler's allocation reaches to.

{chr(10).join(rows)}

Compared with:

{chr(10).join(notes)}

What upstream's kernels compute on the virtual NPU from the same inputs (the starters are right on all of them):

{chr(10).join(dict.fromkeys(numbers))}

What limits the starters:

{chr(10).join(limits)}
{READING}"""


READING = """
## Where a starter takes more

- `vector/row_reduce`: upstream's example loads whole rows: at this shape it needs 768 KiB of the Unified Buffer, runs
  past its end on the virtual NPU, and is no kernel to be measured against. Ours takes rows of any length.
- `vector/silu`: upstream's example computes in float16; ours in float32, so a tile is cast twice (the additional
  instructions) and kept in both types (the additional memory). It is faster nevertheless: larger tiles, fewer of them.
- `vector/rms_norm`: ours multiplies by weights, upstream's has none, and drops rows and columns that do not fill a
  block.
- `vector/layer_norm`: likewise weights and biases; and upstream's variance is mean(x²) - mean(x)², which loses its
  digits where the mean is large.
- `vector/add`: smaller tiles, so more loads; both are bound by the memory's bandwidth.
- `cv_fusion/matmul_bias_gelu`: upstream's nearest example adds a matrix; ours adds a bias and computes GELU.
- `flash_attention/forward`, `mixed/flash_attention`: synchronisation is automatic, or nearly, and scores travel in
  float32. In `forward` the vector cores' loads (MTE2) are exposed: a tile of 128 columns arrives as two chunks of 64,
  the width at which a value per row can be applied on both backends, and the compiler puts a barrier between two copies
  into one buffer, so each chunk shows its whole latency (four loads, about 1.5 µs per block of keys). A buffer per
  chunk would avoid that, but AUTO_CV_SYNC wants as many copies of a workspace on one side as on the other. `mixed` has
  flags of its own and splits the buffer; it waits for the cube core, whose products each wait for a load into L1 (about
  1 µs per product, two per block). Upstream's example rounds scores and partial outputs to half precision, which halves
  those tiles, takes two blocks of keys per trip, float16, head_dim 128 and lengths that fill whole pipelines only, and
  has no mask. `expert`, with float32 scores and all flags by hand, is level at 1024 keys and 9 % faster at 4096.
- GEMMs: twice upstream's L1, for twice the depth of K in a load; half of the loads.

## Why the starters are right where upstream's kernels are not

`elementwise_add`, `gemm_developer`, `matmul_add` and `example_gemm` round their grids down (`N // block_N`): what lies
behind the last full block is never written. `example_gemm_intrinsic` refuses such sizes, its persistent form writes
past the end of a tensor, and `example_reduce_min` past the end of the Unified Buffer. The starters round up
(`T.ceildiv`), let copies cut at the edge of a tensor, and take long rows tile by tile.
"""


def instructions(side: Side) -> str:
    return f"{side.pipe}: {side.count:,}, {side.busy_us:.1f} µs"


def kibibytes(side: Side) -> str:
    return ", ".join(f"{memory} {used / 1024:.0f}" for memory, used in side.memory.items())


def names(only: list[str] | None) -> Iterator[str]:
    for scenario, records in repository.catalog()["operators"].items():
        for operator in records:
            name = f"{scenario}/{operator}"
            if operator != "custom" and (not only or name in only):
                yield name


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tilelang-ascend", type=Path, required=True)
    parser.add_argument("--only", action="append", metavar="SCENARIO/OPERATOR", help="print these, write nothing")
    arguments = parser.parse_args()
    repo = Repository(arguments.tilelang_ascend)
    with tempfile.TemporaryDirectory(prefix="upstream-") as folder, find_compiler() as compiler:
        catalog.PATH = repository.write_catalog(Path(folder) / "catalog.json")
        comparisons = []
        for name in names(arguments.only):
            comparisons.append(compare(name, repo, compiler, Path(folder)))
            print(comparisons[-1], file=sys.stderr, flush=True)
        if not arguments.only:
            DOCUMENT.write_text(document(comparisons, repo, compiler.version), encoding="utf-8")
            print(f"written: {DOCUMENT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
