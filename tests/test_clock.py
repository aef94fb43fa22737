"""The virtual clock: its scheduler on streams written by hand, its trace and its estimate on generated code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import catalog
from harness.clock import Chip, ClockError, Estimate, Extra, estimate, find_chip
from harness.clock.model import ROUTES
from harness.clock.trace import NATIVE, TIMELINE, run_driver
from harness.compiler.client import find_compiler
from harness.compiler.lowered import Lowered, Parameter
from harness.spec import Array, Work
from harness.vnpu.toolset import Profile, find_cxx, library

# A "kernel" that plays a script instead of running generated code: a line per event, a section per core.
PLAYER = """
#include <sstream>
#include <string>
#include <vector>
using namespace vclock;
extern "C" __attribute__((visibility("default")))
void vclock_trace(const uint64_t *a, const Order *order, Trace *out) {
    static thread_local std::vector<Event> kinds;
    static thread_local std::vector<uint32_t> stream;
    kinds.clear(), stream.clear();
    std::istringstream text(reinterpret_cast<const char *>(a[0]));
    const int role = order->cube ? 0 : 1 + int(order->sub_block);
    bool mine = false;
    for (std::string line; std::getline(text, line);) {
        std::istringstream words(line);
        std::string what;
        words >> what;
        if (what == "core") {
            int r, block;
            words >> r >> block;
            mine = r == role && (block < 0 || block == int(order->block));
            continue;
        }
        if (!mine || what.empty()) continue;
        if (what == "again") {
            uint32_t times;
            words >> times;
            const std::vector<uint32_t> once = stream;
            for (uint32_t i = 1; i < times; ++i) stream.insert(stream.end(), once.begin(), once.end());
            continue;
        }
        Event e{};
        e.line = uint32_t(kinds.size() + 1);
        e.route = 14;
        uint64_t repeat = 1;
        if (what == "do") {
            int route;
            e.what = What::Instruction, e.intrinsic = "work";
            words >> route >> e.cycles >> e.head >> e.tail >> e.bytes >> repeat;
            e.route = uint8_t(route);
            repeat = repeat ? repeat : 1;
        } else {
            struct { const char *word, *name; What what; } table[] = {
                {"set", "set_flag", What::SetFlag}, {"wait", "wait_flag", What::WaitFlag},
                {"barrier", "pipe_barrier", What::Barrier}, {"cross", "ffts_cross_core_sync", What::CrossSet},
                {"await", "wait_flag_dev", What::CrossWait}, {"scalar", "scalar", What::Scalar}};
            for (const auto &row : table)
                if (what == row.word) e.intrinsic = row.name, e.what = row.what;
            words >> e.a >> e.b >> e.c;
            if (e.what == What::Scalar) e.cycles = e.a;
        }
        kinds.push_back(e);
        for (uint64_t i = 0; i < repeat; ++i) stream.push_back(uint32_t(kinds.size() - 1));
    }
    *out = {kinds.data(), kinds.size(), stream.data(), stream.size(), "", stream.size() > order->limit};
}
"""
S, V, MTE1, MTE2, MTE3, M, ALL, FIX = range(8)
ADD, MAD, LOAD_UB, LOAD_L1, STORE_UB = 0, 1, 2, 3, 4


@pytest.fixture(scope="module")
def player() -> Path:
    return library(PLAYER, Profile(NATIVE / "event.hpp", (NATIVE,)), find_cxx())


class Play:
    """Runs scripts through the driver."""

    def __init__(self, player: Path, folder: Path) -> None:
        self.player, self.folder = player, folder

    def __call__(self, script: str, *orders: str, blocks: int = 1, cores: int = 24) -> dict[str, Any]:
        path = self.folder / "script"
        path.write_text(script + "\0")
        given = [f"library cube {self.player}", f"library vector {self.player}", f"blocks {blocks}", f"cores {cores}"]
        return run_driver([*given, "issue 0", f"tensor {len(script) + 1} {path}", *orders])

    def span(self, script: str, *orders: str, **sizes: int) -> float:
        return float(self(script, *orders, **sizes)["span"])


@pytest.fixture
def play(player: Path, tmp_path: Path) -> Play:
    return Play(player, tmp_path)


def work(route: int, cycles: float, head: int = 0, tail: int = 0, moved: int = 0, times: int = 1) -> str:
    return f"do {route} {cycles} {head} {tail} {moved} {times}\n"


def core(role: int, *lines: str, block: int = -1) -> str:
    return f"core {role} {block}\n" + "".join(line if line.endswith("\n") else line + "\n" for line in lines)


# --- the scheduler ------------------------------------------------------------------------------------------


def test_pipes_run_side_by_side_and_each_in_order(play: Play) -> None:
    assert play.span(core(0, work(MAD, 100), work(LOAD_L1, 80))) == 100
    assert play.span(core(0, work(MAD, 100), work(MAD, 80))) == 180


def test_a_flag_orders_two_pipes(play: Play) -> None:
    flag = [f"set {MTE2} {M} 0", f"wait {MTE2} {M} 0"]
    assert play.span(core(0, work(LOAD_L1, 80), *flag, work(MAD, 100))) == 180
    # The flag holds the pipe, not the scalar unit: a third pipe goes on.
    assert play.span(core(0, work(LOAD_L1, 80), *flag, work(MAD, 100), work(STORE_UB, 170))) == 180


def test_a_wait_before_its_set_holds_only_its_pipe(play: Play) -> None:
    script = core(1, f"wait {V} {MTE2} 3", work(LOAD_UB, 50), work(ADD, 30), f"set {V} {MTE2} 3", work(LOAD_UB, 10))
    assert play.span(script) == 90


def test_flags_are_first_in_first_out(play: Play) -> None:
    script = core(1, work(ADD, 10), f"set {V} {MTE3} 0", work(ADD, 10), f"set {V} {MTE3} 0")
    script += f"wait {V} {MTE3} 0\n" + work(STORE_UB, 1) + f"wait {V} {MTE3} 0\n" + work(STORE_UB, 1)
    assert play.span(script) == 21


def test_the_head_is_paid_by_a_cold_pipe_and_the_tail_by_a_reader(play: Play) -> None:
    assert play.span(core(1, work(ADD, 10, head=5, tail=7), work(ADD, 10, head=5, tail=7))) == 5 + 20 + 7
    dependent = core(1, work(ADD, 10, head=5, tail=7), f"barrier {V}", work(ADD, 10, head=5, tail=7))
    assert play.span(dependent) == 2 * (5 + 10 + 7)


def test_latency_delays_the_reader_not_the_next_transfer(play: Play) -> None:
    loads = core(1, work(LOAD_UB, 10), work(LOAD_UB, 10), f"set {MTE2} {V} 0", f"wait {MTE2} {V} 0", work(ADD, 5))
    assert play.span(loads, f"transfer {LOAD_UB} 0 0 400") == 20 + 400 + 5


def test_a_transfer_takes_at_least_its_start_and_rate(play: Play) -> None:
    route = ROUTES.index("UB→UB")
    assert play.span(core(1, work(route, 2, moved=3200)), f"transfer {route} 5 32 0") == 105
    assert play.span(core(1, work(route, 200, moved=3200)), f"transfer {route} 5 32 0") == 200


def test_a_barrier_over_all_pipes_stops_the_scalar_unit(play: Play) -> None:
    assert play.span(core(0, work(MAD, 100), f"barrier {ALL}", work(LOAD_L1, 80))) == 180


def test_the_scalar_unit_takes_its_time(play: Play) -> None:
    assert play.span(core(0, "scalar 40", work(MAD, 100))) == 140


MODE_2, MODE_1, MODE_0 = (1 | mode << 4 for mode in (2, 1, 0))


def test_a_cube_waits_for_both_vector_cores(play: Play) -> None:
    script = core(0, "await 5", work(MAD, 10))
    script += core(1, work(ADD, 30), f"cross {V} {MODE_2 | 5 << 8}")
    script += core(2, work(ADD, 70), f"cross {V} {MODE_2 | 5 << 8}")
    assert play.span(script) == 80
    assert play.span(script, "cross 600") == 680


def test_a_cube_releases_both_vector_cores(play: Play) -> None:
    script = core(0, work(MAD, 40), f"cross {M} {MODE_2 | 1 << 8}")
    script += core(1, "await 1", work(ADD, 10)) + core(2, "await 1", work(ADD, 20))
    assert play.span(script) == 60


def test_vector_cores_of_a_block_meet(play: Play) -> None:
    meet = [f"cross {V} {MODE_1 | 2 << 8}", "await 2", work(ADD, 5)]
    assert play.span(core(1, work(ADD, 10), *meet) + core(2, work(ADD, 90), *meet)) == 95


def test_all_cores_meet_across_blocks(play: Play) -> None:
    meet = [f"cross {M} {MODE_0 | 11 << 8}", "await 11", work(MAD, 5)]
    script = core(0, work(MAD, 10), *meet, block=0) + core(0, work(MAD, 200), *meet, block=1)
    report = play(script, blocks=2)
    assert (report["span"], report["together"]) == (205, True)
    with pytest.raises(ClockError, match="more blocks than cores"):
        play(script, blocks=2, cores=1)


def test_blocks_take_turns_on_the_cores(play: Play) -> None:
    script = core(0, work(MAD, 100), block=0) + "".join(core(0, work(MAD, 10), block=b) for b in range(1, 5))
    assert play.span(script, blocks=5, cores=2) == 100
    assert play.span(script, blocks=5, cores=1) == 140


@pytest.mark.parametrize(
    ("script", "what"),
    [
        (core(0, "await 3"), "cube core waits for cross-core flag 3"),
        (core(1, f"wait {MTE2} {V} 1", work(ADD, 1)), "vector 0 core waits at wait_flag"),
        (core(1, f"wait {V} {S} 1", f"set {V} {S} 1"), "vector 0 core waits at wait_flag"),
        (core(1, f"wait {MTE2} {V} 1", work(ADD, 1), f"barrier {ALL}", f"set {MTE2} {V} 1"), "waits at wait_flag"),
        (core(0, "await 1") + core(1, f"cross {V} {MODE_2 | 1 << 8}"), "cube core waits for cross-core flag 1"),
    ],
)
def test_a_deadlock_is_reported_with_its_core(play: Play, script: str, what: str) -> None:
    with pytest.raises(ClockError, match=what) as error:
        play(script)
    assert error.value.kind == "deadlock"


def test_the_critical_path_adds_up(play: Play) -> None:
    script = core(0, work(LOAD_L1, 80), f"set {MTE2} {M} 0", f"wait {MTE2} {M} 0", work(MAD, 100, tail=20))
    path = play(script, "launch 7", "transfer 3 0 0 30")["path"]
    shares = {pipe: cycles for _, pipe, cycles in path["share"]}
    assert (shares, path["launch"], path["length"]) == ({MTE2: 110, M: 120}, 7, 237)


def test_large_grids_are_sampled(play: Play) -> None:
    report = play(core(0, work(MAD, 3, times=1000)), "budget 10000", blocks=100, cores=10)
    assert (report["traced"], report["blocks"], report["span"]) == (10, 100, 30_000)


def test_a_trace_that_is_too_long_is_refused(play: Play) -> None:
    with pytest.raises(ClockError, match="too large to trace"):
        play(core(0, work(MAD, 1, times=2000)), "limit 1000")


def test_nothing_to_do_is_no_time(play: Play) -> None:
    with pytest.raises(ClockError, match="executes no instruction"):
        play("")


def test_the_timeline_holds_every_instruction(play: Play, tmp_path: Path) -> None:
    path = tmp_path / "timeline"
    play(core(0, work(MAD, 10), work(LOAD_L1, 7)) + core(2, work(ADD, 4)), f"timeline {path}")
    rows = np.fromfile(path, TIMELINE)
    assert sorted((int(r["role"]), int(r["pipe"]), float(r["end"])) for r in rows) == [
        (0, MTE2, 7),
        (0, M, 10),
        (2, V, 4),
    ]


def test_a_million_events_are_scheduled_quickly(play: Play) -> None:
    lines = [work(ADD, 2), f"set {V} {MTE3} 0", f"wait {V} {MTE3} 0", work(STORE_UB, 3)]
    report = play(core(1, *lines, "again 250000"))
    assert (report["events"], report["span"]) == (1_000_000, 2 + 3 * 250_000)
    assert report["scheduling"] < 1.0  # 0.05 s on an idle machine


# --- generated code -----------------------------------------------------------------------------------------

HEAD = """#include "tl_templates/pto/common.h"
#include <pto/pto-inst.hpp>
#include "acl/acl.h"
#include <runtime/rt_ffts.h>
using namespace pto;

