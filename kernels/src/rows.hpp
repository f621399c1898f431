// What is not a convolution: packing, pooling and elementwise rows. Plain loops that the compiler turns into vectors,
// compiled once per instruction set. No order of roundings depends on the width of a vector.
#pragma once
#include "conv.hpp"

namespace stompp {
namespace {

void sign_row(const float *in, std::ptrdiff_t in_pixel, std::uint32_t *out, std::ptrdiff_t out_pixel, int width,
              int channels) {
    for (int x = 0; x < width; ++x, in += in_pixel, out += out_pixel) {
        for (int c = 0; c < channels; c += 32) {
            const int n = channels - c < 32 ? channels - c : 32;
            std::uint32_t word = 0;
            if (n == 32) {
                // Two steps, so that the comparisons become vector instructions.
                std::uint32_t bit[32];
                for (int i = 0; i < 32; ++i) bit[i] = in[c + i] >= 0.0f ? 1u << i : 0u;
                for (int i = 0; i < 32; ++i) word |= bit[i];
            } else {
                for (int i = 0; i < n; ++i) word |= (in[c + i] >= 0.0f ? 1u : 0u) << i;
            }
            out[c / 32] = word;
        }
    }
}

void unpack_row(const std::uint32_t *in, std::ptrdiff_t in_pixel, float *out, std::ptrdiff_t out_pixel, int width,
                int channels) {
    for (int x = 0; x < width; ++x, in += in_pixel, out += out_pixel) {
        for (int c = 0; c < channels; c += 32) {
            const int n = channels - c < 32 ? channels - c : 32;
            const std::uint32_t word = in[c / 32];
            for (int i = 0; i < n; ++i) out[c + i] = word >> i & 1u ? 1.0f : -1.0f;
        }
    }
}

// Calls convert(value) for every value and stores what it gives at place(channel). Images have few channels: vectors run
// across pixels, and the results find their places afterwards.
template <class T, class Convert, class Place>
inline void convert_row(const float *in, std::ptrdiff_t in_pixel, T *out, std::ptrdiff_t out_pixel, int width, int channels,
                        Convert convert, Place place) {
    constexpr int kPart = 256;
    const int pixels = channels < kPart ? kPart / channels : 1;
    for (int x = 0; x < width; x += pixels) {
        const int n = width - x < pixels ? width - x : pixels;
        const float *from = in + x * in_pixel;
        T *to = out + x * out_pixel;
        for (int begin = 0; begin < n * channels; begin += kPart) {
            const int count = n * channels - begin < kPart ? n * channels - begin : kPart;
            T part[kPart];
            for (int i = 0; i < count; ++i) part[i] = convert(from[begin + i]);
            if (channels >= kPart) {
                for (int i = 0; i < count; ++i) to[place(begin + i)] = part[i];
            } else {
                const T *next = part;
                for (int p = 0; p < n; ++p, to += out_pixel)
                    for (int c = 0; c < channels; ++c) to[place(c)] = *next++;
            }
        }
    }
}

// q = round_half_even(x * scale) in [-127, 127], stored as q + 128; what is no number becomes -127.
void quantize_row(const float *in, std::ptrdiff_t in_pixel, std::uint8_t *out, std::ptrdiff_t out_pixel, int width,
                  int channels, float scale) {
    // Adding and subtracting 1.5 * 2^23 rounds to an integer, halves to even, for |v| < 2^22.
    constexpr float magic = 12582912.0f;
    const auto convert = [scale](float x) {
        float v = x * scale;
        v = v > -127.0f ? v : -127.0f;
        v = v < 127.0f ? v : 127.0f;
        return static_cast<std::uint8_t>(static_cast<int>((v + magic) - magic) + 128);
    };
    convert_row(in, in_pixel, out, out_pixel, width, channels, convert, [](int c) { return c; });
}

// The bits of a float rounded to bf16, halves to even. Magnitudes end at the last one under 2^64, and those under 2^-50
// become 0: so every product of two is a float, exactly, and no sum of products is subnormal. What is no number becomes
// the least of all.
inline std::uint32_t to_bf16(float x) {
    constexpr float most = 18374686479671623680.0f; // 2^64 - 2^56
    constexpr std::uint32_t least = 0x26800000u;    // 2^-50
    float v = x > -most ? x : -most;
    v = v < most ? v : most;
    std::uint32_t bits;
    __builtin_memcpy(&bits, &v, sizeof bits);
    bits = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
    return (bits & 0x7fffffffu) < least ? 0u : bits;
}

void round_row(const float *in, std::ptrdiff_t in_pixel, float *out, std::ptrdiff_t out_pixel, int width, int channels) {
    const auto convert = [](float x) {
        const std::uint32_t bits = to_bf16(x);
        float rounded;
        __builtin_memcpy(&rounded, &bits, sizeof rounded);
        return rounded;
    };
    convert_row(in, in_pixel, out, out_pixel, width, channels, convert, [channels](int c) { return swapped(c, channels); });
}

void pair_row(const float *in, std::ptrdiff_t in_pixel, std::uint16_t *out, std::ptrdiff_t out_pixel, int width,
              int channels) {
    const auto convert = [](float x) { return static_cast<std::uint16_t>(to_bf16(x) >> 16); };
    convert_row(in, in_pixel, out, out_pixel, width, channels, convert, [](int c) { return c; });
}

void affine_row(const float *in, std::ptrdiff_t in_pixel, float *out, std::ptrdiff_t out_pixel, int width, int channels,
                const float *mul, const float *bias) {
    for (int x = 0; x < width; ++x, in += in_pixel, out += out_pixel)
        for (int c = 0; c < channels; ++c) out[c] = __builtin_fmaf(in[c], mul[c], bias[c]);
}

// max first, then min; what is no number becomes `low`, as in the convolutions' epilogue.
void clamp_row(const float *in, std::ptrdiff_t in_pixel, float *out, std::ptrdiff_t out_pixel, int width, int channels,
               float low, float high) {
    for (int x = 0; x < width; ++x, in += in_pixel, out += out_pixel) {
        for (int c = 0; c < channels; ++c) {
            const float raised = in[c] > low ? in[c] : low;
            out[c] = raised < high ? raised : high;
        }
    }
}

void add_row(const float *a, std::ptrdiff_t a_pixel, const float *b, std::ptrdiff_t b_pixel, float *out,
             std::ptrdiff_t out_pixel, int width, int channels) {
    for (int x = 0; x < width; ++x, a += a_pixel, b += b_pixel, out += out_pixel)
        for (int c = 0; c < channels; ++c) out[c] = a[c] + b[c];
}

void pool_pixel(const float *in, std::ptrdiff_t row, std::ptrdiff_t pixel, int rows, int cols, float *__restrict out,
                int channels, Reduce reduce, float divisor) {
    for (int c = 0; c < channels; ++c) out[c] = in[c];
    for (int y = 0; y < rows; ++y) {
        for (int x = y == 0 ? 1 : 0; x < cols; ++x) {
            const float *from = in + y * row + x * pixel;
            if (reduce == Reduce::max) {
                for (int c = 0; c < channels; ++c) out[c] = from[c] > out[c] ? from[c] : out[c];
            } else {
                for (int c = 0; c < channels; ++c) out[c] += from[c];
            }
        }
    }
    if (reduce == Reduce::mean)
        for (int c = 0; c < channels; ++c) out[c] /= divisor;
}

// The largest of values that are -1 or +1: their or.
void pool_bits_pixel(const std::uint32_t *in, std::ptrdiff_t row, std::ptrdiff_t pixel, int rows, int cols,
                     std::uint32_t *out, int words) {
    for (int i = 0; i < words; ++i) {
        std::uint32_t word = 0;
        for (int y = 0; y < rows; ++y)
            for (int x = 0; x < cols; ++x) word |= in[y * row + x * pixel + i];
        out[i] = word;
    }
}

} // namespace
} // namespace stompp
