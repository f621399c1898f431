// Int8 convolution, AVX-512 VNNI: four unsigned input bytes (value + 128) against four signed weights per lane.
// `conv.start` takes the 128 out again.
#pragma once
#include "epilogue_avx512.hpp"

namespace stompp {
namespace {

// acc += the products of unsigned `x` and signed `w`, four to a lane. Not the intrinsic: GCC 12 copies and spills the
// accumulators around it, which takes three times as long.
inline void add_products(__m512i &acc, __m512i x, __m512i w) { asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(x), "v"(w)); }

struct Int8Avx512 {
    static constexpr int kPixels = 6;

    template <Mode, int P, int V>
    [[gnu::always_inline]] static void tile(const Conv &conv, const Block &block, std::int64_t first) {
        const std::uint32_t *input = static_cast<const std::uint32_t *>(conv.input) + block.input;
        const std::uint32_t *w = static_cast<const std::uint32_t *>(conv.weights) + block.weights;
        __m512i acc[P][V];
        STOMPP_UNROLL for (int i = 0; i < P; ++i)
            STOMPP_UNROLL for (int v = 0; v < V; ++v) acc[i][v] = _mm512_loadu_si512(conv.start + block.column + 16 * v);
        for (const Run *run = conv.runs, *last = run + conv.n_runs; run != last; ++run) {
            const std::uint32_t *x[P];
            STOMPP_UNROLL for (int i = 0; i < P; ++i) x[i] = input + conv.window[first + i] + run->offset;
            for (std::ptrdiff_t k = 0; k < run->length; ++k, w += 16 * V) {
                __m512i weight[V];
                STOMPP_UNROLL for (int v = 0; v < V; ++v) weight[v] = _mm512_loadu_si512(w + 16 * v);
                STOMPP_UNROLL for (int i = 0; i < P; ++i) {
                    const __m512i word = _mm512_set1_epi32(static_cast<int>(x[i][k]));
                    STOMPP_UNROLL for (int v = 0; v < V; ++v) add_products(acc[i][v], word, weight[v]);
                }
            }
        }
        __m512 dot[P][V];
        STOMPP_UNROLL for (int i = 0; i < P; ++i)
            STOMPP_UNROLL for (int v = 0; v < V; ++v) dot[i][v] = _mm512_cvtepi32_ps(acc[i][v]);
        float_epilogue<P, V>(conv, block, first, dot);
    }
};

} // namespace
} // namespace stompp
