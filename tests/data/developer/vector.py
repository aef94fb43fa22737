import tilelang
from tilelang import language as T

VEC_NUM = 2


pass_configs = {
    tilelang.PassConfigKey.TL_ASCEND_AUTO_SYNC: True,
    tilelang.PassConfigKey.TL_ASCEND_MEMORY_PLANNING: True,
}


@tilelang.jit(out_idx=[2], pass_configs=pass_configs)
def scaled_add(M, N, block_M=32, block_N=64, dtype="float32"):
    """C = 2 A + B, three queues kept in order by flags."""
    n_num = N // block_N

    @T.prim_func
    def main(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(M // block_M, is_npu=True) as (cid, vid):
            a_ub = T.alloc_shared((block_M // VEC_NUM, block_N), dtype)
            b_ub = T.alloc_shared((block_M // VEC_NUM, block_N), dtype)

            for j in T.serial(n_num):
                T.copy(A[cid * block_M + vid * block_M // VEC_NUM, j * block_N], a_ub)
                T.copy(B[cid * block_M + vid * block_M // VEC_NUM, j * block_N], b_ub)

                T.tile.mul(a_ub, a_ub, 2.0)  # twice
                T.tile.add(a_ub, a_ub, b_ub)

                T.copy(a_ub, C[cid * block_M + vid * block_M // VEC_NUM, j * block_N])

    return main
