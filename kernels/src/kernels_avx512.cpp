// The kernels for AVX-512 with VPOPCNTDQ and VNNI (Ice Lake, Zen 4 and later).
#include "binary_avx512.hpp"
#include "dense_avx512.hpp"
#include "rows.hpp"

namespace stompp {
extern const Kernels avx512_kernels = {
    "avx512",      BinaryLayout::lanes32,
    sweep_binary<BinaryAvx512>,
    sweep<DenseAvx512<FloatAvx512>, Mode::arithmetic>,
    sweep<DenseAvx512<Int8Avx512>, Mode::arithmetic>,
    nullptr,
    register_loop_avx512,
    sign_row,      unpack_row,
    quantize_row,  round_row,
    pair_row,      affine_row,
    clamp_row,     add_row,
    pool_pixel,    pool_bits_pixel,
};
} // namespace stompp
