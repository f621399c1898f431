// Walks the output pixels of a convolution four at a time and hands them to a tile kernel.
//
// Tiles run across rows and images, so odd widths waste nothing. Everything here is in an unnamed namespace: each
// instruction set has its own copy.
#pragma once
#include <cstring>

#include "conv.hpp"

namespace stompp {
namespace {

struct Pixel {
    std::ptrdiff_t image, y, x;
};

inline std::ptrdiff_t at(const View &view, const Pixel &p) { return p.image * view.image + p.y * view.row + p.x * view.pixel; }

template <class T> inline T *pointer(const View &view, const Pixel &p) { return static_cast<T *>(view.data) + at(view, p); }

// Up to four pixels: where each one's window starts in the input, and its border class.
template <class T> struct Tile {
    const T *window[kTilePixels];
    int border[kTilePixels];
    Pixel pixel[kTilePixels];
};

// Writes bits [channel, channel + count) of a pixel; `count` is at most 64 and unused bits of `bits` are 0.
inline void write_bits(std::uint32_t *words, int channel, int count, std::uint64_t bits) {
    words += channel / 32;
    const int shift = channel % 32;
    if (shift == 0 && count == 64) { // a whole block: the usual case
        words[0] = static_cast<std::uint32_t>(bits);
        words[1] = static_cast<std::uint32_t>(bits >> 32);
        return;
    }
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
inline std::uint64_t read_bits(const std::uint32_t *words, int channel, int count) {
    words += channel / 32;
    const int shift = channel % 32;
    std::uint64_t bits = words[0] >> shift;
    if (count > 32 - shift) bits |= static_cast<std::uint64_t>(words[1]) << (32 - shift);
    if (count > 64 - shift) bits |= static_cast<std::uint64_t>(words[2]) << (64 - shift);
    return bits;
}

// Calls kernel.template tile<pixels, vectors>(conv, block, tile) for all pixels in [begin, end).
template <class T, class Kernel, int V>
void sweep_vectors(const Conv &conv, const Block &block, std::int64_t begin, std::int64_t end) {
    const std::int64_t per_image = std::int64_t(conv.out_h) * conv.out_w;
    Pixel p{begin / per_image, begin % per_image / conv.out_w, begin % conv.out_w};
    Tile<T> tile;
    while (begin < end) {
        const int n = end - begin < kTilePixels ? static_cast<int>(end - begin) : kTilePixels;
        for (int i = 0; i < n; ++i) {
            const Pixel corner{p.image, p.y * conv.stride_y, p.x * conv.stride_x};
            tile.pixel[i] = p;
            tile.window[i] = pointer<const T>(conv.input, corner) + block.input;
            tile.border[i] = conv.row_class[p.y] + conv.col_class[p.x];
            if (++p.x == conv.out_w) {
                p.x = 0;
                if (++p.y == conv.out_h) {
                    p.y = 0;
                    ++p.image;
                }
            }
        }
        switch (n) {
        case 4: Kernel::template tile<4, V>(conv, block, tile); break;
        case 3: Kernel::template tile<3, V>(conv, block, tile); break;
        case 2: Kernel::template tile<2, V>(conv, block, tile); break;
        default: Kernel::template tile<1, V>(conv, block, tile); break;
        }
        begin += n;
    }
}

template <class T, class Kernel>
void sweep(const Conv &conv, const Block &block, std::int64_t begin, std::int64_t end) {
    switch (block.vectors) {
    case 4: return sweep_vectors<T, Kernel, 4>(conv, block, begin, end);
    case 3: return sweep_vectors<T, Kernel, 3>(conv, block, begin, end);
    case 2: return sweep_vectors<T, Kernel, 2>(conv, block, begin, end);
    default: return sweep_vectors<T, Kernel, 1>(conv, block, begin, end);
    }
}

} // namespace
} // namespace stompp
