"""Holds the virtual clock against published device figures and reference cycles; writes docs/clock-validation.md.

    python benchmarks/validate_clock.py --pto-isa CHECKOUT --tilelang-ascend CHECKOUT

The checkouts are git repositories (bare ones too) of hw-native-sys/pto-isa and tile-ai/tilelang-ascend: the kernels are
theirs and are read from there. Needs the TileLang-Ascend compiler and a C++ compiler.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "template"), str(ROOT / "tests")]

from harness.clock import ClockError, Extra  # noqa: E402
from harness.clock.model import MODEL_GHZ, PIPES  # noqa: E402
from harness.clock.trace import profile, run_driver, trace  # noqa: E402
from harness.compiler.client import Compiler, CompilerError, Request, find_compiler  # noqa: E402
from harness.spec import Array  # noqa: E402
from harness.vnpu.toolset import CompileError, find_cxx, library, program  # noqa: E402
from upstream import Repository, extract  # noqa: E402

DOCUMENT = ROOT / "docs" / "clock-validation.md"
MODELS = {"upstream's figures alone": Extra.none(), "the virtual clock": Extra()}
ENTRY = """
VCLOCK_EXPORT void vclock_trace(const uint64_t *a, const vclock::Order *order, vclock::Trace *out) {{
    vclock::recorder.begin(*order);
    {call};
    vclock::recorder.finish(out);
}}
"""


@dataclass(frozen=True)
class Line:
    """A case: what was published, and what each model says, in microseconds. ``busy``: shares of the time by pipe."""

    name: str
    measured: float
    models: Mapping[str, float]
    busy: Mapping[str, float]
    note: str = ""

    def ratio(self, model: str) -> float:
        return self.models[model] / self.measured


def run(libraries: Mapping[str, Path], blocks: int, tensors: int, extra: Extra) -> dict[str, Any]:
    orders = [f"library {kind} {path}" for kind, path in libraries.items()]
    return run_driver(
        [*orders, f"blocks {blocks}", "cores 24", "jobs 2", *["tensor 268435456"] * tensors, *extra.orders()]
    )


def microseconds(report: Mapping[str, Any], extra: Extra) -> float:
    return float(report["span"]) / MODEL_GHZ / 1000 + extra.launch_us


def busy(report: Mapping[str, Any]) -> dict[str, float]:
    used = min(report["cores"], report["blocks"]) * report["span"]
    return {pipe: cycles / used for pipe, cycles in zip(PIPES, report["busy"][0], strict=True) if cycles}


# --- kernels written in PTO ---------------------------------------------------------------------------------


def gemm(pto: Repository, package: Path, scratch: Path) -> list[Line]:
    """kernels/manual/a2a3/gemm_performance: fp16 in, fp32 out, 24 cores of an A3."""
    folder = "kernels/manual/a2a3/gemm_performance"
    path = scratch / "gemm.cpp"
    path.write_text(pto.read(f"{folder}/gemm_performance_kernel.cpp"))
    published = re.findall(r"^\| `m=(\d+)`.*\| ([\d.]+) \|$", pto.read(f"{folder}/README.md"), re.MULTILINE)
    lines = []
    for n, milliseconds in ((int(n), float(ms)) for n, ms in published):
        sizes = f"{n}, {n}, {n}, {n}, {n}, {n}, {n // 4}, {n}, {n // 6}, 128, 64, 256, 1, 4, 4, 1"
        call = f"RunGemmE2E<float, half, half, float, 24, {sizes}>((float *)a[0], (half *)a[1], (half *)a[2])"
        source = f'#define __DAV_C220_CUBE__\n#include "{path}"\n{ENTRY.format(call=call)}'
        found = {"cube": library(source, profile(package), find_cxx())}
        reports = {name: run(found, 24, 3, extra) for name, extra in MODELS.items()}
        times = {name: microseconds(report, MODELS[name]) for name, report in reports.items()}
        lines.append(Line(f"GEMM {n}³", milliseconds * 1000, times, busy(reports["the virtual clock"])))
    return lines


def attention(pto: Repository, package: Path, scratch: Path) -> list[Line]:
    """kernels/manual/common/flash_atten: one head of 128, on a 910B2; the tile size is not published: the best."""
    folder = "kernels/manual/common/flash_atten"
    for name in pto.list(folder):
        if name.endswith((".cpp", ".hpp", ".h")):
            (scratch / Path(name).name).write_text(pto.read(name))
    for stub in ("acl/acl.h", "pto/npu/kernels/Pto_prefetch.hpp"):
        (scratch / stub).parent.mkdir(parents=True, exist_ok=True)
        (scratch / stub).write_text("")
    published = re.findall(
        r"^\| (\d+) \| ([\d.]+) \|(?: [\d.]+%? \|){6} [\d.]+x \|$", pto.read(f"{folder}/README.md"), re.MULTILINE
    )
    lines = []
    for length, measured in ((int(n), float(us)) for n, us in published):
        best: dict[str, tuple[float, dict[str, float], int]] = {}
        for tile in (256, 512, 1024):
            if tile > length // 4 or length // tile > 64:
                continue
            found = {kind: _attention(package, scratch, kind, length, tile) for kind in ("cube", "vector")}
            for name, extra in MODELS.items():
                report = run(found, length // 128, 13, extra)
                time = microseconds(report, extra) * MODEL_GHZ / 1.8  # a 910B2 has 1.8 GHz
                best[name] = min(
                    best.get(name, (np.inf, {}, 0)), (time, busy(report), tile), key=lambda entry: entry[0]
                )
        times = {name: entry[0] for name, entry in best.items()}
        time, shares, tile = best["the virtual clock"]
        lines.append(Line(f"attention {length}", measured, times, shares, f"tile {tile}"))
    return lines


def _attention(package: Path, scratch: Path, kind: str, length: int, tile: int) -> Path:
    short = {"cube": "CUBE", "vector": "VEC"}[kind]
    arguments = ", ".join(
        f"({kind_} *)a[{i}]" for i, kind_ in enumerate(("uint64_t", *["half"] * 4, *["float"] * 7, "uint8_t"))
    )
    call = f"runTFA<{length}, 128, {length}, 128, 128, {tile}, 4, 8, false, false, 4>({arguments}, (uint8_t *)nullptr)"
    source = f"""#include "pto/npu/a2a3/TAlloc.hpp"
