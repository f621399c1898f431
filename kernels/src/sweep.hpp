// Walks the output pixels of a convolution four at a time and hands them to a tile kernel.
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

struct Pixel {
    std::ptrdiff_t image, y, x;
};

inline std::ptrdiff_t at(const View &view, const Pixel &p) { return p.image * view.image + p.y * view.row + p.x * view.pixel; }

template <class T> inline T *pointer(const View &view, const Pixel &p) { return static_cast<T *>(view.data) + at(view, p); }

// What follows a dot product: a threshold that gives bits, one of two thresholds as a residual bit says, or arithmetic
// that gives floats and bits.
enum class Mode { threshold, either_threshold, arithmetic };

// Where the elements of up to four pixels are, in elements from the start of each value.
template <class T> struct Tile {
    const T *window[kTilePixels];
    std::ptrdiff_t table[kTilePixels]; // this pixel's border class and block in the per-class tables
    std::ptrdiff_t out_bits[kTilePixels], residual_bits[kTilePixels];
    std::ptrdiff_t out_float[kTilePixels], residual_float[kTilePixels]; // Mode::arithmetic only
};

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

// Goes through pixels in row-major order over all images, with additions only while it stays in a row.
template <class T, Mode M> struct Walk {
    Walk(const Conv &c, const Block &b, std::int64_t begin) : conv(c), block(b) {
        const std::int64_t per_image = std::int64_t(conv.out_h) * conv.out_w;
        pixel = {begin / per_image, begin % per_image / conv.out_w, begin % conv.out_w};
        start_row();
    }

    void start_row() {
        const Pixel corner{pixel.image, pixel.y * conv.stride_y, pixel.x * conv.stride_x};
        window = pointer<const T>(conv.input, corner) + block.input;
        step = conv.stride_x * conv.input.pixel;
        row_table = conv.row_table[pixel.y] + block.column;
        out_bits = at(conv.out_bits, pixel);
        residual_bits = at(conv.residual_bits, pixel);
        out_float = at(conv.out_float, pixel);
        residual_float = at(conv.residual_float, pixel);
    }

    // Not inlined: it would take the registers that the kernel needs.
    [[gnu::noinline]] void fill(Tile<T> &tile, int pixels) {
        for (int i = 0; i < pixels; ++i) put(tile, i);
    }

    void put(Tile<T> &tile, int i) {
        tile.window[i] = window;
        tile.table[i] = row_table + conv.col_table[pixel.x];
        tile.out_bits[i] = out_bits;
        window += step;
        out_bits += conv.out_bits.pixel;
        if constexpr (M != Mode::threshold) {
            tile.residual_bits[i] = residual_bits;
            residual_bits += conv.residual_bits.pixel;
        }
        if constexpr (M == Mode::arithmetic) {
            tile.out_float[i] = out_float;
            tile.residual_float[i] = residual_float;
            out_float += conv.out_float.pixel;
            residual_float += conv.residual_float.pixel;
        }
        if (++pixel.x == conv.out_w) {
            pixel.x = 0;
            if (++pixel.y == conv.out_h) {
                pixel.y = 0;
                ++pixel.image;
            }
            start_row();
        }
    }

    const Conv &conv;
    const Block &block;
    Pixel pixel;
    const T *window;
    std::ptrdiff_t step, row_table, out_bits, residual_bits, out_float, residual_float;
};

// Calls Kernel::tile<M, pixels, vectors>(conv, block, tile) for all pixels in [begin, end).
template <class T, class Kernel, Mode M, int V>
void sweep_vectors(const Conv &conv, const Block &block, std::int64_t begin, std::int64_t end) {
    Walk<T, M> walk(conv, block, begin);
    Tile<T> tile;
    for (; begin + kTilePixels <= end; begin += kTilePixels) {
        walk.fill(tile, kTilePixels);
        Kernel::template tile<M, kTilePixels, V>(conv, block, tile);
    }
    const int left = static_cast<int>(end - begin);
    walk.fill(tile, left);
    if (left == 3) Kernel::template tile<M, 3, V>(conv, block, tile);
    if (left == 2) Kernel::template tile<M, 2, V>(conv, block, tile);
    if (left == 1) Kernel::template tile<M, 1, V>(conv, block, tile);
}

template <class T, class Kernel, Mode M>
void sweep(const Conv &conv, const Block &block, std::int64_t begin, std::int64_t end) {
    switch (block.vectors) {
    case 4: return sweep_vectors<T, Kernel, M, 4>(conv, block, begin, end);
    case 3: return sweep_vectors<T, Kernel, M, 3>(conv, block, begin, end);
    case 2: return sweep_vectors<T, Kernel, M, 2>(conv, block, begin, end);
    default: return sweep_vectors<T, Kernel, M, 1>(conv, block, begin, end);
    }
}

template <class Kernel>
void sweep_binary(const Conv &conv, const Block &block, std::int64_t begin, std::int64_t end) {
    if (conv.limit_plus)
        sweep<std::uint32_t, Kernel, Mode::either_threshold>(conv, block, begin, end);
    else if (conv.limit)
        sweep<std::uint32_t, Kernel, Mode::threshold>(conv, block, begin, end);
    else
        sweep<std::uint32_t, Kernel, Mode::arithmetic>(conv, block, begin, end);
}

} // namespace
} // namespace stompp
