// Binary convolution, AVX-512 VPOPCNTDQ. Lanes are output channels, activations are broadcast: 32 input channels of one
// pixel against 16 output channels cost three instructions, xor, popcount and add, and nothing is summed across lanes.
#pragma once
#include "epilogue_avx512.hpp"

namespace stompp {
namespace {

struct BinaryAvx512 {
    static constexpr int kPixels = 6;

    template <Mode M, int P, int V>
    [[gnu::always_inline]] static void tile(const Conv &conv, const Block &block, std::int64_t first) {
        const std::uint32_t *input = static_cast<const std::uint32_t *>(conv.input) + block.input;
        const std::uint32_t *w = static_cast<const std::uint32_t *>(conv.weights) + block.weights;
        __m512i acc[P][V];
        STOMPP_UNROLL for (int i = 0; i < P; ++i)
            STOMPP_UNROLL for (int v = 0; v < V; ++v) acc[i][v] = _mm512_setzero_si512();
        const std::uint32_t *x[P];
        STOMPP_UNROLL for (int i = 0; i < P; ++i) x[i] = input + conv.window[first + i];
        for (const Run *run = conv.runs, *last = run + conv.n_runs; run != last; ++run) {
            for (std::ptrdiff_t k = run->offset, end = k + run->length; k < end; ++k, w += 16 * V) {
                __m512i weight[V];
                STOMPP_UNROLL for (int v = 0; v < V; ++v) weight[v] = _mm512_loadu_si512(w + 16 * v);
                STOMPP_UNROLL for (int i = 0; i < P; ++i) {
                    const __m512i word = _mm512_set1_epi32(static_cast<int>(x[i][k]));
                    STOMPP_UNROLL for (int v = 0; v < V; ++v)
                        acc[i][v] = _mm512_add_epi32(acc[i][v], _mm512_popcnt_epi32(_mm512_xor_si512(weight[v], word)));
                }
            }
        }
        if constexpr (M != Mode::arithmetic) return threshold_epilogue<M, P, V>(conv, block, first, acc);
        __m512 dot[P][V];
        STOMPP_UNROLL for (int i = 0; i < P; ++i) {
            const std::int32_t *start = conv.start + block.column + conv.table[first + i];
            STOMPP_UNROLL for (int v = 0; v < V; ++v)
                dot[i][v] = _mm512_cvtepi32_ps(
                    _mm512_sub_epi32(_mm512_loadu_si512(start + 16 * v), _mm512_slli_epi32(acc[i][v], 1)));
        }
        float_epilogue<P, V>(conv, block, first, dot);
    }
};

// The arithmetic of four pixels and four vectors without a load.
inline std::int64_t register_loop_avx512(std::int64_t rounds) {
    __m512i acc[4][4], x[4], weight[4];
    STOMPP_UNROLL for (int i = 0; i < 4; ++i) {
        x[i] = _mm512_set1_epi32(0x01234567 * (i + 1));
        weight[i] = _mm512_set1_epi32(0x76543210 ^ (i << 8));
        STOMPP_UNROLL for (int v = 0; v < 4; ++v) acc[i][v] = _mm512_setzero_si512();
    }
    for (std::int64_t round = 0; round < rounds; ++round) {
        STOMPP_UNROLL for (int i = 0; i < 4; ++i) asm volatile("" : "+v"(x[i]), "+v"(weight[i])); // new values, for all GCC knows
        STOMPP_UNROLL for (int i = 0; i < 4; ++i)
            STOMPP_UNROLL for (int v = 0; v < 4; ++v)
                acc[i][v] = _mm512_add_epi32(acc[i][v], _mm512_popcnt_epi32(_mm512_xor_si512(weight[v], x[i])));
    }
    STOMPP_UNROLL for (int i = 0; i < 4; ++i)
        STOMPP_UNROLL for (int v = 0; v < 4; ++v) asm volatile("" : : "v"(acc[i][v]));
    return rounds * 4 * 4 * 512 * 2;
}

} // namespace
} // namespace stompp
