"""A matrix product by hand: double-buffered L1, operands moved to L0, flags between the pipes."""

import tilelang
import tilelang.language as T


@tilelang.jit(out_idx=[-1])
def matmul(M, N, K, block_M=64, block_N=128, K_L1=64, block_K=64, dtype="float16", accum_dtype="float"):
    n_num = T.ceildiv(N, block_N)

    @T.macro
    def settle():
        # Every pipe has finished.
        T.barrier_all()

    @T.prim_func
    def main(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((K, N), dtype),
        C: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(M, block_M) * n_num, is_npu=True) as (cid, _):
            bx = cid // n_num  # row of blocks
            by = cid % n_num

            # Staging and operands.
            A_L1 = T.alloc_L1((block_M, K_L1), dtype)
            B_L1 = T.alloc_L1((K_L1, block_N), dtype)
            A_L0 = T.alloc_L0A((block_M, block_K), dtype)
            B_L0 = T.alloc_L0B((block_K, block_N), dtype)
            C_L0 = T.alloc_L0C((block_M, block_N), accum_dtype)
            T.annotate_address({
                A_L1: 0,
                B_L1: 8192,
                A_L0: 0,
                B_L0: 0,
                C_L0: 0,
            })

            with T.Scope("C"):
                for k in T.serial(T.ceildiv(K, K_L1)):
                    T.copy(A[bx * block_M, k * K_L1], A_L1)
                    T.copy(B[k * K_L1, by * block_N], B_L1)
                    settle()

                    # Two products a tile.
                    for kk in T.serial(T.ceildiv(K_L1, block_K)):
                        T.copy(A_L1[0, kk * block_K], A_L0)
                        T.copy(B_L1[kk * block_K, 0], B_L0)
                        T.set_flag("mte1", "m", 0)
                        T.wait_flag("mte1", "m", 0)
                        T.mma(A_L0, B_L0, C_L0, init=T.And(k == 0, kk == 0))
                        settle()

                T.copy(C_L0, C[bx * block_M, by * block_N])

    return main
