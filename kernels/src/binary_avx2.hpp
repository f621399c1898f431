// Binary convolution, AVX2. Four input bits choose one of sixteen 16-byte tables, T_x[w] = popcount(x xor w); one pshufb
// looks it up for four weight bits of 32 output channels. So a nibble of input costs a shuffle and a byte add.
//
// Weight layout "nibbles": [block][word][nibble 0..7][lane], one byte per nibble.
#pragma once
#include <immintrin.h>

#include "epilogue_array.hpp"

namespace stompp {
namespace {

struct Table {
    alignas(16) std::uint8_t row[256][16];
};

constexpr int popcount4(int v) { return (v & 1) + (v >> 1 & 1) + (v >> 2 & 1) + (v >> 3 & 1); }

// Indexed by a whole byte, so that one shift addresses both of its nibbles' tables.
constexpr Table make_table(int shift) {
    Table table{};
    for (int byte = 0; byte < 256; ++byte)
        for (int w = 0; w < 16; ++w)
            table.row[byte][w] = static_cast<std::uint8_t>(popcount4(((byte >> shift) & 15) ^ w));
    return table;
}

constexpr Table kLow = make_table(0), kHigh = make_table(4);

inline __m256i entry(const std::uint8_t *row) {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i *>(row)));
}

// Adds 32 byte counters to 32 int32 counters.
inline void widen(__m256i bytes, std::int32_t *out) {
    const __m128i half[2] = {_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)};
    for (int h = 0; h < 2; ++h) {
        const __m256i part[2] = {_mm256_cvtepu8_epi32(half[h]), _mm256_cvtepu8_epi32(_mm_srli_si128(half[h], 8))};
        for (int j = 0; j < 2; ++j) {
            __m256i *to = reinterpret_cast<__m256i *>(out + 16 * h + 8 * j);
            _mm256_storeu_si256(to, _mm256_add_epi32(_mm256_loadu_si256(to), part[j]));
        }
    }
}

struct BinaryAvx2 {
    static constexpr int kWords = 7; // a word adds at most 32 to a byte counter, and 7 * 32 < 256

    // `L` vectors of 32 lanes.
    template <int P, int L>
    static void count(const Conv &conv, const Block &block, const Tile<std::uint32_t> &tile,
                      std::int32_t (*popcount)[kLanes]) {
        const std::uint8_t *w = static_cast<const std::uint8_t *>(conv.weights) + block.weights;
        __m256i acc[P][L];
        int budget = kWords;
        STOMPP_UNROLL for (int i = 0; i < P; ++i)
            STOMPP_UNROLL for (int l = 0; l < L; ++l) acc[i][l] = _mm256_setzero_si256();
        for (const Run *run = conv.runs, *last = run + conv.n_runs; run != last; ++run) {
            const std::uint8_t *x[P];
            STOMPP_UNROLL for (int i = 0; i < P; ++i) x[i] = reinterpret_cast<const std::uint8_t *>(tile.window[i] + run->offset);
            for (std::ptrdiff_t word = 0; word < run->length; ++word) {
                for (int byte = 0; byte < 4; ++byte, w += 64 * L) {
                    __m256i weight[2 * L];
                    STOMPP_UNROLL for (int l = 0; l < 2 * L; ++l)
                        weight[l] = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(w + 32 * l));
                    STOMPP_UNROLL for (int i = 0; i < P; ++i) {
                        const std::size_t index = x[i][4 * word + byte];
                        const __m256i low = entry(kLow.row[index]), high = entry(kHigh.row[index]);
                        STOMPP_UNROLL for (int l = 0; l < L; ++l) {
                            acc[i][l] = _mm256_add_epi8(acc[i][l], _mm256_shuffle_epi8(low, weight[l]));
                            acc[i][l] = _mm256_add_epi8(acc[i][l], _mm256_shuffle_epi8(high, weight[L + l]));
                        }
                    }
                }
                if (--budget == 0) {
                    flush<P, L>(acc, popcount);
                    budget = kWords;
                }
            }
        }
        if (budget != kWords) flush<P, L>(acc, popcount);
    }

    template <int P, int L> static void flush(__m256i (&acc)[P][L], std::int32_t (*popcount)[kLanes]) {
        STOMPP_UNROLL for (int i = 0; i < P; ++i) {
            STOMPP_UNROLL for (int l = 0; l < L; ++l) {
                widen(acc[i][l], popcount[i] + 32 * l);
                acc[i][l] = _mm256_setzero_si256();
            }
        }
    }

    template <Mode, int P, int V> static void tile(const Conv &conv, const Block &block, const Tile<std::uint32_t> &tile) {
        std::int32_t popcount[P][kLanes] = {};
        count<P, (V + 1) / 2>(conv, block, tile, popcount);
        binary_epilogue(conv, block, tile, P, popcount);
    }
};

} // namespace
} // namespace stompp
