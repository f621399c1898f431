// Convolutions of numbers, AVX-512: lanes are output channels, elements of the input are broadcast. `Step` says what an
// element is, a float, four bytes or two bf16 numbers, and how its products are added.
//
// Each output is one chain of roundings in the order (row, column, input channel), so that every instruction set and the
// reference round alike.
#pragma once
#include "epilogue_avx512.hpp"

namespace stompp {
namespace {

template <class Step> struct DenseAvx512 {
    static constexpr int kPixels = Step::kPixels;

    template <Mode, int P, int V>
    [[gnu::always_inline]] static void tile(const Conv &conv, const Block &block, std::int64_t first) {
        const std::uint32_t *input = static_cast<const std::uint32_t *>(conv.input) + block.input;
        const std::uint32_t *w = static_cast<const std::uint32_t *>(conv.weights) + block.weights;
        typename Step::Sum acc[P][V];
        STOMPP_UNROLL for (int i = 0; i < P; ++i)
            STOMPP_UNROLL for (int v = 0; v < V; ++v) acc[i][v] = Step::start(conv, block.column + 16 * v);
        const std::uint32_t *x[P];
        STOMPP_UNROLL for (int i = 0; i < P; ++i) x[i] = input + conv.window[first + i];
        for (const Run *run = conv.runs, *last = run + conv.n_runs; run != last; ++run) {
            for (std::ptrdiff_t k = run->offset, end = k + run->length; k < end; ++k, w += 16 * V) {
                __m512i weight[V];
                STOMPP_UNROLL for (int v = 0; v < V; ++v) weight[v] = _mm512_loadu_si512(w + 16 * v);
                STOMPP_UNROLL for (int i = 0; i < P; ++i) {
                    int bits; // of whatever type lies there
                    std::memcpy(&bits, x[i] + k, sizeof bits);
                    const __m512i element = _mm512_set1_epi32(bits);
                    STOMPP_UNROLL for (int v = 0; v < V; ++v) Step::add(acc[i][v], element, weight[v]);
                }
            }
        }
        __m512 dot[P][V];
        STOMPP_UNROLL for (int i = 0; i < P; ++i)
            STOMPP_UNROLL for (int v = 0; v < V; ++v) dot[i][v] = Step::floats(acc[i][v]);
        float_epilogue<P, V>(conv, block, first, dot);
    }
};

struct FloatAvx512 {
    static constexpr int kPixels = 6;
    using Sum = __m512;
    static Sum start(const Conv &, int) { return _mm512_setzero_ps(); }
    static void add(Sum &acc, __m512i x, __m512i w) {
        acc = _mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(w), acc);
    }
    static __m512 floats(Sum acc) { return acc; }
};

// VNNI: four unsigned input bytes (value + 128) against four signed weights per lane. `conv.start` takes the 128 out again.
struct Int8Avx512 {
    static constexpr int kPixels = 6;
    using Sum = __m512i;
    static Sum start(const Conv &conv, int column) { return _mm512_loadu_si512(conv.start + column); }
    // Not the intrinsic: GCC 12 copies and spills the accumulators around it, which takes three times as long.
    static void add(Sum &acc, __m512i x, __m512i w) { asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(x), "v"(w)); }
    static __m512 floats(Sum acc) { return _mm512_cvtepi32_ps(acc); }
};

} // namespace
} // namespace stompp
