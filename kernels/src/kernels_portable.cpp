// The kernels for any CPU.
#include "lanes_portable.hpp"
#include "rows.hpp"

namespace stompp {
extern const Kernels portable_kernels = {
    "portable",    BinaryLayout::lanes32,
    sweep_binary<BinaryPortable>,
    sweep<FloatPortable, Mode::arithmetic>,
    sweep<Int8Portable, Mode::arithmetic>,
    nullptr,
    nullptr,
    sign_row,      unpack_row,
    quantize_row,  round_row,
    pair_row,      affine_row,
    clamp_row,     add_row,
    pool_pixel,    pool_bits_pixel,
};
} // namespace stompp
