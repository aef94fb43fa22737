"""The virtual NPU: instructions that it replaces, memory, flags, faults, the build."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from generated import copy_in, copy_out, kernel, matmul, ramp, tile
from harness.compiler.client import find_compiler
from harness.compiler.lowered import Lowered
from harness.vnpu import toolset
from harness.vnpu.build import BuildError, GeneratedKernel, NotSimulated, build
from harness.vnpu.run import Crash, Deadlock, OutOfRange, RunResult, TimeLimit, Unwritten, run

pytestmark = pytest.mark.ladder
bfloat16 = np.dtype(ml_dtypes.bfloat16)
Array = NDArray[Any]
Simulate = Callable[..., RunResult]


@pytest.fixture(scope="module")
def simulate(compiler: None) -> Simulate:
    with find_compiler() as found:
        package = found.package

    def make(lowered: Lowered, *inputs: Array, **options: Any) -> RunResult:
        return run(build(lowered, package), inputs, **{"time_limit": 30, **options})

    return make


def line_of(lowered: Lowered, text: str) -> int:
    return next(n for n, line in enumerate(lowered.source.splitlines(), 1) if text in line)


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "accum", "out"),
    [("float16", "float32", "float16"), ("bfloat16", "float32", "bfloat16"), ("int8", "int32", "int32")],
)
@pytest.mark.parametrize("valid", [(32, 64, 64), (17, 33, 50)], ids=["whole", "tails"])
def test_matmul(simulate: Simulate, dtype: str, accum: str, out: str, valid: tuple[int, int, int]) -> None:
    m, n, k = valid
    code = kernel(
        f"a:{dtype}[{m},{k}], b:{dtype}[{k},{n}], c:{out}[{m},{n}]",
        cube=matmul(dtype, accum, out, 32, 64, 64, valid=valid),
    )
    real = bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    rng = np.random.default_rng(0)
    a = rng.integers(-8, 9, (m, k)).astype(real) / (1 if dtype == "int8" else 4)
    b = rng.integers(-8, 9, (k, n)).astype(real) / (1 if dtype == "int8" else 4)
    a, b = a.astype(real), b.astype(real)
    (c,) = simulate(code, a, b).outputs
    exact = a.astype(np.float32) @ b.astype(np.float32)  # exact: small multiples of 1/16
    assert np.array_equal(c, exact.astype(c.dtype))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_fixpipe_rounds_to_nearest_even(simulate: Simulate, name: str) -> None:
    """fp32 accumulators between two 16-bit numbers, among them halves, leave L0C as NumPy rounds them."""
    dtype = bfloat16 if name == "bfloat16" else np.dtype(np.float16)
    bits = {"float16": 11, "bfloat16": 8}[name]
    left = np.zeros((16, 16), dtype)
    left[:, 0], left[:, 1] = 1, 1
    right = np.zeros((16, 16), dtype)
    right[0] = np.ldexp(1.0, bits - 1) + np.arange(16)  # neighbours one apart
    right[1] = np.tile([0.25, 0.5, 0.75, 0.5], 4)
    code = kernel(f"a:{name}[16,16], b:{name}[16,16], c:{name}[16,16]", cube=matmul(name, "float32", name, 16, 16, 16))
    (c,) = simulate(code, left, right).outputs
    assert np.array_equal(c, (left.astype(np.float32) @ right.astype(np.float32)).astype(dtype))


def test_bfloat16_is_bfloat16(simulate: Simulate) -> None:
    code = kernel(
        "x:bfloat16[4,64], y:bfloat16[4,64]",
        vector="\n".join(
            (
                "if (vid == 0) {",
                copy_in("x", "bfloat16", (4, 64), 0),
                tile("t", "bfloat16", (4, 64), 0),
                tile("f", "float32", (4, 64), 1024),
                "TCVT(f, t, pto::RoundMode::CAST_NONE);\nTMULS(f, f, 1.00390625f);",
                "TCVT(t, f, pto::RoundMode::CAST_RINT);",
                copy_out("y", "bfloat16", (4, 64), 0),
                "}",
            )
        ),
    )
    x = (ramp(4, 64) * 1e30).astype(bfloat16)
    (y,) = simulate(code, x).outputs
    assert np.array_equal(y, (x.astype(np.float32) * np.float32(1.00390625)).astype(bfloat16))


ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "RINT": np.rint,
    "FLOOR": np.floor,
    "CEIL": np.ceil,
    "TRUNC": np.trunc,
}


@pytest.mark.parametrize("mode", ROUNDINGS)
@pytest.mark.parametrize("to", ["int32", "float16"])
def test_conversion_rounds_by_its_mode(simulate: Simulate, mode: str, to: str) -> None:
    code = kernel(
        f"x:float32[8,64], y:{to}[8,64]",
        vector="\n".join(
            (
                copy_in("x", "float32", (8, 64), 0),
                tile("f", "float32", (8, 64), 0),
                tile("t", to, (8, 64), 4096),
                f"TCVT(t, f, pto::RoundMode::CAST_{mode});",
                copy_out("y", to, (8, 64), 4096),
            )
        ),
    )
    x: Array = (ramp(8, 64) * np.float32(0.25 if to == "int32" else 1.0001)).astype(np.float32)
    (y,) = simulate(code, x).outputs
    if to == "int32":
        assert np.array_equal(y, ROUNDINGS[mode](x).astype(np.int32))
        return
    nearest = x.astype(np.float16)
    direction: Array = {"FLOOR": -np.ones_like(x), "CEIL": np.ones_like(x), "TRUNC": -np.sign(x)}.get(mode, 0 * x)
    wrong_side = (nearest.astype(np.float32) - x) * direction < 0
    step = np.nextafter(nearest, np.where(direction > 0, np.inf, -np.inf).astype(np.float16))
    assert np.array_equal(y, np.where(wrong_side, step, nearest))


def test_conversion_saturates_as_the_device(simulate: Simulate) -> None:
    code = kernel(
        "x:float32[1,64], y:int32[1,64]",
        vector="\n".join(
            (
                copy_in("x", "float32", (1, 64), 0),
                tile("f", "float32", (1, 64), 0) + "\n" + tile("t", "int32", (1, 64), 256),
                "TCVT(t, f, pto::RoundMode::CAST_RINT);",
                copy_out("y", "int32", (1, 64), 256),
            )
        ),
    )
    x = np.zeros((1, 64), np.float32)
    x[0, :4] = 1e20, -1e20, np.nan, np.inf
    (y,) = simulate(code, x).outputs
    assert y[0, :4].tolist() == [2**31 - 1, -(2**31), 0, 2**31 - 1]


def test_compare_and_select(simulate: Simulate) -> None:
    tiles = [("a", 0), ("b", 2048), ("y", 4096), ("z", 6144)]
    code = kernel(
        "x:float32[8,64], w:float32[8,64], y_:float32[8,64], z_:float32[8,64]",
        vector="\n".join(
            (
                copy_in("x", "float32", (8, 64), 0) + "\n" + copy_in("w", "float32", (8, 64), 2048),
                *(tile(name, "float32", (8, 64), at) for name, at in tiles),
                "tl::ascend_pto::TileUbDataND<uint8_t, 8, 32, 8, 32> mask;\nTASSIGN(mask, 8192);",
                tile("scratch", "float32", (1, 64), 9216),
                "TCMP(mask, a, b, pto::CmpMode::LT);\nTSEL(y, mask, a, b, scratch);",
                "TCMPS(mask, a, 3.0f, pto::CmpMode::GE);\nTSELS(z, mask, b, scratch, -7.0f);",
                copy_out("y_", "float32", (8, 64), 4096) + "\n" + copy_out("z_", "float32", (8, 64), 6144),
            )
        ),
        outputs=(-2, -1),
    )
    x, w = ramp(8, 64), -ramp(8, 64)[::-1]
    y, z = simulate(code, x, w).outputs
    assert np.array_equal(y, np.minimum(x, w))
    assert np.array_equal(z, np.where(x >= 3, w, -7))


def test_sort_keeps_index_bits(simulate: Simulate) -> None:
    """The index passes through as bits: an index made as a float comes back as that float."""
    code = kernel(
        "x:float32[1,64], y:float32[1,128]",
        vector="\n".join(
            (
                copy_in("x", "float32", (1, 64), 0),
                tile("s", "float32", (1, 64), 0) + "\n" + tile("i", "float32", (1, 64), 256),
                tile("d", "float32", (1, 128), 512),
                "TCI<decltype(i), float, 0>(i, 0.0f);",
                "tl::ascend_pto::TileUbDataND<uint32_t, 1, 64, 1, 64> u;\nTASSIGN(u, 256);\nTSORT32(d, s, u);",
                copy_out("y", "float32", (1, 128), 512),
            )
        ),
    )
    x = np.random.default_rng(1).permutation(64).astype(np.float32).reshape(1, 64)
    (y,) = simulate(code, x).outputs
    for half in (0, 32):
        order = np.argsort(-x[0, half : half + 32]) + half
        assert np.array_equal(y[0, 2 * half : 2 * half + 64 : 2], x[0, order])
        assert np.array_equal(y[0, 2 * half + 1 : 2 * half + 64 : 2], order)


def test_atomic_add_over_blocks(simulate: Simulate) -> None:
    """On the device the sum needs a prepared output; here it is a workspace that block 0 clears first."""
    add = copy_out("s", "float32", (1, 64), 0).replace("copy_ub_to_gm", "atomic_add_ub_to_gm")
    code = kernel(
        "x:float32[8,64], y:float32[1,64], s:float32[1,64]",
        vector="\n".join(
            (
                tile("t", "float32", (1, 64), 0),
                "if (cid == 0 && vid == 0) {\nTEXPANDS(t, 0.0f);",
                copy_out("s", "float32", (1, 64), 0),
                "}\ntl::ascend_pto::sync_all_aiv();\nif (vid == 0) {",
                copy_in("x + cid * 64", "float32", (1, 64), 0),
                add,
                "}\ntl::ascend_pto::sync_all_aiv();\nif (cid == 0 && vid == 0) {",
                copy_in("s", "float32", (1, 64), 0) + "\n" + copy_out("y", "float32", (1, 64), 0),
                "}",
            )
        ),
        blocks=8,
        outputs=(1,),
        workspaces=(2,),
    )
    x = ramp(8, 64)
    (y,) = simulate(code, x, threads=2).outputs
    assert np.array_equal(y[0], x.sum(axis=0))


def test_kernel_prints(simulate: Simulate) -> None:
    code = kernel("y:float32[1,64]", vector='cce::printf("core %d\\n", (int)vid);' + fill("y") + "\npto::TPRINT(ones);")
    assert simulate(code).printed.split() == ["core", "0", *64 * "1", "core", "1", *64 * "1"]


def fill(pointer: str, rows: int = 1, cols: int = 64) -> str:
    """Writes a whole tile of ones."""
    return "\n".join(
        (
            "",
            tile("ones", "float32", (rows, cols), 0),
            "TEXPANDS(ones, 1.0f);",
            copy_out(pointer, "float32", (rows, cols), 0),
        )
    )


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, -3])
def test_empty_tails_do_nothing(simulate: Simulate, rows: int) -> None:
    code = kernel(
        "x:float32[4,64], y:float32[4,64]",
        vector="\n".join(
            (
                copy_in("x", "float32", (4, 64), 0),
                copy_in("x", "float32", (4, 64), 0, valid=f"{rows}, 64"),
                copy_out("y", "float32", (4, 64), 0),
                copy_out("y + 4096", "float32", (4, 64), 0, valid=f"{rows}, 64"),
            )
        ),
    )
    x = ramp(4, 64)
    assert np.array_equal(simulate(code, x).outputs[0], x)


def test_load_leaves_the_rest_of_the_tile_alone(simulate: Simulate) -> None:
    """A tail that nobody padded is uninitialised memory, as on the device, not zeros."""
    code = kernel(
        "x:float32[4,40], y:float32[4,64]",
        vector="\n".join(
            (
                copy_in("x", "float32", (4, 64), 0, pitch=40, valid="4, 40"),
                copy_out("y", "float32", (4, 64), 0),
            )
        ),
    )
    with pytest.raises(Unwritten, match=r"96 of 256 elements .* on-chip memory .* within \[0\.\.3, 40\.\.63\]"):
        simulate(code, ramp(4, 40))


def test_unwritten_output(simulate: Simulate) -> None:
    code = kernel("y:float32[8,64]", vector=fill("y", 7))
    with pytest.raises(Unwritten, match=r"y \(float32 \[8, 64\]\): 64 of 512 elements .* within \[7, 0\.\.63\]"):
        simulate(code)


def test_unwritten_bytes(simulate: Simulate) -> None:
    """8-bit outputs have no NaN; runs of what they were filled with are found all the same."""
    code = kernel(
        "x:int8[2,64], y:int8[2,64]",
        vector=copy_in("x", "int8", (2, 64), 0) + "\n" + copy_out("y", "int8", (2, 64), 0, valid="1, 64"),
    )
    with pytest.raises(Unwritten, match=r"64 of 128 elements"):
        simulate(code, ramp(2, 64, dtype=np.int8))


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            copy_out("y + 448", "float32", (2, 64), 0),
            r"write of 256 bytes at byte 2048 of y .*0 elements past the last",
        ),
        (copy_in("x - 16", "float32", (1, 64), 0), r"read outside of a tensor:\n  x \(float32 \[8, 64\]\)"),
        ("y[600] = 1.0f;", r"y .*88 elements past the last"),
        ("y[-5] = 1.0f;", r"byte -\d+ of y .*5 elements before the first"),
        ("y[5] = x[1 << 28];", r"x .*past the last"),
    ],
    ids=["store", "load", "scalar store", "before the start", "scalar load"],
)
def test_outside_of_a_tensor(simulate: Simulate, statement: str, message: str) -> None:
    code = kernel("x:float32[8,64], y:float32[8,64]", vector=fill("y", 8) + "\n" + statement)
    with pytest.raises(OutOfRange, match=message) as caught:
        simulate(code, ramp(8, 64))
    if caught.value.line:  # a scalar write into the slack before a tensor is found at the end
        assert caught.value.line == line_of(code, statement)
        assert f"generated line {caught.value.line}: " in str(caught.value)


def test_outside_of_on_chip_memory(simulate: Simulate) -> None:
    code = kernel("y:float32[1,64]", vector=fill("y") + "\n" + tile("big", "float32", (64, 64), 196608 - 8192))
    with pytest.raises(OutOfRange, match=r"UB: a tile at offset 188416 needs 16384 bytes, 8448 past the end of 196352"):
        simulate(code)
    simulate(replace(code, source=code.source.replace("C220", "C310"), platform="A5"))  # A5 has 248 KiB


@pytest.mark.parametrize("out", ["float32", "float16", "bfloat16"])
def test_uninitialised_data_is_traced_through_arithmetic(simulate: Simulate, out: str) -> None:
    body = (
        tile("a", "float32", (1, 64), 0)
        + "\n"
        + tile("b", "float32", (1, 64), 256)
        + "\n"
        + tile("t", out, (1, 64), 512),
        "TEXPANDS(b, 2.0f);\nTMUL(a, b, a);\nTEXP(a, a);\nTADD(a, a, b);",
        "TMOV(t, a);" if out == "float32" else "TCVT(t, a, pto::RoundMode::CAST_RINT);",
        copy_out("y", out, (1, 64), 512),
    )
    with pytest.raises(Unwritten, match=r"64 of 64 elements .* come from on-chip memory that was never written"):
        simulate(kernel(f"y:{out}[1,64]", vector="\n".join(body)))


# --- cores and flags -------------------------------------------------------------------------------------------------

SET, WAIT = "tl::ascend_pto::set_cross_flag<PIPE_MTE3>({}, {});", "tl::ascend_pto::wait_cross_flag({});"


def test_cube_and_vector_cores_meet(simulate: Simulate) -> None:
    """Cube to both vector cores and back (mode 2), and the two vector cores with each other (mode 1)."""
    code = kernel(
        "x:float32[4,64], y:float32[4,64], w:float32[4,64]",
        cube=WAIT.format(3) + "\n" + SET.format(4, 2),
        vector="\n".join(
            (
                copy_in("x + vid * 128", "float32", (2, 64), 0),
                copy_out("w + vid * 128", "float32", (2, 64), 0),
                SET.format(1, 1),
                WAIT.format(1),
                copy_in("w + (1 - vid) * 128", "float32", (2, 64), 0),
                copy_out("y + (1 - vid) * 128", "float32", (2, 64), 0),
                SET.format(3, 2),
                WAIT.format(4),
            )
        ),
        outputs=(1,),
        workspaces=(2,),
    )
    x = ramp(4, 64)
    assert np.array_equal(simulate(code, x).outputs[0], x)


def test_intra_block_flags_of_a5(simulate: Simulate) -> None:
    code = kernel(
        "y:float32[2,64]",
        cube="\n".join(
            (
                "tl::ascend_pto::wait_intra_block_cube<PIPE_FIX>(2);",
                "tl::ascend_pto::set_intra_block_cube<PIPE_FIX>(5);",
            )
        ),
        vector="tl::ascend_pto::set_intra_block_vec<PIPE_MTE3>(2);\n"
        "tl::ascend_pto::wait_intra_block_vec<PIPE_V>(5);" + fill("y + vid * 64"),
        platform="A5",
    )
    assert simulate(code).outputs[0].sum() == 128


@pytest.mark.parametrize("threads", [1, 2])
def test_all_cores_meet(simulate: Simulate, threads: int) -> None:
    """Every block must have arrived before one goes on, however few host threads there are."""
    code = kernel(
        "y:float32[12,64], w:float32[12,64]",
        cube="tl::ascend_pto::sync_all();",
        vector="\n".join(
            (
                "if (vid == 0) {" + fill("w + cid * 64"),
                "}\ntl::ascend_pto::sync_all();\nif (vid == 1) {",
                copy_in("w + (11 - cid) * 64", "float32", (1, 64), 0),
                copy_out("y + cid * 64", "float32", (1, 64), 0),
                "}",
            )
        ),
        blocks=12,
        outputs=(0,),
        workspaces=(1,),
    )
    assert simulate(code, threads=threads).outputs[0].sum() == 12 * 64


def test_deadlock_names_core_flag_and_statement(simulate: Simulate) -> None:
    code = kernel("y:float32[1,64]", cube=SET.format(3, 2), vector=fill("y") + "\n" + WAIT.format(5), blocks=4)
    with pytest.raises(Deadlock) as caught:
        simulate(code, threads=1)
    report = str(caught.value)
    assert "vector core 0 of block 0 waits for flag 5 (not yet waited for: flag 3)" in report
    assert f"generated line {line_of(code, WAIT.format(5))}: {WAIT.format(5)}" in report


def test_missing_wait_is_repeatable(simulate: Simulate) -> None:
    """A core that forgets to wait overtakes: it reads the workspace before it was written, in every run."""
    cube = matmul("float16", "float32", "float32", 16, 64, 16).replace("(c,", "(w,") + "\n" + SET.format(0, 2)
    vector = copy_in("w", "float32", (16, 64), 0) + "\n" + copy_out("c", "float32", (16, 64), 0)
    parameters = "a:float16[16,16], b:float16[16,64], c:float32[16,64], w:float32[16,64]"
    a, b = ramp(16, 16, dtype=np.float16), ramp(16, 64, dtype=np.float16)
    good = kernel(parameters, cube=cube, vector=WAIT.format(0) + "\n" + vector, outputs=(2,), workspaces=(3,))
    assert np.array_equal(simulate(good, a, b).outputs[0], a.astype(np.float32) @ b.astype(np.float32))
    bad = kernel(parameters, cube=cube, vector=vector, outputs=(2,), workspaces=(3,))
    for _ in range(3):
        with pytest.raises(Unwritten, match=r"1024 of 1024 elements \(100 %\) come from a workspace"):
            simulate(bad, a, b)


def test_flag_counter_note(simulate: Simulate) -> None:
    code = kernel(
        "y:float32[1,64]",
        cube="for (int i = 0; i < 16; ++i) {\n" + SET.format(3, 2) + "\n}",
        vector=fill("y") + "\nfor (int i = 0; i < 16; ++i) {\n" + WAIT.format(3) + "\n}",
    )
    (note,) = simulate(code).notes
    assert note.startswith("flag 3 was set more than 15 times before it was waited for (cube core of block 0")


# --- faults ----------------------------------------------------------------------------------------------------------


def test_time_limit(simulate: Simulate) -> None:
    code = kernel("y:float32[1,64]", vector="for (volatile int i = 0; ; i = 1) {\n}")
    with pytest.raises(TimeLimit, match=r"not finished after 0.5 s; 1 of 1 blocks were started\n  vector core 0"):
        simulate(code, time_limit=0.5)


def test_crash_is_contained(simulate: Simulate) -> None:
    statement = "y[0] = (float)(7 / (int)(cid - get_block_idx()));"
    code = kernel("y:float32[1,64]", vector=statement)
    with pytest.raises(Crash, match=r"Floating point exception\n  vector core 0 of block 0, generated line"):
        simulate(code)


def test_cube_memory_on_a_vector_core(simulate: Simulate) -> None:
    code = kernel("y:float32[1,64]", vector="pto::TileAcc<float, 16, 16, 16, 16> c;\nTASSIGN(c, 0);\n*c.data() = 1.0f;")
    with pytest.raises(OutOfRange, match="memory that a vector core does not have"):
        simulate(code)


def test_wrong_inputs(simulate: Simulate) -> None:
    code = kernel("x:float32[4,64], y:float32[4,64]", vector=fill("y", 4))
    with pytest.raises(ValueError, match=r"1 inputs \(x\), got 2 arrays"):
        simulate(code, ramp(4, 64), ramp(4, 64))
    with pytest.raises(ValueError, match=r"input x \(float32 \[4, 64\]\) was given float16 \[4, 64\]"):
        simulate(code, ramp(4, 64, dtype=np.float16))


# --- build -----------------------------------------------------------------------------------------------------------


def test_missing_instruction_is_not_a_pass(simulate: Simulate) -> None:
    statement = "TMADE_UP(ones, ones);"
    code = kernel("y:float32[1,64]", vector=fill("y") + "\n" + statement)
    with pytest.raises(NotSimulated, match="TMADE_UP") as caught:
        simulate(code)
    assert (caught.value.name, caught.value.line) == ("TMADE_UP", line_of(code, statement))


def test_missing_form_is_not_a_pass(simulate: Simulate) -> None:
    code = kernel("y:int32[1,64]", vector=tile("t", "int32", (1, 64), 0) + "\nTRSQRT(t, t);")
    with pytest.raises(NotSimulated, match=r"(?s)TRSQRT: .*generated line \d+: TRSQRT") as caught:
        simulate(code)
    assert caught.value.name == "TRSQRT"


def test_compile_error_points_at_the_generated_line(simulate: Simulate) -> None:
    code = kernel("y:float32[1,64]", vector=fill("y") + "\nint count = no_such_name;")
    with pytest.raises(BuildError, match=r"no_such_name.*\n  generated line \d+: int count = no_such_name;") as caught:
        simulate(code)
    assert not isinstance(caught.value, NotSimulated)
    with pytest.raises(BuildError, match="has no kernel launch"):
        GeneratedKernel.parse("int main() {}")


def test_unchanged_kernel_compiles_nothing(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    code = kernel("y:float32[1,64]", vector=fill("y"))
    simulate(code)
    monkeypatch.setattr(toolset, "_call", lambda *_: pytest.fail("compiled again"))
    simulate(code)


def test_kinds_of_core() -> None:
    def kinds(lowered: Lowered) -> tuple[str, ...]:
        return GeneratedKernel.parse(lowered.source).kinds

    vector, cube = fill("y"), "pipe_barrier(PIPE_ALL);"
    assert kinds(kernel("y:float32[1,64]", vector=vector)) == ("vector",)
    assert kinds(kernel("y:float32[1,64]", vector=vector, cube=cube)) == ("cube", "vector")
    open_code = kernel("y:float32[1,64]", cube=cube)
    open_code = replace(open_code, source=open_code.source.replace("#endif\n}", "#endif\npipe_barrier(PIPE_V);\n}", 1))
    assert kinds(open_code) == ("cube",)


def test_cache_survives_a_failed_build_and_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def fail(target: Path) -> None:
        target.write_text("half")
        raise toolset.CompileError("no")

    with pytest.raises(toolset.CompileError):
        toolset.cached("library", "k" * 32, ".so", fail)
    assert not list((tmp_path).rglob("*.so"))
    monkeypatch.setattr(toolset, "LIMIT", 4000)
    for i in range(8):
        toolset.cached("library", f"{i:032}", ".so", _kilobyte)
    assert 1 <= len(list(tmp_path.rglob("*.so"))) <= 4


def _kilobyte(path: Path) -> None:
    path.write_bytes(bytes(1000))


def test_no_compiler_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(
        toolset.CompilerNotFound, match=r"clang\+\+ 16 or newer, g\+\+ 13 or newer.*pip install ziglang"
    ):
        toolset.find_cxx.__wrapped__()