#include "pto/npu/a2a3/TFree.hpp"
constexpr int SINGLE_CACHE_LINE = 0, DSB_DDR = 0;
inline void dcci(...) {{}}
inline uint64_t get_sys_cnt() {{ return 0; }}
inline int get_coreid() {{ return 0; }}
namespace pto {{  // the front end of the installed cost model lacks these
template <typename P, typename G, TileSplitAxis A> void TALLOC(P &p, G &g) {{ TALLOC_IMPL<P, G, A>(p, g); }}
template <typename P, typename G, TileSplitAxis A> void TFREE(P &p, G &g) {{ TFREE_IMPL<P, G, A>(p, g); }}
}}
#include "{scratch}/fa_performance_kernel.cpp"
{ENTRY.format(call=call)}"""
    base = profile(package)
    how = replace(base, include=(scratch, *base.include), defines=(f"__DAV_{short}__", f"__DAV_C220_{short}__"))
    return library(source, how, find_cxx())


# --- kernels written in TileLang ----------------------------------------------------------------------------


def tilelang(
    compiler: Compiler, scratch: Path, source: str, factory: str, arguments: Mapping[str, object], name: str,
    measured: float, inputs: Sequence[Array] = (), scalars: Mapping[str, int] | None = None, broadcast: bool = False,
) -> Line:  # fmt: skip
    path = scratch / f"{re.sub(r'[^a-z0-9]+', '_', name)}.py"
    path.write_text(extract(source, factory))
    lowered = compiler.lower(Request(path, factory, arguments, "pto", "A2"))
    reports = {
        model: trace(
            lowered,
            compiler.package,
            cores=24,
            extra=extra,
            inputs=inputs,
            scalars=scalars,
            vector_broadcast=broadcast,
            timeline=False,
        ).report
        for model, extra in MODELS.items()
    }
    times = {model: microseconds(report, MODELS[model]) for model, report in reports.items()}
    return Line(name, measured, times, busy(reports["the virtual clock"]))


def sparse(repo: Repository, compiler: Compiler, scratch: Path) -> list[Line]:
    """examples/sparse_flash_attention/bench_sfa, first shape: 128 heads of 512 + 64, 2048 of 2560 keys, on an A3."""
    folder = "examples/sparse_flash_attention/bench_sfa"
    published = re.findall(r"^\|\[(\w+)\.py\].*\| (\d+)us \|$", repo.read(f"{folder}/README.md"), re.MULTILINE)
    keys, page = 2560, 128
    none = np.zeros(1, np.int32)
    tables = (
        np.arange(2048, dtype=np.int32),
        np.ones(1, np.int32),
        np.full(1, keys, np.int32),
        np.arange(keys // page, dtype=np.int32),
    )
    pages = keys // page
    scalars = {"batch": 1, "seq_len": 1, "block_num": pages, "block_table_len": pages, "seq_len_kv": keys}
    lines = []
    for name, time in published:
        source = repo.read(f"{folder}/{name}.py")
        names = ("heads", "tail_dim") if "tail_dim" in source else ("q_heads", "rope_dim")
        arguments = {names[0]: 128, "dim": 512, names[1]: 64, "topk": 2048}
        label = "sparse attention, " + (
            name.removeprefix("sparse_flash_attn_pa").strip("_").replace("_", " ") or "pipelined"
        )
        line = tilelang(
            compiler,
            scratch,
            source,
            "sparse_attention_fwd",
            arguments,
            label,
            float(time),
            (none, none, *tables),
            scalars,
        )
        lines.append(line)
    return lines


def dense(repo: Repository, compiler: Compiler, scratch: Path) -> list[Line]:
    """examples/flash_attention/fa_opt, 12 heads on 1, 32 K, through the ascendc backend on an A3."""
    source = repo.read("examples/flash_attention/fa_opt/flash_attn_bhsd_expert_h16_d128.py")
    table = repo.read("examples/flash_attention/fa_opt/bench_mark.md")
    measured = float(re.search(r"^\| 32K \| \d+u \| (\d+)u", table, re.MULTILINE)[1])  # type: ignore[index]
    arguments = {"batch": 1, "seq_len": 32768, "heads_q": 12, "heads_kv": 1, "dim": 128}
    return [
        tilelang(compiler, scratch, source, "flash_attention_fwd", arguments, name, measured, broadcast=broadcast)
        for name, broadcast in (("attention 32 K, for ascendc", True), ("attention 32 K, as pto generates it", False))
    ]


# --- single instructions ------------------------------------------------------------------------------------

GTEST = """#pragma once
#include <cstdio>
#include <vector>
namespace testing { struct Case { const char *suite, *name; void (*run)(); }; inline std::vector<Case> cases;
struct Add { Add(const char *s, const char *n, void (*r)()) { cases.push_back({s, n, r}); } }; }
inline const char *suite, *test;
void measure(double);
#define TEST(S, N) static void S##_##N(); static testing::Add add_##S##_##N(#S, #N, &S##_##N); static void S##_##N()
#define GTEST_SKIP() return; std::stringstream()
#define EXPECT_GE(a, b) (void)0
"""
MAIN = """
#include "schedule.hpp"
void measure(double expected) {
    using namespace vclock;
    Trace t;
    recorder.finish(&t);
    std::vector<Core> cores(1);
    cores[0].trace = t;
    cores[0].role = 1;
    Machine machine;
    machine.issue = 0;
    machine.start[6] = 5, machine.rate[6] = 32;   // UB to UB
    Schedule schedule(machine, cores, 0);
    std::printf("%s %s %g %g\\n", suite, test, expected, schedule.run());
}
int main() {
    for (const auto &c : testing::cases) {
        suite = c.suite, test = c.name;
        vclock::recorder.begin({0, 0, 1, 1, 0, 1000000});
        c.run();
    }
}
"""


def instructions(pto: Repository, package: Path, scratch: Path) -> list[tuple[str, str, float, float]]:
    """tests/costmodel/st: ``(instruction, case, reference cycles, cycles of the clock)`` where a reference is given."""
    (scratch / "gtest").mkdir(exist_ok=True)
    (scratch / "gtest" / "gtest.h").write_text("#include <sstream>\n" + GTEST)
    (scratch / "cost_check.hpp").write_text("#define EXPECT_CYCLE_NEAR(expected, accuracy) measure(expected)\n")
    (scratch / "binary_vec_test_context.hpp").write_text(
        pto.read("tests/costmodel/st/common/binary_vec_test_context.hpp")
    )
    how, cxx = profile(package), find_cxx()
    rows = []
    for name in pto.list("tests/costmodel/st/testcase"):
        if not name.endswith("main.cpp") or "perf_sim" in name:
            continue
        path = scratch / f"{Path(name).parent.name}.cpp"
        path.write_text(f'#include "clock.hpp"\n{pto.read(name)}{MAIN}')
        fast = replace(cxx, flags=(*cxx.flags, "-O0", f"-I{scratch}", *how.options()))
        try:
            binary = program([path], fast, stamp=how.stamp)
        except CompileError:
            continue  # it needs a newer PTO-ISA than is installed
        done = subprocess.run([str(binary)], capture_output=True, text=True)
        for line in done.stdout.splitlines():
            instruction, case, expected, cycles = line.split()
            if float(expected) > 1:
                rows.append((instruction.upper(), case, float(expected), float(cycles)))
    return rows


# --- the document -------------------------------------------------------------------------------------------


def table(lines: Sequence[Line]) -> str:
    rows = [
        "| case | measured µs | upstream's figures alone | the virtual clock | |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for line in lines:
        ratios = " | ".join(f"{line.models[m]:.1f} ({line.ratio(m):.2f})" for m in MODELS)
        rows.append(f"| {line.name} | {line.measured:g} | {ratios} | {line.note} |")
    return "\n".join(rows)


def instruction_table(rows: Sequence[tuple[str, str, float, float]]) -> str:
    groups: dict[str, list[tuple[str, str, float, float]]] = {}
    for row in rows:
        groups.setdefault(row[0], []).append(row)
    lines = ["| instruction | cases | clock / reference | cases |", "| --- | ---: | --- | --- |"]
    for name, group in groups.items():
        ratios = ", ".join(f"{cycles / expected:.2f}" for _, _, expected, cycles in group[:8])
        cases = ", ".join(case for _, case, _, _ in group[:3]) + (", …" if len(group) > 3 else "")
        lines.append(f"| {name} | {len(group)} | {ratios}{', …' if len(group) > 8 else ''} | {cases} |")
    return "\n".join(lines)


def document(found: Mapping[str, Any], revisions: Mapping[str, str], version: str) -> str:
    rows = found["instructions"]
    near = sum(0.8 <= cycles / expected <= 1.25 for _, _, expected, cycles in rows)
    big = [line for line in found["gemm"] if line.measured > 100]
    rank = [line.name for line in sorted(found["sparse"], key=lambda line: line.models["the virtual clock"])]
    right = [line.name for line in sorted(found["sparse"], key=lambda line: line.measured)]
    worst = max(abs(line.ratio(m) - 1) for line in big for m in MODELS)
    shares = "; ".join(
        f"{line.name}: MTE2 {line.busy['MTE2']:.0%}, M {line.busy['M']:.0%}, MTE1 {line.busy['MTE1']:.0%}"
        for line in found["gemm"]
    )
    return f"""# How good the virtual clock is

