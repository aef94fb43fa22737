"""Small right kernels for the tests of the rules, with named regions that a test (or a rule's page) replaces."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness import catalog
from harness.rules import Context, Finding, check_source

HEAD = """\
import tilelang
import tilelang.language as T

"""
SYNC_AND_PLAN = """\
pass_configs = {
    tilelang.PassConfigKey.TL_ASCEND_AUTO_SYNC: True,
    tilelang.PassConfigKey.TL_ASCEND_MEMORY_PLANNING: True,
}
"""
ALL_ON = """\
pass_configs = {
    tilelang.PassConfigKey.TL_ASCEND_AUTO_SYNC: True,
    tilelang.PassConfigKey.TL_ASCEND_MEMORY_PLANNING: True,
    tilelang.PassConfigKey.TL_ASCEND_AUTO_CV_COMBINE: True,
    tilelang.PassConfigKey.TL_ASCEND_AUTO_CV_SYNC: True,
}
"""

VECTOR = """\
#<config>
{switches}#</config>

#<decorator>
@tilelang.jit(out_idx=[2], pass_configs=pass_configs)
#</decorator>
#<signature>
def kernel(M: int, N: int, dtype: str = "float32", block_M: int = 64, block_N: int = 128):
#</signature>
    #<factory>
    m_num = T.ceildiv(M, block_M)
    n_num = T.ceildiv(N, block_N)
    #</factory>

    @T.prim_func
    def main(
        #<parameters>
        A: T.Tensor((M, N), dtype),
        B: T.Tensor((M, N), dtype),
        C: T.Tensor((M, N), dtype),
        #</parameters>
    ):
        #<launch>
        with T.Kernel(m_num, is_npu=True) as (cid, vid):
        #</launch>
            #<rows>
            row = cid * block_M + vid * (block_M // 2)
            #</rows>
            #<buffers>
            a = T.alloc_shared((block_M // 2, block_N), dtype)
            b = T.alloc_shared((block_M // 2, block_N), dtype)
            #</buffers>
            #<loop>
            for j in T.serial(n_num):
            #</loop>
                #<load>
                T.copy(A[row, j * block_N], a)
                T.copy(B[row, j * block_N], b)
                #</load>
                #<body>
                T.tile.add(a, a, b)
                #</body>
                #<store>
                T.copy(a, C[row, j * block_N])
                #</store>

    return main
"""
THREADS = VECTOR.replace("is_npu=True) as (cid, vid)", "threads=2, is_npu=True) as (cid)")
THREADS = THREADS.replace(" + vid * (block_M // 2)", "").replace("block_M // 2, block_N", "block_M, block_N")

GEMM = """\
#<config>
{switches}#</config>

#<decorator>
@tilelang.jit(out_idx=[2], pass_configs=pass_configs)
#</decorator>
#<signature>
def kernel(
    M: int, N: int, K: int, dtype: str = "float16", block_M: int = 128, block_N: int = 128, block_K: int = 64
):
#</signature>
    #<factory>
    n_num = T.ceildiv(N, block_N)
    k_num = T.ceildiv(K, block_K)
    #</factory>

    @T.prim_func
    def main(
        #<parameters>
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((K, N), dtype),
        C: T.Tensor((M, N), dtype),
        #</parameters>
    ):
        #<launch>
        with T.Kernel(T.ceildiv(M, block_M) * n_num, is_npu=True) as (cid, vid):
        #</launch>
            bx = cid // n_num
            by = cid % n_num
            #<buffers>
            a_l1 = T.alloc_shared((block_M, block_K), dtype)
            b_l1 = T.alloc_shared((block_K, block_N), dtype)
            c_l0 = T.alloc_fragment((block_M, block_N), "float32")
            #</buffers>
            #<loop>
            for k in T.serial(k_num):
            #</loop>
                #<load>
                T.copy(A[bx * block_M, k * block_K], a_l1)
                T.copy(B[k * block_K, by * block_N], b_l1)
                #</load>
                #<body>
                T.gemm_v0(a_l1, b_l1, c_l0, init=(k == 0))
                #</body>
            #<store>
            T.copy(c_l0, C[bx * block_M, by * block_N])
            #</store>

    return main
"""

FUSION = GEMM.replace("T.serial(k_num)", "T.Pipelined(4, num_stages=2)").replace("init=(k == 0))", "init=True)")
FUSION = FUSION.replace(
    "a_l1 = T.alloc",
    """c_ub = T.alloc_shared((block_M // 2, block_N), "float32")
            sum_ub = T.alloc_shared((block_M // 2, block_N), "float32")
            T.tile.fill(sum_ub, 0.0)
            a_l1 = T.alloc""",
).replace("C: T.Tensor((M, N), dtype)", 'C: T.Tensor((M, N), "float32")')
FUSION = FUSION.replace(
    """                #</body>""",
    """                T.copy(c_l0, c_ub)
                T.tile.add(sum_ub, sum_ub, c_ub)
                #</body>""",
).replace("T.copy(c_l0, C[bx * block_M,", "T.copy(sum_ub, C[bx * block_M + vid * (block_M // 2),")
FUSION = FUSION.replace("    k_num = T.ceildiv(K, block_K)\n", "")

EXPERT = """\
#<config>
#</config>
#<decorator>
@tilelang.jit(out_idx=[3], workspace_idx=[4])
#</decorator>
#<signature>
def kernel(M: int, dtype: str = "float16", block_M: int = 128, block_N: int = 128, block_K: int = 64):
#</signature>
    #<factory>
    half = block_M // 2
    #</factory>

    @T.prim_func
    def main(
        #<parameters>
        A: T.Tensor((M, block_K), dtype),
        B: T.Tensor((block_K, block_N), dtype),
        D: T.Tensor((M, block_N), dtype),
        C: T.Tensor((M, block_N), dtype),
        workspace_1: T.Tensor((M, block_N), dtype),
        #</parameters>
    ):
        #<launch>
        with T.Kernel(T.ceildiv(M, block_M), is_npu=True) as (cid, vid):
        #</launch>
            #<buffers>
            a_l1 = T.alloc_L1((block_M, block_K), dtype)
            b_l1 = T.alloc_L1((block_K, block_N), dtype)
            c_l0 = T.alloc_L0C((block_M, block_N), "float32")
            c_ub = T.alloc_ub((half, block_N), dtype)
            d_ub = T.alloc_ub((half, block_N), dtype)
            #</buffers>
            #<cube>
            with T.Scope("C"):
                T.copy(A[cid * block_M, 0], a_l1)
                T.copy(B, b_l1)
                T.barrier_all()
                T.gemm_v0(a_l1, b_l1, c_l0, init=True)
                T.barrier_all()
                T.copy(c_l0, workspace_1[cid * block_M, 0])
                T.set_cross_flag("FIX", 0)
            #</cube>
            #<vector>
            with T.Scope("V"):
                T.wait_cross_flag(0)
                T.copy(workspace_1[cid * block_M + vid * half, 0], c_ub)
                T.copy(D[cid * block_M + vid * half, 0], d_ub)
                T.barrier_all()
                T.tile.add(c_ub, c_ub, d_ub)
                T.barrier_all()
                T.copy(c_ub, C[cid * block_M + vid * half, 0])
            #</vector>

    return main
"""

BASES = {
    "vector": (VECTOR.replace("{switches}", SYNC_AND_PLAN), "vector"),
    "threads": (THREADS.replace("{switches}", SYNC_AND_PLAN), "vector"),
    "gemm": (GEMM.replace("{switches}", ALL_ON), "gemm"),
    "fusion": (FUSION.replace("{switches}", ALL_ON), "cv_fusion"),
    "expert": (EXPERT, "expert"),
}
_MARKER = re.compile(r"^\s*#</?\w+>\n", re.MULTILINE)


def build(base: str, regions: Mapping[str, str] | None = None, **more: str) -> str:
    """A kernel file: a base whose regions are replaced by text, indented as they are; ``head`` goes on top."""
    text, _ = BASES[base]
    given = {**(regions or {}), **more}
    head, tail = given.get("head", ""), given.get("tail", "")
    for name, new in given.items():
        if name in ("head", "tail"):
            continue
        pattern = re.compile(rf"^( *)#<{name}>\n.*?^ *#</{name}>\n", re.MULTILINE | re.DOTALL)
        found = pattern.search(text)
        if found is None:
            raise ValueError(f"base {base} has no region {name}")
        body = textwrap.indent(textwrap.dedent(new).strip("\n") + "\n", found[1]) if new.strip() else ""
        text = text[: found.start()] + body + text[found.end() :]
    return HEAD + head + _MARKER.sub("", text) + tail


def context(base: str, **changes: object) -> Context:
    """The context of the package that a base stands for; keyword arguments change it."""
    start = Context(scenario=BASES[base][1], dtype="float16", catalog=catalog.load())
    return replace(start, **changes)  # type: ignore[arg-type]


def findings(
    base: str, regions: Mapping[str, str] | None = None, where: Context | None = None, **more: str
) -> list[Finding]:
    """What the source rules find in a base with regions replaced."""
    return check_source(Path("kernel.py"), where or context(base), build(base, regions, **more))
