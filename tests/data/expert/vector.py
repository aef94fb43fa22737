import tilelang
from tilelang import language as T

VEC_NUM = 2


@tilelang.jit(out_idx=[2])
def scaled_add(M, N, block_M=32, block_N=64, dtype="float32"):
    """C = 2 A + B, three queues kept in order by flags."""
    n_num = N // block_N

    @T.prim_func
    def main(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(M // block_M, is_npu=True) as (cid, vid):
            a_ub = T.alloc_ub((block_M // VEC_NUM, block_N), dtype)
            b_ub = T.alloc_ub((block_M // VEC_NUM, block_N), dtype)

            with T.Scope("V"):
                T.set_flag("mte3", "mte2", 0)
                for j in T.serial(n_num):
                    T.wait_flag("mte3", "mte2", 0)
                    T.copy(A[cid * block_M + vid * block_M // VEC_NUM, j * block_N], a_ub)
                    T.copy(B[cid * block_M + vid * block_M // VEC_NUM, j * block_N], b_ub)
                    T.set_flag("mte2", "v", 0)
                    T.wait_flag("mte2", "v", 0)

                    T.tile.mul(a_ub, a_ub, 2.0)  # twice
                    T.pipe_barrier("v")
                    T.tile.add(a_ub, a_ub, b_ub)

                    T.set_flag("v", "mte3", 0)
                    T.wait_flag("v", "mte3", 0)
                    T.copy(a_ub, C[cid * block_M + vid * block_M // VEC_NUM, j * block_N])
                    T.set_flag("mte3", "mte2", 0)
                # The last store.
                T.wait_flag("mte3", "mte2", 0)

    return main