Generated by `benchmarks/validate_clock.py` with TileLang-Ascend {version}, PTO-ISA {revisions["pto"]} and
tilelang-ascend {revisions["tilelang"]}. Nothing here was run on a device: the measured figures are those that these
projects publish.

Two models are shown, each with its ratio to the measurement. *Upstream's figures alone*: instruction cycles and
transfer rates of PTO-ISA's cost model, scheduled; no constant of ours. *The virtual clock* adds what that model lacks:
a latency of 400 cycles for loads from and 200 for stores to global memory, 600 for cross-core flags, 10 µs to launch.
These are round figures, chosen on the sparse attention kernels; nothing was chosen on the others.

## Matrix product (PTO-ISA `kernels/manual/a2a3/gemm_performance`, A3, 24 cores)

{table(found["gemm"])}

From 3072³ on, both models are within {worst:.0%}. Estimated shares of the time: {shares}.
Published for 7680³: loads 98.4 %, products 80.6 %, L1→L0 63.0 %.

## Attention (PTO-ISA `kernels/manual/common/flash_atten`, one head, 910B2)

{table(found["attention"])}

The tile size of the published runs is not stated; the best of 256, 512 and 1024 is shown.

## Attention (tilelang-ascend `examples/flash_attention/fa_opt`, 12 heads, 32 K, A3, ascendc backend)

