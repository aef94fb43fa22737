"""Attention by hand: the cube and the vector cores hand tiles to each other through workspaces and cross-core flags."""

import tilelang
from tilelang import language as T

pass_configs = {}


@tilelang.jit(out_idx=[3], workspace_idx=[4, 5, 6], pass_configs=pass_configs)
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
        workspace_1: T.Tensor([blocks, block_M, block_N], accum_dtype),
        workspace_2: T.Tensor([blocks, block_M, block_N], dtype),
        workspace_3: T.Tensor([blocks, block_M, dim], accum_dtype),
    ):
        with T.Kernel(blocks, is_npu=True) as (cid, vid):
            bx = cid % q_blocks
            by = cid // q_blocks

            q_l1 = T.alloc_L1([block_M, dim], dtype)
            k_l1 = T.alloc_L1([block_N, dim], dtype)
            v_l1 = T.alloc_L1([block_N, dim], dtype)
            p_l1 = T.alloc_L1([block_M, block_N], dtype)
            s_l0 = T.alloc_L0C([block_M, block_N], accum_dtype)
            o_l0 = T.alloc_L0C([block_M, dim], accum_dtype)

            acc = T.alloc_ub([half, dim], accum_dtype)
            part = T.alloc_ub([half, dim], accum_dtype)
            out = T.alloc_ub([half, dim], dtype)
            s_ub = T.alloc_ub([half, block_N], accum_dtype)
            p_ub = T.alloc_ub([half, block_N], dtype)
            row_sum = T.alloc_ub([half], accum_dtype)
            row_max = T.alloc_ub([half], accum_dtype)
            last_max = T.alloc_ub([half], accum_dtype)
            new_sum = T.alloc_ub([half], accum_dtype)

            with T.Scope("C"):
                T.copy(Q[by, bx * block_M:(bx + 1) * block_M, :], q_l1)
                T.barrier_all()
                for k in T.serial(T.ceildiv(seq_len, block_N)):
                    T.copy(K[by, k * block_N:(k + 1) * block_N, :], k_l1)
                    T.barrier_all()
                    T.gemm_v0(q_l1, k_l1, s_l0, transpose_B=True, init=True)
                    T.barrier_all()
                    T.copy(s_l0, workspace_1[cid, :, :])
                    T.barrier_all()
                    T.set_cross_flag("FIX", 0)

                    # The other cores make probabilities of it.
                    T.wait_cross_flag(1)
                    T.copy(workspace_2[cid, :, :], p_l1)
                    T.copy(V[by, k * block_N:(k + 1) * block_N, :], v_l1)
                    T.barrier_all()
                    T.gemm_v0(p_l1, v_l1, o_l0, init=True)
                    T.barrier_all()
                    T.copy(o_l0, workspace_3[cid, :, :])
                    T.barrier_all()
                    T.set_cross_flag("FIX", 2)
                    T.wait_cross_flag(3)

            with T.Scope("V"):
                T.tile.fill(acc, 0.0)
                T.tile.fill(row_sum, 0.0)
                T.tile.fill(row_max, -(2**30))
                T.barrier_all()
                for _k in T.serial(T.ceildiv(seq_len, block_N)):
                    T.copy(row_max, last_max)
                    T.wait_cross_flag(0)
                    T.copy(workspace_1[cid, vid * half:vid * half + half, :], s_ub)
                    T.barrier_all()
                    T.tile.mul(s_ub, s_ub, scale)
                    T.barrier_all()
                    T.reduce_max(s_ub, row_max, dim=-1)
                    T.barrier_all()
                    T.tile.max(row_max, row_max, last_max)
                    T.barrier_all()
                    T.tile.sub(last_max, last_max, row_max)
                    T.barrier_all()
                    T.tile.exp(last_max, last_max)  # how much the past counts
                    T.barrier_all()

                    for i in range(half):
                        T.barrier_all()
                        T.tile.sub(s_ub[i, :], s_ub[i, :], row_max[i])
                        T.barrier_all()
                    T.tile.exp(s_ub, s_ub)
                    T.barrier_all()
                    T.reduce_sum(s_ub, new_sum, dim=-1)
                    T.barrier_all()
                    T.tile.mul(row_sum, row_sum, last_max)
                    T.barrier_all()
                    T.tile.add(row_sum, row_sum, new_sum)

                    T.copy(s_ub, p_ub)
                    T.barrier_all()
                    T.copy(p_ub, workspace_2[cid, vid * half:vid * half + half, :])
                    T.barrier_all()
                    T.set_cross_flag("MTE3", 1)

                    for i in range(half):
                        T.barrier_all()
                        T.tile.mul(acc[i, :], acc[i, :], last_max[i])
                        T.barrier_all()
                    T.wait_cross_flag(2)
                    T.copy(workspace_3[cid, vid * half:vid * half + half, :], part)
                    T.barrier_all()
                    T.tile.add(acc, acc, part)
                    T.barrier_all()
                    T.set_cross_flag("MTE2", 3)

                for i in range(half):
                    T.barrier_all()
                    T.tile.div(acc[i, :], acc[i, :], row_sum[i])
                    T.barrier_all()
                T.copy(acc, out)
                T.barrier_all()
                T.copy(out, Output[by, bx * block_M + vid * half:bx * block_M + vid * half + half, :])

    return main