"""
SIZES = "1, 1, 1, 16, 256, 1, 1, 1, 256, 1, 16, 256"
LOAD = f"tl::ascend_pto::copy_gm_to_ub_dynamic<float, float, {SIZES}, pto::PadValue::Null>"
STORE = f"tl::ascend_pto::copy_ub_to_gm_dynamic<float, float, {SIZES}>"
PLACE = "pto::Shape<1, 1, 1, 16, 256>(), pto::Stride<1, 1, 1, 256, 1>()"


def kernel(*body: str, grid: str = "4", parameters: str = "", arguments: str = "") -> str:
    """A vector kernel as the pto backend writes it: X -> Y, 16 x 256 float per vector core."""
    lines = "\n".join(f"    {line}" for line in body)
    tensors = "__gm__ uint8_t *X_handle_raw, __gm__ uint8_t *Y_handle_raw"
    return f"""{HEAD}extern "C" __global__ AICORE void main_kernel({tensors}, {parameters}uint64_t ffts_Addr) {{
  __gm__ float *X_handle = reinterpret_cast<__gm__ float *>(X_handle_raw);
  __gm__ float *Y_handle = reinterpret_cast<__gm__ float *>(Y_handle_raw);
  auto cid = get_block_idx();
  set_ffts_base_addr(ffts_Addr);
  tl::ascend_pto::TileUbDataND<float, 16, 256, 16, 256> x;
  TASSIGN(x, 0);
  auto vid = get_subblockid();
#if defined(__DAV_C220_VEC__)
{lines}
#endif
}}

