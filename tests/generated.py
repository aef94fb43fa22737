"""Small kernels in the form that the pto backend generates, for tests of the virtual NPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.compiler.lowered import Lowered, Parameter

C_TYPES = {"float16": "half", "bfloat16": "bfloat16_t", "float32": "float", "int8": "int8_t", "int32": "int32_t"}

HEAD = """#include "tl_templates/pto/common.h"
#include <pto/pto-inst.hpp>
#include "acl/acl.h"
#include <runtime/rt_ffts.h>
using namespace pto;

"""


def kernel(
    parameters: str,
    *,
    vector: str = "",
    cube: str = "",
    blocks: int = 1,
    outputs: Sequence[int] = (-1,),
    workspaces: Sequence[int] = (),
    platform: str = "A2",
) -> Lowered:
    """Writes a kernel.

    Args:
        parameters: As ``"x:float32[64], y:float16[2,32]"``; in the code a tensor is a pointer of that name.
        vector: Statements of the vector cores, one per line.
        cube: Statements of the cube core.
        outputs: Positions of outputs; negative ones count from the end.
    """
    tensors = []
    for text in parameters.replace(" ", "").replace("],", "];").split(";"):
        name, _, rest = text.partition(":")
        dtype, _, shape = rest.rstrip("]").partition("[")
        tensors.append((name, Parameter(dtype, tuple(map(int, shape.split(","))))))
    arch = "C310" if platform == "A5" else "C220"
    raw = ", ".join(f"__gm__ uint8_t *{name}_handle_raw" for name, _ in tensors)
    casts = "".join(
        f"  __gm__ {C_TYPES[p.dtype]} *{name} = reinterpret_cast<__gm__ {C_TYPES[p.dtype]} *>({name}_handle_raw);\n"
        for name, p in tensors
    )
    parts = "".join(
        f"#if defined(__DAV_{arch}_{kind}__)\n{code.strip()}\n#endif\n"
        for kind, code in (("CUBE", cube), ("VEC", vector))
        if code
    )
    names = ", ".join(name for name, _ in tensors)
    source = (
        f"{HEAD}{'#define PTO_PLATFORM_A5' if platform == 'A5' else ''}\n"
        f'extern "C" __global__ AICORE void main_kernel({raw}, uint64_t ffts_Addr) {{\n{casts}'
        "  auto cid = get_block_idx();\n  auto vid = get_subblockid();\n  set_ffts_base_addr(ffts_Addr);\n"
        f'{parts}}}\n\nextern "C" void call(void *stream)\n{{\n'
        f"    main_kernel<<<{blocks}, nullptr, stream>>>({names}, fftsAddr);\n}}\n"
    )
    count = len(tensors)
    return Lowered(
        source,
        "pto",
        platform,
        tuple(parameter for _, parameter in tensors),
        tuple(i % count for i in outputs),
        tuple(i % count for i in workspaces),
        (),
        {},
        {},
        {},
    )


def tile(name: str, dtype: str, shape: tuple[int, int], address: int, valid: str = "") -> str:
    """Declares a UB tile; ``valid`` holds run-time sizes, as ``"rows, cols"``."""
    rows, cols = shape
    sizes = "pto::DYNAMIC, pto::DYNAMIC" if valid else f"{rows}, {cols}"
    return (
        f"tl::ascend_pto::TileUbDataND<{C_TYPES[dtype]}, {rows}, {cols}, {sizes}> {name}"
        f"{f'({valid})' if valid else ''};\nTASSIGN({name}, {address});"
    )


def copy_in(pointer: str, dtype: str, shape: tuple[int, int], address: int, *, pitch: int = 0, valid: str = "") -> str:
    """Global memory to UB, as ``T.copy`` lowers it."""
    return _copy("copy_gm_to_ub_dynamic", pointer, dtype, shape, address, pitch, valid)


def copy_out(pointer: str, dtype: str, shape: tuple[int, int], address: int, *, pitch: int = 0, valid: str = "") -> str:
    """UB to global memory."""
    return _copy("copy_ub_to_gm_dynamic", pointer, dtype, shape, address, pitch, valid)


def _copy(name: str, pointer: str, dtype: str, shape: tuple[int, int], address: int, pitch: int, valid: str) -> str:
    rows, cols = shape
    sizes, strides = f"1, 1, 1, {rows}, {cols}", f"1, 1, 1, {pitch or cols}, 1"
    kind = C_TYPES[dtype]
    return (
        f"tl::ascend_pto::{name}<{kind}, {kind}, {sizes}, {strides}, {rows}, {cols}>({pointer}, "
        f"pto::Shape<{sizes}>(), pto::Stride<{strides}>(), {address}, 0, {valid or f'{rows}, {cols}'});"
    )


def matmul(
    dtype: str, accum: str, out: str, m: int, n: int, k: int, *, valid: tuple[int, int, int] | None = None
) -> str:
    """One block of C = A · B on the cube core; ``valid`` holds the true sizes where the block is larger."""
    rows, cols, depth = valid or (m, n, k)
    t, acc, to = C_TYPES[dtype], C_TYPES[accum], C_TYPES[out]
    right = m * k * np.dtype("int8" if dtype == "int8" else "float16").itemsize

    def move(
        name: str, types: str, pointer: str, shape: tuple[int, int], pitch: int, at: int, tail: str, end: str
    ) -> str:
        sizes, strides = f"1, 1, 1, {shape[0]}, {shape[1]}", f"1, 1, 1, {pitch}, 1"
        return (
            f"tl::ascend_pto::{name}<{types}, {sizes}, {strides}, {shape[0]}, {shape[1]}{end}>({pointer}, "
            f"pto::Shape<{sizes}>(), pto::Stride<{strides}>(), {at}, 0, {tail});"
        )

    return "\n".join(
        (
            f"pto::TileAcc<{acc}, {m}, {n}, {m}, {n}> c_l0;\nTASSIGN(c_l0, 0);",
            f"tl::ascend_pto::TileMatL1<{t}, {m}, {k}, {m}, {k}> a_l1;\nTASSIGN(a_l1, 0);",
            f"tl::ascend_pto::TileMatL1<{t}, {k}, {n}, {k}, {n}> b_l1;\nTASSIGN(b_l1, {right});",
            move("copy_gm_to_l1_dynamic", f"{t}, {t}", "a", (m, k), depth, 0, f"{rows}, {depth}", ""),
            move("copy_gm_to_l1_dynamic", f"{t}, {t}", "b", (k, n), cols, right, f"{depth}, {cols}", ""),
            f"tl::ascend_pto::gemm_v0<{t}, {acc}, {m}, {n}, {k}, {m}, {n}, {k}, {k}, false, false>"
            "(a_l1, b_l1, c_l0, true);",
            move("copy_l0c_to_gm_dynamic", f"{to}, {acc}", "c", (m, n), cols, 0, f"{rows}, {cols}", ", false"),
        )
    )


def ramp(*shape: int, dtype: Any = np.float32) -> NDArray[Any]:
    """Distinct small numbers."""
    return (np.arange(np.prod(shape)) % 251 - 125).reshape(shape).astype(dtype)
