// The kernels for AVX2 with FMA.
#include "binary_avx2.hpp"
#include "dense_avx2.hpp"
#include "rows.hpp"

namespace stompp {
extern const Kernels avx2_kernels = {
    "avx2",        BinaryLayout::nibbles,
    sweep_binary<BinaryAvx2>,
    sweep<DenseAvx2<FloatAvx2>, Mode::arithmetic>,
    sweep<DenseAvx2<Int8Avx2>, Mode::arithmetic>,
    nullptr,
    register_loop_avx2,
    sign_row,      unpack_row,
    quantize_row,  round_row,
    pair_row,      affine_row,
    clamp_row,     add_row,
    pool_pixel,    pool_bits_pixel,
};
} // namespace stompp