{table(found["dense"])}

The pto backend broadcasts rows with a scalar round trip per row, the ascendc backend with vector instructions; the
published run used the latter. A package whose backend is `ascendc` is costed that way.

## Sparse attention (tilelang-ascend `examples/sparse_flash_attention/bench_sfa`, A3)

{table(found["sparse"])}

Rank order: {"right" if rank == right else f"wrong ({', '.join(rank)})"}.

## Single instructions (PTO-ISA `tests/costmodel/st`)

{near} of {len(rows)} reference cycles are met within 25 %.

{instruction_table(rows)}

## Limits

- Reductions: the references of TROWMAX, TROWMIN and of half of TROWSUM's cases fit another sequence of instructions
  than the headers issue (one `vcmax` per repeat); those of TCOLMAX, TCOLSUM, TSORT32, TTRANS and TSEL are missed in
  some cases, as are tiny ones of TMATMUL and TLOADCONV.
- TROWEXPAND is set to its reference (933 cycles for 64 rows); wider tiles have none.
- Global memory: every core has its full transfer rate, whatever the others do, and re-reads hit the L2 cache. What the
  problem's own traffic needs at the chip's bandwidth is a lower bound of the estimate. Kernels that overflow the L2
  cache are estimated too fast.
- A transfer in many short pieces (references of TLOAD, cases c02 and c06 to c10) costs more on an idle device than its
  bytes. That cost overlaps between transfers in flight; the model has it as latency only.
