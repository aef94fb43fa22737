"""Attention by hand: the cube and the vector cores hand tiles to each other through workspaces and cross-core flags."""

import tilelang
from tilelang import language as T

pass_configs = {
    tilelang.PassConfigKey.TL_ASCEND_AUTO_SYNC: True,
    tilelang.PassConfigKey.TL_ASCEND_MEMORY_PLANNING: True,
    tilelang.PassConfigKey.TL_ASCEND_AUTO_CV_COMBINE: True,
    tilelang.PassConfigKey.TL_ASCEND_AUTO_CV_SYNC: True,
}


@tilelang.jit(out_idx=[3], pass_configs=pass_configs)
def attention(heads, seq_len, dim, block_M=32, block_N=64, dtype="float16", accum_dtype="float"):
    q_blocks = seq_len // block_M
    blocks = q_blocks * heads
    half = block_M // 2
    scale = (1.0 / dim) ** 0.5
    shape = [heads, seq_len, dim]

    @T.prim_func
    def main(
        Q: T.Tensor(shape, dtype),  # type: ignore
        K: T.Tensor(shape, dtype),  # type: ignore
        V: T.Tensor(shape, dtype),  # type: ignore
        Output: T.Tensor(shape, dtype),  # type: ignore
    ):
        with T.Kernel(blocks, threads=2, is_npu=True) as (cid):
            bx = cid % q_blocks
            by = cid // q_blocks

            q_l1 = T.alloc_shared([block_M, dim], dtype)
            k_l1 = T.alloc_shared([block_N, dim], dtype)
            v_l1 = T.alloc_shared([block_N, dim], dtype)
            p_l1 = T.alloc_shared([block_M, block_N], dtype)
            s_l0 = T.alloc_fragment([block_M, block_N], accum_dtype)
            o_l0 = T.alloc_fragment([block_M, dim], accum_dtype)

            acc = T.alloc_shared([block_M, dim], accum_dtype)
            part = T.alloc_shared([block_M, dim], accum_dtype)
            out = T.alloc_shared([block_M, dim], dtype)
            s_ub = T.alloc_shared([block_M, block_N], accum_dtype)
            p_ub = T.alloc_shared([block_M, block_N], dtype)
            row_sum = T.alloc_shared([block_M], accum_dtype)
            row_max = T.alloc_shared([block_M], accum_dtype)
            last_max = T.alloc_shared([block_M], accum_dtype)
            new_sum = T.alloc_shared([block_M], accum_dtype)

            T.copy(Q[by, bx * block_M:(bx + 1) * block_M, :], q_l1)
            T.tile.fill(acc, 0.0)
            T.tile.fill(row_sum, 0.0)
            T.tile.fill(row_max, -(2**30))
            for k in T.serial(T.ceildiv(seq_len, block_N)):
                T.copy(K[by, k * block_N:(k + 1) * block_N, :], k_l1)
                T.gemm_v0(q_l1, k_l1, s_l0, transpose_B=True, init=True)
                T.copy(row_max, last_max)
                T.copy(s_l0, s_ub)
                T.tile.mul(s_ub, s_ub, scale)
                T.reduce_max(s_ub, row_max, dim=-1)
                T.tile.max(row_max, row_max, last_max)
                T.tile.sub(last_max, last_max, row_max)
                T.tile.exp(last_max, last_max)  # how much the past counts

                for i in range(block_M):
                    T.tile.sub(s_ub[i, :], s_ub[i, :], row_max[i])
                T.tile.exp(s_ub, s_ub)
                T.reduce_sum(s_ub, new_sum, dim=-1)
                T.tile.mul(row_sum, row_sum, last_max)
                T.tile.add(row_sum, row_sum, new_sum)

                T.copy(s_ub, p_ub)

                for i in range(block_M):
                    T.tile.mul(acc[i, :], acc[i, :], last_max[i])

                # The other cores make probabilities of it.
                T.copy(p_ub, p_l1)
                T.copy(V[by, k * block_N:(k + 1) * block_N, :], v_l1)
                T.gemm_v0(p_l1, v_l1, o_l0, init=True)
                T.copy(o_l0, part)
                T.tile.add(acc, acc, part)

            for i in range(block_M):
                T.tile.div(acc[i, :], acc[i, :], row_sum[i])
            T.copy(acc, out)
            T.copy(out, Output[by, bx * block_M : bx * block_M + block_M, :])

    return main
