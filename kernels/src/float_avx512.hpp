// Float convolution, AVX-512. Each output is one chain of fma in the order (row, column, input channel), so that every
// instruction set and the reference round alike.
#pragma once
#include "epilogue_avx512.hpp"

namespace stompp {
namespace {

struct FloatAvx512 {
    static constexpr int kPixels = 6;

    template <Mode, int P, int V>
    [[gnu::always_inline]] static void tile(const Conv &conv, const Block &block, std::int64_t first) {
        const float *input = static_cast<const float *>(conv.input) + block.input;
        const float *w = static_cast<const float *>(conv.weights) + block.weights;
        __m512 acc[P][V];
        STOMPP_UNROLL for (int i = 0; i < P; ++i)
            STOMPP_UNROLL for (int v = 0; v < V; ++v) acc[i][v] = _mm512_setzero_ps();
        for (const Run *run = conv.runs, *last = run + conv.n_runs; run != last; ++run) {
            const float *x[P];
            STOMPP_UNROLL for (int i = 0; i < P; ++i) x[i] = input + conv.window[first + i] + run->offset;
            for (std::ptrdiff_t k = 0; k < run->length; ++k, w += 16 * V) {
                __m512 weight[V];
                STOMPP_UNROLL for (int v = 0; v < V; ++v) weight[v] = _mm512_loadu_ps(w + 16 * v);
                STOMPP_UNROLL for (int i = 0; i < P; ++i) {
                    const __m512 value = _mm512_set1_ps(x[i][k]);
                    STOMPP_UNROLL for (int v = 0; v < V; ++v) acc[i][v] = _mm512_fmadd_ps(value, weight[v], acc[i][v]);
                }
            }
        }
        float_epilogue<P, V>(conv, block, first, acc);
    }
};

} // namespace
} // namespace stompp