- Bank conflicts, the finite depth of instruction queues, the instruction cache and the scalar unit's own arithmetic are
  not modelled.
- Differences of less than 5 % between two estimates mean nothing.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pto-isa", type=Path, required=True)
    parser.add_argument("--tilelang-ascend", type=Path, required=True)
    parser.add_argument(
        "--only", action="append", help="gemm, attention, dense, sparse, instructions: print, write nothing"
    )
    arguments = parser.parse_args()
    pto, repo = Repository(arguments.pto_isa), Repository(arguments.tilelang_ascend)
    with tempfile.TemporaryDirectory(prefix="validate-") as folder, find_compiler() as compiler:
        scratch, package = Path(folder), compiler.package
        parts: dict[str, Callable[[], Any]] = {
            "gemm": lambda: gemm(pto, package, scratch),
            "attention": lambda: attention(pto, package, scratch),
            "sparse": lambda: sparse(repo, compiler, scratch),
            "dense": lambda: dense(repo, compiler, scratch),
            "instructions": lambda: instructions(pto, package, scratch),
        }
        found: dict[str, Any] = {}
        for name, part in parts.items():
            if not arguments.only or name in arguments.only:
                print(f"{name} ...", file=sys.stderr, flush=True)
                found[name] = part()
                if arguments.only:
                    print(instruction_table(found[name]) if name == "instructions" else table(found[name]))
        if not arguments.only:
            DOCUMENT.parent.mkdir(exist_ok=True)
            revisions = {"pto": pto.revision(), "tilelang": repo.revision()}
            DOCUMENT.write_text(document(found, revisions, compiler.version), encoding="utf-8")
            print(f"written: {DOCUMENT.relative_to(ROOT)}")


if __name__ == "__main__":
    try:
        main()
    except (ClockError, CompilerError, CompileError) as error:
        sys.exit(str(error))
