"""On-chip memory of a lowered kernel against the chip's."""

from __future__ import annotations

from harness import catalog
from harness.budget import Use, budget, problems, to_json
from harness.compiler.lowered import Buffer, Lowered


def lowered(*buffers: Buffer) -> Lowered:
    return Lowered(
        source="",
        target="pto",
        platform="A2",
        parameters=(),
        out_idx=(),
        workspace_idx=(),
        auto_workspaces=(),
        pass_configs={},
        address_map={buffer.name: buffer.address for buffer in buffers},
        size_map={buffer.name: buffer.bytes for buffer in buffers},
        memories={buffer.name: buffer.memory for buffer in buffers},
    )


def test_use_is_the_highest_end_not_the_sum() -> None:
    kernel = lowered(Buffer("a", "L1", 32768, 16384), Buffer("x", "UB", 0, 8192), Buffer("reused", "UB", 0, 4096))
    uses = {use.memory: use for use in budget(kernel, catalog.load(), "A2")}
    assert uses["UB"].used == 8192
    assert (uses["L1"].used, uses["L1"].capacity) == (49152, 524032)
    assert to_json(tuple(uses.values()))["UB"] == {
        "used": 8192,
        "capacity": 196352,
        "buffers": [
            {"name": "reused", "address": 0, "bytes": 4096},
            {"name": "x", "address": 0, "bytes": 8192},
        ],
    }


def test_overflow_names_memory_buffer_and_bytes() -> None:
    (error,), _ = problems(budget(lowered(Buffer("x", "UB", 190000, 8192)), catalog.load(), "A2"))
    assert "UB: 198,192 of 196,352 bytes" in error
    assert "x ends 1,840 bytes beyond it" in error


def test_the_platform_decides() -> None:
    kernel = lowered(Buffer("c", "L0C", 0, 200000))
    assert problems(budget(kernel, catalog.load(), "A2"))[0]
    assert not problems(budget(kernel, catalog.load(), "A5"))[0]


def test_only_ub_needs_room_for_scratch() -> None:
    full = [Use(memory, 96, 100, (Buffer("b", memory, 0, 96),)) for memory in ("UB", "L0C")]
    errors, warnings = problems(tuple(full))
    assert not errors
    assert len(warnings) == 1
    assert warnings[0].startswith("UB: 96 of 100")
