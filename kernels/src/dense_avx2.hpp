// Convolutions of numbers, AVX2 with FMA: 16 output channels and a few pixels at a time, in the same order of roundings as
// everywhere. `Step` says what an element of the input is, a float or four bytes, and how its products are added.
#pragma once
#include <immintrin.h>

#include "epilogue_array.hpp"

namespace stompp {
namespace {

template <class Step> struct DenseAvx2 {
    static constexpr int kPixels = Step::kPixels;

    template <Mode, int P, int V> static void tile(const Conv &conv, const Block &block, std::int64_t first) {
        const std::uint32_t *input = static_cast<const std::uint32_t *>(conv.input) + block.input;
        const std::uint32_t *x[P];
        STOMPP_UNROLL for (int i = 0; i < P; ++i) x[i] = input + conv.window[first + i];
        float out[P][kLanes];
        for (int v = 0; v < V; ++v) {
            const std::uint32_t *w = static_cast<const std::uint32_t *>(conv.weights) + block.weights + 16 * v;
            typename Step::Sum acc[P][2];
            STOMPP_UNROLL for (int i = 0; i < P; ++i)
                STOMPP_UNROLL for (int h = 0; h < 2; ++h) acc[i][h] = Step::start(conv, block.column + 16 * v + 8 * h);
            for (const Run *run = conv.runs, *last = run + conv.n_runs; run != last; ++run) {
                for (std::ptrdiff_t k = run->offset, end = k + run->length; k < end; ++k, w += 16 * V) {
                    const typename Step::Weights w0(w), w1(w + 8);
                    STOMPP_UNROLL for (int i = 0; i < P; ++i) {
                        const typename Step::Element element(x[i] + k);
                        Step::add(acc[i][0], element, w0);
                        Step::add(acc[i][1], element, w1);
                    }
                }
            }
            STOMPP_UNROLL for (int i = 0; i < P; ++i)
                STOMPP_UNROLL for (int h = 0; h < 2; ++h) _mm256_storeu_ps(out[i] + 16 * v + 8 * h, Step::floats(acc[i][h]));
        }
        float_epilogue(conv, block, first, P, out);
    }
};

struct FloatAvx2 {
    static constexpr int kPixels = 6;
    using Sum = __m256;
    struct Weights {
        __m256 lanes;
        explicit Weights(const std::uint32_t *w) : lanes(_mm256_loadu_ps(reinterpret_cast<const float *>(w))) {}
    };
    struct Element {
        __m256 value;
        explicit Element(const std::uint32_t *x) : value(_mm256_broadcast_ss(reinterpret_cast<const float *>(x))) {}
    };
    static Sum start(const Conv &, int) { return _mm256_setzero_ps(); }
    static void add(Sum &acc, const Element &x, const Weights &w) { acc = _mm256_fmadd_ps(x.value, w.lanes, acc); }
    static __m256 floats(Sum acc) { return acc; }
};

// Four unsigned input bytes (value + 128) against four signed weights per lane, `conv.start` takes the 128 out again. Bytes
// are widened to 16 bits, the even and the odd ones apart: adding pairs of products of bytes would saturate.
struct Int8Avx2 {
    static constexpr int kPixels = 4;
    using Sum = __m256i;
    struct Weights {
        __m256i even, odd;
        explicit Weights(const std::uint32_t *w) {
            const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(w));
            even = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
            odd = _mm256_srai_epi16(bytes, 8);
        }
    };
    struct Element {
        __m256i even, odd;
        explicit Element(const std::uint32_t *x) {
            const __m256i bytes = _mm256_set1_epi32(static_cast<int>(*x));
            even = _mm256_and_si256(bytes, _mm256_set1_epi32(0x00ff00ff));
            odd = _mm256_srli_epi16(bytes, 8);
        }
    };
    static Sum start(const Conv &conv, int column) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(conv.start + column));
    }
    static void add(Sum &acc, const Element &x, const Weights &w) {
        acc = _mm256_add_epi32(acc, _mm256_madd_epi16(x.even, w.even));
        acc = _mm256_add_epi32(acc, _mm256_madd_epi16(x.odd, w.odd));
    }
    static __m256 floats(Sum acc) { return _mm256_cvtepi32_ps(acc); }
};

} // namespace
} // namespace stompp
