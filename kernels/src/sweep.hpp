// Hands the output pixels of a convolution to a tile kernel, a few at a time.
//
// Tiles run across rows and images, so odd widths waste nothing. Everything here is in an unnamed namespace: each
// instruction set has its own copy.
#pragma once
#include <cstring>

#include "conv.hpp"

// For loops over the pixels and vectors of a tile: unrolled whole, so that arrays of vectors stay in registers.
#ifdef __clang__
#define STOMPP_UNROLL _Pragma("clang loop unroll(full)")
#else
#define STOMPP_UNROLL _Pragma("GCC unroll 16")
#endif

namespace stompp {
namespace {

// What follows a dot product: a threshold that gives bits, one of two thresholds as a residual bit says, or arithmetic
// that gives floats and bits.
enum class Mode { threshold, either_threshold, arithmetic };

// Writes bits [channel, channel + count) of a pixel; `count` is at most 64 and unused bits of `bits` are 0.
[[gnu::noinline]] void write_bits(std::uint32_t *words, int channel, int count, std::uint64_t bits) {
    words += channel / 32;
    const int shift = channel % 32;
    // Groups narrower than a word share one, so what the neighbours wrote must stay.
    for (int done = -shift; done < count; done += 32, ++words) {
        const int first = done < 0 ? -done : 0; // first bit of this word that is ours
        const int left = count - (done < 0 ? 0 : done);
        const int n = left < 32 - first ? left : 32 - first;
        const std::uint32_t mask = (n == 32 ? ~0u : (1u << n) - 1u) << first;
        const std::uint32_t value = static_cast<std::uint32_t>(done < 0 ? bits : bits >> done) << first;
        *words = (*words & ~mask) | (value & mask);
    }
}

// Reads bits [channel, channel + count) of a pixel.
[[gnu::noinline]] std::uint64_t read_bits(const std::uint32_t *words, int channel, int count) {
    words += channel / 32;
    const int shift = channel % 32;
    std::uint64_t bits = words[0] >> shift;
    if (count > 32 - shift) bits |= static_cast<std::uint64_t>(words[1]) << (32 - shift);
    if (count > 64 - shift) bits |= static_cast<std::uint64_t>(words[2]) << (64 - shift);
    return bits;
}

// The same for the channels of a block, whose bits are whole words as a rule. `pixel` is the first word of the pixel.
inline void write_block(std::uint32_t *pixel, const Block &block, std::uint64_t bits) {
    if (block.whole)
        std::memcpy(pixel + block.word, &bits, sizeof bits); // little-endian, as x86 and ARM are
    else
        write_bits(pixel, block.channel, block.count, bits);
}

inline std::uint64_t read_block(const std::uint32_t *pixel, const Block &block) {
    if (!block.whole) return read_bits(pixel, block.channel, block.count);
    std::uint64_t bits;
    std::memcpy(&bits, pixel + block.word, sizeof bits);
    return bits;
}

// The tile of at most P pixels for the `pixels` that are left.
template <class Kernel, Mode M, int V, int P>
void last_tile(const Conv &conv, const Block &block, std::int64_t first, int pixels) {
    if (pixels == P)
        Kernel::template tile<M, P, V>(conv, block, first);
    else if constexpr (P > 1)
        last_tile<Kernel, M, V, P - 1>(conv, block, first, pixels);
}

// Calls Kernel::tile<M, pixels, vectors>(conv, block, first pixel) for all pixels in [begin, end).
template <class Kernel, Mode M, int V>
void sweep_vectors(const Conv &conv, const Block &block, std::int64_t begin, std::int64_t end) {
    constexpr int P = Kernel::kPixels;
    for (; end - begin >= 2 * P || end - begin == P; begin += P) Kernel::template tile<M, P, V>(conv, block, begin);
    while (begin < end) { // two tiles of like size rather than a whole one and a sliver
        const int left = static_cast<int>(end - begin), pixels = left > P ? (left + 1) / 2 : left;
        last_tile<Kernel, M, V, P>(conv, block, begin, pixels);
        begin += pixels;
    }
}

template <class Kernel, Mode M>
void sweep(const Conv &conv, const Block &block, std::int64_t begin, std::int64_t end) {
    switch (block.vectors) {
    case 4: return sweep_vectors<Kernel, M, 4>(conv, block, begin, end);
    case 3: return sweep_vectors<Kernel, M, 3>(conv, block, begin, end);
    case 2: return sweep_vectors<Kernel, M, 2>(conv, block, begin, end);
    default: return sweep_vectors<Kernel, M, 1>(conv, block, begin, end);
    }
}

template <class Kernel>
void sweep_binary(const Conv &conv, const Block &block, std::int64_t begin, std::int64_t end) {
    if (conv.limit_plus)
        sweep<Kernel, Mode::either_threshold>(conv, block, begin, end);
    else if (conv.limit)
        sweep<Kernel, Mode::threshold>(conv, block, begin, end);
    else
        sweep<Kernel, Mode::arithmetic>(conv, block, begin, end);
}

} // namespace
} // namespace stompp
