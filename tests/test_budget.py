"""On-chip memory read from generated code."""

from __future__ import annotations

from harness import catalog
from harness.budget import Buffer, Use, budget, buffers, problems
from harness.compiler.client import Lowered

SOURCE = """
extern "C" __global__ AICORE void main_kernel(__gm__ uint8_t *A_handle_raw) {
  TileAcc<float, 128, 256, 128, 256> c_l0;
  TASSIGN(c_l0, 0);
  tl::ascend_pto::TileMatL1<half, 128, 64, 128, 64> a_l1;
  TASSIGN(a_l1, 32768);
  tl::ascend_pto::TileMatL0A<bfloat16_t, 64, 64, 64, 64> a_l0;
  TASSIGN(a_l0, 0);
  tl::ascend_pto::TileUbDataND<float, 16, 128, 16, 128> x;
  TASSIGN(x, 0);
  tl::ascend_pto::TileUbDataND<uint8_t, 1, 512, 1, 512> tmp_ub;
  TASSIGN(tmp_ub, 8192);
#if defined(__DAV_C220_CUBE__)
  tl::ascend_pto::TileMatL1<half, 128, 64, 128, 64> inner;
  TASSIGN(inner, 500000);
#endif
}
"""


def lowered(source: str = SOURCE, **sizes: int) -> Lowered:
    return Lowered(
        source=source,
        target="pto",
        platform="A2",
        parameters=(),
        out_idx=(),
        workspace_idx=(),
        auto_workspaces=(),
        pass_configs={},
        address_map={},
        size_map=sizes,
        seconds=0.0,
        cached=False,
    )


def test_every_memory_is_told_apart() -> None:
    found = {buffer.name: buffer for buffer in buffers(lowered())}
    assert found["c_l0"] == Buffer("c_l0", "L0C", 0, 131072)
    assert found["a_l1"] == Buffer("a_l1", "L1", 32768, 16384)
    assert found["a_l0"] == Buffer("a_l0", "L0A", 0, 8192)
    assert found["x"] == Buffer("x", "UB", 0, 8192)
    assert "inner" not in found  # a view of a declared buffer


def test_the_compilers_sizes_win_over_the_declared_tile() -> None:
    found = {buffer.name: buffer for buffer in buffers(lowered(tmp_ub=4096))}
    assert found["tmp_ub"].bytes == 4096


def test_use_is_the_highest_end_not_the_sum() -> None:
    reused = SOURCE.replace("TASSIGN(tmp_ub, 8192)", "TASSIGN(tmp_ub, 0)")
    uses = {use.memory: use for use in budget(lowered(reused), catalog.load(), "A2")}
    assert uses["UB"].used == 8192
    assert uses["L1"].used == 49152
    assert uses["L1"].capacity == 524032


def test_overflow_names_memory_buffer_and_bytes() -> None:
    uses = budget(lowered(SOURCE.replace("TASSIGN(x, 0)", "TASSIGN(x, 190000)")), catalog.load(), "A2")
    (error,), _ = problems(uses)
    assert "UB: 198,192 of 196,352 bytes" in error
    assert "x ends 1,840 bytes beyond it" in error


def test_only_ub_needs_room_for_scratch() -> None:
    full = [Use(memory, 96, 100, (Buffer("b", memory, 0, 96),)) for memory in ("UB", "L0C")]
    errors, warnings = problems(tuple(full))
    assert not errors
    assert len(warnings) == 1
    assert warnings[0].startswith("UB: 96 of 100")
