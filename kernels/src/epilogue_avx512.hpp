// What happens to a tile of accumulators, AVX-512: thresholds to bits, or fma to floats and sign bits.
#pragma once
#include <immintrin.h>

#include "sweep.hpp"

namespace stompp {
namespace {

inline __mmask16 lanes(const Block &block, int v) {
    const int n = block.count - 16 * v;
    return n >= 16 ? __mmask16(0xffff) : __mmask16((1u << n) - 1u);
}

// bits = popcount <= limit[border class]; with a residual bit, that bit chooses between two limits.
template <int P, int V>
inline void threshold_epilogue(const Conv &conv, const Block &block, const Tile<std::uint32_t> &tile,
                               const __m512i (&popcount)[P][V]) {
    for (int i = 0; i < P; ++i) {
        const std::ptrdiff_t entry = std::ptrdiff_t(tile.border[i]) * conv.columns + block.column;
        std::uint64_t bits = 0;
        for (int v = 0; v < V; ++v)
            bits |= std::uint64_t(_mm512_cmple_epi32_mask(popcount[i][v], _mm512_loadu_si512(conv.limit + entry + 16 * v)))
                    << (16 * v);
        if (conv.limit_plus) {
            std::uint64_t plus = 0;
            for (int v = 0; v < V; ++v)
                plus |= std::uint64_t(_mm512_cmple_epi32_mask(popcount[i][v],
                                                              _mm512_loadu_si512(conv.limit_plus + entry + 16 * v)))
                        << (16 * v);
            const std::uint64_t residual =
                read_bits(pointer<std::uint32_t>(conv.residual_bits, tile.pixel[i]), block.channel, block.count);
            bits = (plus & residual) | (bits & ~residual);
        }
        if (block.count < 64) bits &= (std::uint64_t(1) << block.count) - 1;
        write_bits(pointer<std::uint32_t>(conv.out_bits, tile.pixel[i]), block.channel, block.count, bits);
    }
}

// y = fma(acc, mul, bias + residual), clamped; stored as floats, as sign bits, or both.
template <int P, int V, class T>
inline void float_epilogue(const Conv &conv, const Block &block, const Tile<T> &tile, const __m512 (&acc)[P][V]) {
    const __m512 low = _mm512_set1_ps(conv.low), high = _mm512_set1_ps(conv.high);
    for (int i = 0; i < P; ++i) {
        const float *residual = conv.residual_float.data
                                    ? pointer<float>(conv.residual_float, tile.pixel[i]) + block.channel
                                    : nullptr;
        std::uint64_t residual_bits = 0;
        if (conv.residual_bits.data)
            residual_bits =
                read_bits(pointer<std::uint32_t>(conv.residual_bits, tile.pixel[i]), block.channel, block.count);
        float *out = conv.out_float.data ? pointer<float>(conv.out_float, tile.pixel[i]) + block.channel : nullptr;
        std::uint64_t bits = 0;
        for (int v = 0; v < V; ++v) {
            const __mmask16 mask = lanes(block, v);
            const int column = block.column + 16 * v;
            __m512 addend = _mm512_loadu_ps(conv.bias + column);
            if (residual) addend = _mm512_add_ps(addend, _mm512_maskz_loadu_ps(mask, residual + 16 * v));
            if (conv.residual_bits.data)
                addend = _mm512_add_ps(addend, _mm512_mask_blend_ps(__mmask16(residual_bits >> (16 * v)),
                                                                    _mm512_set1_ps(-1.0f), _mm512_set1_ps(1.0f)));
            __m512 y = _mm512_fmadd_ps(acc[i][v], _mm512_loadu_ps(conv.mul + column), addend);
            if (conv.clamp) y = _mm512_min_ps(_mm512_max_ps(y, low), high);
            if (out) _mm512_mask_storeu_ps(out + 16 * v, mask, y);
            bits |= std::uint64_t(_mm512_mask_cmp_ps_mask(mask, y, _mm512_setzero_ps(), _CMP_GE_OQ)) << (16 * v);
        }
        if (conv.out_bits.data)
            write_bits(pointer<std::uint32_t>(conv.out_bits, tile.pixel[i]), block.channel, block.count, bits);
    }
}

} // namespace
} // namespace stompp
