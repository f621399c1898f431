// Convolutions in plain C++: lanes are output channels here too, and the loops over them are the compiler's to widen.
#pragma once
#include "epilogue_array.hpp"

namespace stompp {
namespace {

inline std::uint32_t popcount32(std::uint32_t v) {
    v -= v >> 1 & 0x55555555u;
    v = (v & 0x33333333u) + (v >> 2 & 0x33333333u);
    return ((v + (v >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24;
}

// Calls step(pixel, input element, weights of this element) in the order (row, column, input channel).
template <int P, int V, class T, class Step>
inline void each_element(const Conv &conv, const Block &block, std::int64_t first, Step step) {
    const T *input = static_cast<const T *>(conv.input) + block.input;
    const T *w = static_cast<const T *>(conv.weights) + block.weights;
    for (const Run *run = conv.runs, *last = run + conv.n_runs; run != last; ++run)
        for (std::ptrdiff_t k = 0; k < run->length; ++k, w += 16 * V)
            for (int i = 0; i < P; ++i) step(i, input[conv.window[first + i] + run->offset + k], w);
}

struct BinaryPortable {
    static constexpr int kPixels = 4;

    template <Mode, int P, int V> static void tile(const Conv &conv, const Block &block, std::int64_t first) {
        std::int32_t acc[P][kLanes] = {};
        each_element<P, V, std::uint32_t>(conv, block, first, [&](int i, std::uint32_t x, const std::uint32_t *w) {
                               for (int c = 0; c < 16 * V; ++c)
                                   acc[i][c] += static_cast<std::int32_t>(popcount32(x ^ w[c]));
                           });
        binary_epilogue(conv, block, first, P, acc);
    }
};

struct FloatPortable {
    static constexpr int kPixels = 4;

    template <Mode, int P, int V> static void tile(const Conv &conv, const Block &block, std::int64_t first) {
        float acc[P][kLanes] = {};
        each_element<P, V, float>(conv, block, first, [&](int i, float x, const float *w) {
                               for (int c = 0; c < 16 * V; ++c) acc[i][c] = __builtin_fmaf(x, w[c], acc[i][c]);
                           });
        float_epilogue(conv, block, first, P, acc);
    }
};

struct Int8Portable {
    static constexpr int kPixels = 4;

    template <Mode, int P, int V> static void tile(const Conv &conv, const Block &block, std::int64_t first) {
        std::int32_t acc[P][kLanes] = {};
        float dot[P][kLanes];
        each_element<P, V, std::uint32_t>(conv, block, first, [&](int i, std::uint32_t x, const std::uint32_t *w) {
                               for (int c = 0; c < 16 * V; ++c)
                                   for (int byte = 0; byte < 32; byte += 8)
                                       acc[i][c] += static_cast<std::int32_t>(x >> byte & 255u) *
                                                    static_cast<std::int8_t>(w[c] >> byte & 255u);
                           });
        for (int i = 0; i < P; ++i)
            for (int c = 0; c < 16 * V; ++c)
                dot[i][c] = static_cast<float>(acc[i][c] + conv.start[block.column + c]);
        float_epilogue(conv, block, first, P, dot);
    }
};

} // namespace
} // namespace stompp
