// TMATMUL: fp16 and bf16 operands are widened to fp32 and accumulated there, int8 in int32, as the cube core does.
// The CPU headers compute one element at a time through the fractal layout; here both operands are first unpacked, then
// multiplied in blocks that stay in registers. Per call the products are summed in the order of k, then added to C.
#pragma once

namespace vnpu {

constexpr int block_rows = 4, block_cols = 32;

// C[rows, pitch] = A[rows, depth] · B[depth, pitch]; rows a multiple of block_rows, pitch of block_cols.
template <typename Acc> void multiply(Acc *c, const Acc *a, const Acc *b, int rows, int pitch, int depth) {
    for (int j = 0; j < pitch; j += block_cols)
        for (int i = 0; i < rows; i += block_rows) {
            Acc sum[block_rows][block_cols] = {};
            const Acc *line = b + j;
            for (int k = 0; k < depth; k++, line += pitch)
                for (int r = 0; r < block_rows; r++) {
                    Acc left = a[static_cast<size_t>(i + r) * depth + k];
                    for (int q = 0; q < block_cols; q++) {
#ifdef __FMA__
                        if constexpr (std::is_same_v<Acc, float>)
                            sum[r][q] = __builtin_fmaf(left, line[q], sum[r][q]);
                        else
#endif
                            sum[r][q] += left * line[q];
                    }
                }
            for (int r = 0; r < block_rows; r++)
                std::memcpy(c + static_cast<size_t>(i + r) * pitch + j, sum[r], sizeof sum[r]);
        }
}

template <typename Result, typename Left, typename Right>
void product(Result &result, const typename Result::DType *addend, Left &left, Right &right) {
    using Acc = typename Result::DType;
    pto::CheckMadValid<Result, Left, Right>();
    int rows = rows_of(left), depth = cols_of(left), cols = cols_of(right);
    int padded = (rows + block_rows - 1) / block_rows * block_rows;
    int pitch = (cols + block_cols - 1) / block_cols * block_cols;
    static thread_local std::vector<Acc> a, b, c;
    a.assign(static_cast<size_t>(padded) * depth, Acc(0));
    b.assign(static_cast<size_t>(depth) * pitch, Acc(0));
    c.resize(static_cast<size_t>(padded) * pitch);
    for (int i = 0; i < rows; i++)
        for (int k = 0; k < depth; k++)
            a[static_cast<size_t>(i) * depth + k] = static_cast<Acc>(left.data()[at<Left>(i, k)]);
    for (int k = 0; k < depth; k++)
        for (int j = 0; j < cols; j++)
            b[static_cast<size_t>(k) * pitch + j] = static_cast<Acc>(right.data()[at<Right>(k, j)]);
    multiply(c.data(), a.data(), b.data(), padded, pitch, depth);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) {
            size_t where = at<Result>(i, j);
            Acc value = c[static_cast<size_t>(i) * pitch + j];
            result.data()[where] = addend ? addend[where] + value : value;
        }
}

template <auto... Phase, typename Result, typename Left, typename Right>
void matmul(Result &result, Left &left, Right &right) {
    product(result, nullptr, left, right);
}
template <auto... Phase, typename Result, typename Left, typename Right>
void matmul_accumulate(Result &result, Result &addend, Left &left, Right &right) {
    product(result, addend.data(), left, right);
}
template <auto... Phase, typename Result, typename Left, typename Right>
void matmul_accumulate(Result &result, Left &left, Right &right) {
    product(result, result.data(), left, right);
}

}  // namespace vnpu
