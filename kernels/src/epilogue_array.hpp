// What happens to a tile of accumulators that lies in an array: the AVX2 and portable kernels.
#pragma once
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "sweep.hpp"

namespace stompp {
namespace {

constexpr int kLanes = kBlockChannels;

// Bit c is values[c] <= limit[c]; `lanes` is a multiple of 16.
inline std::uint64_t at_most(const std::int32_t *values, const std::int32_t *limit, int lanes) {
    std::uint64_t bits = 0;
#ifdef __AVX2__
    for (int c = 0; c < lanes; c += 8) {
        const __m256i above = _mm256_cmpgt_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(values + c)),
                                                 _mm256_loadu_si256(reinterpret_cast<const __m256i *>(limit + c)));
        bits |= std::uint64_t(~_mm256_movemask_ps(_mm256_castsi256_ps(above)) & 0xff) << c;
    }
#else
    for (int c = 0; c < lanes; ++c) bits |= std::uint64_t(values[c] <= limit[c]) << c;
#endif
    return bits;
}

// Bit c is values[c] >= 0.
inline std::uint64_t not_negative(const float *values, int lanes) {
    std::uint64_t bits = 0;
#ifdef __AVX2__
    for (int c = 0; c < lanes; c += 8)
        bits |= std::uint64_t(_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(values + c), _mm256_setzero_ps(), _CMP_GE_OQ)))
                << c;
#else
    for (int c = 0; c < lanes; ++c) bits |= std::uint64_t(values[c] >= 0.0f) << c;
#endif
    return bits;
}

inline std::uint64_t first_bits(int count) { return count == 64 ? ~std::uint64_t(0) : (std::uint64_t(1) << count) - 1; }

inline void threshold_epilogue(const Conv &conv, const Block &block, std::int64_t first, int pixels,
                               const std::int32_t (*popcount)[kLanes]) {
    const int lanes = 16 * block.vectors;
    for (int i = 0; i < pixels; ++i) {
        std::uint64_t bits = at_most(popcount[i], conv.limit + block.column + conv.table[first + i], lanes);
        if (conv.limit_plus) {
            const std::uint64_t plus = at_most(popcount[i], conv.limit_plus + block.column + conv.table[first + i], lanes);
            const std::uint64_t residual =
                read_block(conv.from_bits + conv.residual_bits[first + i], block);
            bits = (plus & residual) | (bits & ~residual);
        }
        write_block(conv.to_bits + conv.out_bits[first + i], block, bits & first_bits(block.count));
    }
}

inline void float_epilogue(const Conv &conv, const Block &block, std::int64_t first, int pixels,
                           const float (*acc)[kLanes]) {
    const float *bias = conv.bias + block.column, *mul = conv.mul + block.column;
    const int lanes = 16 * block.vectors;
    for (int i = 0; i < pixels; ++i) {
        float addend[kLanes], y[kLanes];
        for (int c = 0; c < lanes; ++c) addend[c] = bias[c];
        if (conv.from_float) {
            const float *residual = conv.from_float + conv.residual_float[first + i] + block.channel;
            for (int c = 0; c < block.count; ++c) addend[c] += residual[c];
        }
        if (conv.from_bits) {
            const std::uint64_t residual =
                read_block(conv.from_bits + conv.residual_bits[first + i], block);
            for (int c = 0; c < lanes; ++c) addend[c] += residual >> c & 1 ? 1.0f : -1.0f;
        }
        for (int c = 0; c < lanes; ++c) y[c] = __builtin_fmaf(acc[i][c], mul[c], addend[c]);
        if (conv.clamp) {
            for (int c = 0; c < lanes; ++c) {
                const float raised = y[c] > conv.low ? y[c] : conv.low;
                y[c] = raised < conv.high ? raised : conv.high;
            }
        }
        if (conv.to_float)
            std::memcpy(conv.to_float + conv.out_float[first + i] + block.channel, y, block.count * sizeof(float));
        if (conv.to_bits)
            write_block(conv.to_bits + conv.out_bits[first + i], block,
                        not_negative(y, lanes) & first_bits(block.count));
    }
}

// From popcounts to whatever the binary convolution is to give.
inline void binary_epilogue(const Conv &conv, const Block &block, std::int64_t first, int pixels,
                            const std::int32_t (*popcount)[kLanes]) {
    if (conv.limit) return threshold_epilogue(conv, block, first, pixels, popcount);
    float dot[kMostPixels][kLanes];
    for (int i = 0; i < pixels; ++i) {
        const std::int32_t *start = conv.start + block.column + conv.table[first + i];
        for (int c = 0; c < 16 * block.vectors; ++c) dot[i][c] = static_cast<float>(start[c] - 2 * popcount[i][c]);
    }
    float_epilogue(conv, block, first, pixels, dot);
}

} // namespace
} // namespace stompp
