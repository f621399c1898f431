// Float convolution, AVX2 with FMA: 16 output channels and six pixels at a time; same order of roundings as everywhere.
#pragma once
#include <immintrin.h>

#include "epilogue_array.hpp"

namespace stompp {
namespace {

struct FloatAvx2 {
    static constexpr int kPixels = 6;

    template <Mode, int P, int V> static void tile(const Conv &conv, const Block &block, std::int64_t first) {
        const float *input = static_cast<const float *>(conv.input) + block.input;
        float out[P][kLanes];
        for (int v = 0; v < V; ++v) {
            const float *w = static_cast<const float *>(conv.weights) + block.weights + 16 * v;
            __m256 acc[P][2];
            STOMPP_UNROLL for (int i = 0; i < P; ++i) acc[i][0] = acc[i][1] = _mm256_setzero_ps();
            for (const Run *run = conv.runs, *last = run + conv.n_runs; run != last; ++run) {
                const float *x[P];
                STOMPP_UNROLL for (int i = 0; i < P; ++i) x[i] = input + conv.window[first + i] + run->offset;
                for (std::ptrdiff_t k = 0; k < run->length; ++k, w += 16 * V) {
                    const __m256 w0 = _mm256_loadu_ps(w), w1 = _mm256_loadu_ps(w + 8);
                    STOMPP_UNROLL for (int i = 0; i < P; ++i) {
                        const __m256 value = _mm256_broadcast_ss(x[i] + k);
                        acc[i][0] = _mm256_fmadd_ps(value, w0, acc[i][0]);
                        acc[i][1] = _mm256_fmadd_ps(value, w1, acc[i][1]);
                    }
                }
            }
            STOMPP_UNROLL for (int i = 0; i < P; ++i) {
                _mm256_storeu_ps(out[i] + 16 * v, acc[i][0]);
                _mm256_storeu_ps(out[i] + 16 * v + 8, acc[i][1]);
            }
        }
        float_epilogue(conv, block, first, P, out);
    }
};

} // namespace
} // namespace stompp
