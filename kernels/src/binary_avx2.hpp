// Binary convolution, AVX2. Four input bits choose one of sixteen 16-byte tables, T_x[w] = popcount(x xor w); one pshufb
// looks it up for four weight bits of 32 output channels. So a nibble of input costs a shuffle and a byte add.
//
// Weight layout "nibbles": [block][word][nibble 0..7][lane], one byte per nibble.
#pragma once
#include <immintrin.h>

#include "epilogue_array.hpp"

namespace stompp {
namespace {

// Indexed by a whole byte, so that one shift addresses the tables of both of its nibbles.
struct Tables {
    alignas(64) std::uint8_t row[2][256][16];
};

constexpr int popcount4(int v) { return (v & 1) + (v >> 1 & 1) + (v >> 2 & 1) + (v >> 3 & 1); }

constexpr Tables make_tables() {
    Tables tables{};
    for (int nibble = 0; nibble < 2; ++nibble)
        for (int byte = 0; byte < 256; ++byte)
            for (int w = 0; w < 16; ++w)
                tables.row[nibble][byte][w] = static_cast<std::uint8_t>(popcount4(((byte >> 4 * nibble) & 15) ^ w));
    return tables;
}

constexpr Tables kTables = make_tables();

inline __m256i entry(const std::uint8_t *row) {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i *>(row)));
}

// Holds a vector in a register where it is: without this, GCC sums in trees, loads weights once a pixel, and runs out of
// registers.
inline void keep(__m256i &vector) { asm("" : "+x"(vector)); }

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
    static constexpr int kPixels = 4;

    static constexpr int kWords = 7; // a word adds at most 32 to a byte counter, and 7 * 32 < 256

    // Adds the counts of up to kWords words to `popcount`. Not inlined: it needs all registers there are.
    template <int P, int L>
    [[gnu::noinline]] static void count(const std::uint32_t *const (&window)[P], std::ptrdiff_t words,
                                        const std::uint8_t *w, std::int32_t (*popcount)[kLanes]) {
        const std::uint8_t *x[P];
        __m256i acc[P][L];
        STOMPP_UNROLL for (int i = 0; i < P; ++i) {
            x[i] = reinterpret_cast<const std::uint8_t *>(window[i]);
            STOMPP_UNROLL for (int l = 0; l < L; ++l) acc[i][l] = _mm256_setzero_si256();
        }
        for (std::ptrdiff_t byte = 0; byte < 4 * words; ++byte, w += 64 * L) {
            std::size_t index[P];
            STOMPP_UNROLL for (int i = 0; i < P; ++i) index[i] = x[i][byte];
            STOMPP_UNROLL for (int nibble = 0; nibble < 2; ++nibble) {
                __m256i weight[L];
                STOMPP_UNROLL for (int l = 0; l < L; ++l) {
                    weight[l] = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(w + 32 * (L * nibble + l)));
                    keep(weight[l]);
                }
                STOMPP_UNROLL for (int i = 0; i < P; ++i) {
                    const __m256i table = entry(kTables.row[nibble][index[i]]);
                    STOMPP_UNROLL for (int l = 0; l < L; ++l) {
                        acc[i][l] = _mm256_add_epi8(acc[i][l], _mm256_shuffle_epi8(table, weight[l]));
                        keep(acc[i][l]);
                    }
                }
            }
        }
        STOMPP_UNROLL for (int i = 0; i < P; ++i)
            STOMPP_UNROLL for (int l = 0; l < L; ++l) widen(acc[i][l], popcount[i] + 32 * l);
    }

    template <Mode, int P, int V> static void tile(const Conv &conv, const Block &block, std::int64_t first) {
        const std::uint32_t *input = static_cast<const std::uint32_t *>(conv.input) + block.input;
        constexpr int L = (V + 1) / 2; // vectors of 32 lanes
        const std::uint8_t *w = static_cast<const std::uint8_t *>(conv.weights) + block.weights;
        std::int32_t popcount[P][kLanes] = {};
        for (const Run *run = conv.runs, *last = run + conv.n_runs; run != last; ++run) {
            for (std::ptrdiff_t word = 0; word < run->length; word += kWords) {
                const std::ptrdiff_t words = run->length - word < kWords ? run->length - word : kWords;
                const std::uint32_t *window[P];
                for (int i = 0; i < P; ++i) window[i] = input + conv.window[first + i] + run->offset + word;
                count<P, L>(window, words, w, popcount);
                w += 256 * L * words;
            }
        }
        binary_epilogue(conv, block, first, P, popcount);
    }
};

// The arithmetic of four pixels and two vectors without a load; a byte looked up stands for four bits.
inline std::int64_t register_loop_avx2(std::int64_t rounds) {
    __m256i acc[4][2], table[4], weight[2];
    STOMPP_UNROLL for (int i = 0; i < 4; ++i) {
        table[i] = entry(kTables.row[0][i]);
        STOMPP_UNROLL for (int l = 0; l < 2; ++l) acc[i][l] = _mm256_setzero_si256();
    }
    STOMPP_UNROLL for (int l = 0; l < 2; ++l) weight[l] = entry(kTables.row[1][l]);
    for (std::int64_t round = 0; round < rounds; ++round) {
        STOMPP_UNROLL for (int i = 0; i < 4; ++i) asm volatile("" : "+x"(table[i])); // new values, for all GCC knows
        STOMPP_UNROLL for (int l = 0; l < 2; ++l) asm volatile("" : "+x"(weight[l]));
        STOMPP_UNROLL for (int i = 0; i < 4; ++i)
            STOMPP_UNROLL for (int l = 0; l < 2; ++l) {
                acc[i][l] = _mm256_add_epi8(acc[i][l], _mm256_shuffle_epi8(table[i], weight[l]));
                keep(acc[i][l]);
            }
    }
    STOMPP_UNROLL for (int i = 0; i < 4; ++i)
        STOMPP_UNROLL for (int l = 0; l < 2; ++l) asm volatile("" : : "x"(acc[i][l]));
    return rounds * 4 * 2 * 32 * 4 * 2;
}

} // namespace
} // namespace stompp
