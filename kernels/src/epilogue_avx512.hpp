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

inline std::uint64_t join(const __mmask16 (&part)[4]) {
    return _cvtmask64_u64(_mm512_kunpackd(_mm512_kunpackw(part[3], part[2]), _mm512_kunpackw(part[1], part[0])));
}

template <int V> inline std::uint64_t at_most(const __m512i (&popcount)[V], const std::int32_t *limit) {
    __mmask16 part[4] = {};
    STOMPP_UNROLL for (int v = 0; v < V; ++v)
        part[v] = _mm512_cmple_epi32_mask(popcount[v], _mm512_loadu_si512(limit + 16 * v));
    return join(part);
}

// bits = popcount <= limit[border class]; with a residual bit, that bit chooses between two limits. Columns beyond
// the last channel have a limit of -1, so their bits are 0.
template <Mode M, int P, int V>
inline void threshold_epilogue(const Conv &conv, const Block &block, std::int64_t first,
                               const __m512i (&popcount)[P][V]) {
    std::uint64_t bits[P];
    STOMPP_UNROLL for (int i = 0; i < P; ++i) bits[i] = at_most(popcount[i], conv.limit + block.column + conv.table[first + i]);
    if constexpr (M == Mode::either_threshold) {
        STOMPP_UNROLL for (int i = 0; i < P; ++i) {
            const std::uint64_t plus = at_most(popcount[i], conv.limit_plus + block.column + conv.table[first + i]);
            const std::uint64_t residual = read_block(conv.from_bits + conv.residual_bits[first + i], block);
            bits[i] = (plus & residual) | (bits[i] & ~residual);
        }
    }
    STOMPP_UNROLL for (int i = 0; i < P; ++i) write_block(conv.to_bits + conv.out_bits[first + i], block, bits[i]);
}

// y = fma(acc, mul, bias + residual), clamped; stored as floats, as sign bits, or both.
template <int P, int V>
inline void float_epilogue(const Conv &conv, const Block &block, std::int64_t first, const __m512 (&acc)[P][V]) {
    const __m512 low = _mm512_set1_ps(conv.low), high = _mm512_set1_ps(conv.high);
    const float *const bias = conv.bias + block.column, *const mul = conv.mul + block.column;
    const float *const residuals = conv.from_float;
    const std::uint32_t *const bit_residuals = conv.from_bits;
    float *const out = conv.to_float;
    std::uint32_t *const out_bits = conv.to_bits;
    STOMPP_UNROLL for (int i = 0; i < P; ++i) {
        const std::uint64_t residual = bit_residuals ? read_block(bit_residuals + conv.residual_bits[first + i], block) : 0;
        __mmask16 bits[4] = {};
        STOMPP_UNROLL for (int v = 0; v < V; ++v) {
            const __mmask16 mask = lanes(block, v);
            const int channel = block.channel + 16 * v;
            __m512 addend = _mm512_loadu_ps(bias + 16 * v);
            if (residuals)
                addend = _mm512_add_ps(addend, _mm512_maskz_loadu_ps(mask, residuals + conv.residual_float[first + i] + channel));
            if (bit_residuals)
                addend = _mm512_add_ps(addend, _mm512_mask_blend_ps(__mmask16(residual >> (16 * v)),
                                                                    _mm512_set1_ps(-1.0f), _mm512_set1_ps(1.0f)));
            __m512 y = _mm512_fmadd_ps(acc[i][v], _mm512_loadu_ps(mul + 16 * v), addend);
            if (conv.clamp) y = _mm512_min_ps(_mm512_max_ps(y, low), high);
            if (out) _mm512_mask_storeu_ps(out + conv.out_float[first + i] + channel, mask, y);
            bits[v] = _mm512_mask_cmp_ps_mask(mask, y, _mm512_setzero_ps(), _CMP_GE_OQ);
        }
        if (out_bits) write_block(out_bits + conv.out_bits[first + i], block, join(bits));
    }
}

} // namespace
} // namespace stompp