extern "C" void call(uint8_t *X_handle, uint8_t *Y_handle, void *stream)
{{
    main_kernel<<<{grid}, nullptr, stream>>>(X_handle, Y_handle, {arguments}fftsAddr);
}}
"""


def flags(source: str, target: str) -> list[str]:
    return [f"set_flag({source}, {target}, EVENT_ID0);", f"wait_flag({source}, {target}, EVENT_ID0);"]


def copy(*between: str) -> list[str]:
    load = f"{LOAD}(X_handle + (cid * 8192 + vid * 4096), {PLACE}, 0, 0, 16, 256);"
    store = f"{STORE}(Y_handle + (cid * 8192 + vid * 4096), {PLACE}, 0, 0, 16, 256);"
    return [load, *flags("PIPE_MTE2", "PIPE_V"), *between, *flags("PIPE_V", "PIPE_MTE3"), store]


def lowered(source: str, **changes: Any) -> Lowered:
    tensor = Parameter("float32", (4 * 32, 256))
    fields: dict[str, Any] = {"target": "pto", "platform": "A2", "parameters": (tensor, tensor), "out_idx": (1,)}
    fields |= {"workspace_idx": (), "auto_workspaces": (), "pass_configs": {}, "address_map": {}, "size_map": {}}
    return Lowered(source=source, **fields | changes)


@pytest.fixture(scope="module")
def headers(compiler: None) -> Path:
    return find_compiler().package


WORK = Work(flops=4 * 32 * 256, bytes=2 * 4 * 4 * 32 * 256)


def clock(headers: Path, source: str, inputs: tuple[Array, ...] = (), **options: Any) -> Estimate:
    return estimate(lowered(source), headers, work=WORK, inputs=inputs, extra=Extra.none(), **options)


@pytest.mark.ladder
def test_a_kernel_gets_the_cost_models_cycles(headers: Path) -> None:
    found = clock(headers, kernel(*copy("TADDS(x, x, 1.0f);")))
    # 16 KiB at 100.9 and at 188.46 GiB/s, 64 repeats of vadds (13 + 64 + 18), at 1.85 GHz.
    expected = 2**14 / (100.9 * 2**30) + 2**14 / (188.46 * 2**30) + (13 + 64 + 18) / 1.85e9
    assert found.pipes_us == pytest.approx(expected * 1e6, rel=0.06)  # issue cycles come on top
    assert found.bytes == {"GM→UB": 8 * 2**14, "UB→GM": 8 * 2**14}
    assert (found.blocks, found.traced) == (4, 4)
    assert {hot.instruction for hot in found.hot} == {"TLOAD", "TADDS", "TSTORE"}
    assert found.hot[0].text.startswith("tl::ascend_pto::copy_gm_to_ub")
    assert sum(step.share for step in found.path) == pytest.approx(1, abs=0.01)
    assert "GM→UB loads" in found.limit
    assert json.loads(json.dumps(found.to_json()))["accuracy"].startswith("an estimate")


@pytest.mark.ladder
def test_count_mode_costs_what_it_counts(headers: Path) -> None:
    """Instructions that take a number of elements instead of repeats are not free."""
    tail = "tl::ascend_pto::TileUbDataND<float, 16, 256, 16, 250> part;"
    whole = clock(headers, kernel(*copy("TADD(x, x, x);")))
    part = clock(headers, kernel(tail, "TASSIGN(part, 0);", *copy("TADD(part, part, part);")))
    assert part.busy["vector"]["V"] > 0.8 * whole.busy["vector"]["V"]


@pytest.mark.ladder
def test_an_instruction_may_be_a_cross_core_flag_alone(headers: Path) -> None:
    """TPUSH of a tensor in global memory is. One that only orders pipes has a cost that the model does not know."""

    def push(*body: str) -> str:
        return kernel(*copy('vclock::recorder.enter("TPUSH");', *body, "vclock::recorder.leave();"))

    cross = "ffts_cross_core_sync(PIPE_MTE3, 0x1 | (0x1 << 4) | (5 << 8));"
    assert clock(headers, push(cross, "wait_flag_dev(5);")).pipes_us > 0
    with pytest.raises(ClockError, match="no cost is known for TPUSH"):
        clock(headers, push(*flags("PIPE_MTE2", "PIPE_V")))


@pytest.mark.ladder
def test_global_memory_bounds_what_the_pipes_do_not(headers: Path) -> None:
    source = kernel(*copy())
    free = clock(headers, source)
    bound = estimate(lowered(source), headers, work=Work(flops=0, bytes=160_000_000), extra=Extra.none())
    assert bound.microseconds == pytest.approx(100, rel=0.01)
    assert bound.microseconds > free.microseconds
    assert "global memory" in bound.limit


@pytest.mark.ladder
def test_row_broadcasts_follow_the_backend(headers: Path) -> None:
    column = "tl::ascend_pto::TileUbDataDN<float, 16, 1, 16, 1> column;"
    source = kernel(column, "TASSIGN(column, 65536);", *copy("TROWEXPAND(x, column);"))
    pto, ascendc = clock(headers, source), clock(headers, source, backend="ascendc")
    assert ascendc.pipes_us < pto.pipes_us
    assert any("row broadcasts" in note for note in ascendc.notes)


ADDS = "TADDS(x, x, 1.0f);"
REFUSED = {
    "no cost at all": ("uncosted", copy("TSHL(u, u, u);"), "no cost is known for TSHL"),
    "no such name": ("uncosted", copy("vnonsense(x);"), r"known for vnonsense(.|\n)*generated line \d+: vnonsense"),
    "deadlock": ("deadlock", ["wait_flag(PIPE_MTE2, PIPE_V, EVENT_ID3);", ADDS], r"generated line \d+: wait_flag"),
    "nothing": ("work", ["if (cid == 9) {", "  pipe_barrier(PIPE_ALL);", "}"], "executes no instruction"),
    "crash": ("crash", ["*(X_handle + 40000) = 1.0f;"], "crashed in the cost model"),
    "data": ("data", ["int32_t n = *(X_handle + 0);", "for (int32_t i = 0; i < n; ++i) {", ADDS, "}"], "content of X"),
    "long": ("large", ["for (int64_t i = 0; i < 1000000000; ++i) {", ADDS, "}"], "too large to trace"),
}


@pytest.mark.ladder
@pytest.mark.parametrize(("kind", "body", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_estimated_says_so(headers: Path, kind: str, body: list[str], message: str) -> None:
    words = ["tl::ascend_pto::TileUbDataND<uint16_t, 16, 256, 16, 256> u;", "TASSIGN(u, 0);"]
    with pytest.raises(ClockError) as error:
        clock(headers, kernel(*words, *body))
    assert error.value.kind == kind
    assert re.search(message, str(error.value))


@pytest.mark.ladder
def test_control_flow_follows_the_inputs(headers: Path) -> None:
    loop = ["int32_t n = (int32_t)*(X_handle + 0);", "for (int32_t i = 0; i < n; ++i) {", "TADDS(x, x, 1.0f);", "}"]
    few, many = (clock(headers, kernel(*loop), (np.full((128, 256), n, np.float32),)) for n in (10, 1000))
    assert many.pipes_us > 50 * few.pipes_us


@pytest.mark.ladder
def test_on_chip_data_in_control_flow_is_noted(headers: Path) -> None:
    branch = ["auto first = x.GetValue(0);", "if (first < 1.0f) {", "TADDS(x, x, 1.0f);", "}"]
    assert any("taken as zero" in note for note in clock(headers, kernel(*branch)).notes)


@pytest.mark.ladder
def test_scalar_parameters_size_the_grid(headers: Path) -> None:
    source = kernel(*copy(), grid="((n + 31) / 32)", parameters="int64_t n, ", arguments="n, ")
    assert clock(headers, source, scalars={"n": 70}).blocks == 3
    with pytest.raises(ClockError, match="depends on n"):
        clock(headers, source)
    with pytest.raises(ClockError, match="0 blocks"):
        clock(headers, source, scalars={"n": 0})


def test_what_is_out_of_reach_is_refused() -> None:
    nowhere = Path("/nonexistent")
    with pytest.raises(ClockError, match="A2 and A3, not A5"):
        estimate(lowered("", platform="A5"), nowhere, work=WORK)
    with pytest.raises(ClockError, match="not ascendc's"):
        estimate(lowered("", target="ascendc"), nowhere, work=WORK)
    with pytest.raises(ClockError, match="the problem has no work"):
        estimate(lowered(""), nowhere, work=Work(flops=0, bytes=0))
    with pytest.raises(catalog.CatalogError, match="unknown chip '910Z'"):
        find_chip(catalog.load(), "A2", "910Z")


def test_a_slower_chip_takes_longer() -> None:
    fast, slow = (find_chip(catalog.load(), "A2", name) for name in ("910B1", "910B4"))
    assert fast.clock_ghz == pytest.approx(1.85)
    assert slow.clock_ghz == pytest.approx(1.85 * 1.5 / 1.8)
    assert fast.peak_tflops("float16", cube=True) == pytest.approx(353.9, abs=0.1)
    assert fast.peak_tflops("int8", cube=True) == 2 * fast.peak_tflops("bfloat16", cube=True)
    assert isinstance(slow, Chip)
