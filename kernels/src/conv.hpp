// What a convolution kernel is given. One description serves the binary, the float, the int8 and the bf16 kernels of every
// instruction set: they differ in the dot product only.
//
// Plain structs and no standard headers with inline functions: this file is compiled once per instruction set.
#pragma once
#include <cstddef>
#include <cstdint>

namespace stompp {

constexpr int kMostPixels = 6;     // pixels whose accumulators are held in registers together
constexpr int kBlockChannels = 64; // output channels of one block of weights: four 512-bit vectors of 32-bit lanes

// A value in memory: NHWC with margins, strides in elements; `data` is channel 0 of pixel (0, 0) inside the margins.
// Elements are uint32 words of 32 packed bits, floats, or uint32 words of four uint8 or two bf16 (the upper halves of
// floats); lower channels in lower bits.
struct View {
    void *data = nullptr;
    std::ptrdiff_t image = 0, row = 0, pixel = 0;
};

// A stretch of input elements that the kernel window reads one after another, relative to the window's first pixel.
struct Run {
    std::ptrdiff_t offset;
    std::ptrdiff_t length;
};

// Up to 64 output channels of one group.
struct Block {
    std::size_t weights;  // first element in the weight array
    std::ptrdiff_t input; // first element of this group within a pixel
    int column;           // first column in the per-channel tables (padded to whole vectors)
    int channel;          // first output channel
    int count;            // output channels, 1..64
    int vectors;          // vectors of 16 lanes, 1..4
    bool whole;           // 64 channels that fill two words, beginning with `word`
    int word;
};

struct Conv {
    // By output pixel, counted over all images in row-major order: the first element of its window, and of itself.
    const std::int32_t *window;
    const std::int32_t *out_float, *out_bits, *residual_float, *residual_bits;
    const std::int32_t *table; // where the border class of the pixel begins in the tables below

    const Run *runs;
    int n_runs;
    const Block *blocks;
    const void *weights; // [block][run element][lane]; 32-bit lanes, or the AVX2 layout of binary_avx2.hpp

    // tables by border class (exact zero padding) and column
    // Binary: the dot product is start - 2 * popcount. Threshold epilogue: the bit is popcount <= limit.
    const std::int32_t *start;      // binary [class][column]; int8 [column] (added to the sum); unused for float and bf16
    const std::int32_t *limit;      // [class][column], for a residual bit of 0 (-1) or no residual; null: float epilogue
    const std::int32_t *limit_plus; // [class][column], for a residual bit of 1 (+1); null: no residual

    // float epilogue: y = fma(acc, mul, bias + residual), clamped to [low, high]; bits are y >= 0
    const float *mul, *bias; // [column]
    float low, high;
    bool clamp;

    const void *input; // the window of the first pixel
    const float *from_float; // residuals; null where absent
    const std::uint32_t *from_bits;
    float *to_float; // results; null where not wanted
    std::uint32_t *to_bits;
};

// Computes one block of output channels for the pixels [begin, end), counted over all images in row-major order.
using ConvKernel = void (*)(const Conv &, const Block &, std::int64_t begin, std::int64_t end);

// How binary weights lie in memory; see the kernels.
enum class BinaryLayout { lanes32, nibbles };

enum class Reduce { max, mean };

// Where a channel of bf16 numbers lies that are kept as floats: of each pair the second comes first.
constexpr int swapped(int channel, int channels) { return (channel ^ 1) < channels ? channel ^ 1 : channel; }

struct Kernels {
    const char *name;
    BinaryLayout layout;
    ConvKernel binary_conv, float_conv, int8_conv;
    ConvKernel bf16_conv; // for pairs of bf16 numbers; null: they are floats here, swapped in pairs, for float_conv
    // Does the binary kernel's arithmetic on registers alone, `rounds` times: what no kernel can outrun. Returns the number
    // of binary operations done, a multiplication and an addition each counting one.
    std::int64_t (*register_loop)(std::int64_t rounds);

    // One row of pixels each; strides in elements.
    void (*sign_row)(const float *in, std::ptrdiff_t in_pixel, std::uint32_t *out, std::ptrdiff_t out_pixel, int width,
                     int channels);
    void (*unpack_row)(const std::uint32_t *in, std::ptrdiff_t in_pixel, float *out, std::ptrdiff_t out_pixel,
                       int width, int channels);
    void (*quantize_row)(const float *in, std::ptrdiff_t in_pixel, std::uint8_t *out, std::ptrdiff_t out_pixel,
                         int width, int channels, float scale);
    // To bf16: as floats, of each pair of channels the second first; or as halves, two to a word, as they come.
    void (*round_row)(const float *in, std::ptrdiff_t in_pixel, float *out, std::ptrdiff_t out_pixel, int width,
                      int channels);
    void (*pair_row)(const float *in, std::ptrdiff_t in_pixel, std::uint16_t *out, std::ptrdiff_t out_pixel, int width,
                     int channels);
    void (*affine_row)(const float *in, std::ptrdiff_t in_pixel, float *out, std::ptrdiff_t out_pixel, int width,
                       int channels, const float *mul, const float *bias);
    void (*clamp_row)(const float *in, std::ptrdiff_t in_pixel, float *out, std::ptrdiff_t out_pixel, int width,
                      int channels, float low, float high);
    void (*add_row)(const float *a, std::ptrdiff_t a_pixel, const float *b, std::ptrdiff_t b_pixel, float *out,
                    std::ptrdiff_t out_pixel, int width, int channels);
    // One output pixel from the window of `rows` x `cols` pixels at `in`.
    void (*pool_pixel)(const float *in, std::ptrdiff_t row, std::ptrdiff_t pixel, int rows, int cols, float *out,
                       int channels, Reduce reduce, float divisor);
    void (*pool_bits_pixel)(const std::uint32_t *in, std::ptrdiff_t row, std::ptrdiff_t pixel, int rows, int cols,
                            std::uint32_t *out, int words);
};

extern const Kernels portable_kernels;
#ifdef STOMPP_X86
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;

// The bf16 convolution by the CPU's own instruction, and whether that rounds as the format says and is worth its while.
void bf16_conv_by_instruction(const Conv &, const Block &, std::int64_t begin, std::int64_t end);
bool bf16_instruction_agrees();
bool bf16_instruction_is_fast();
#endif

} // namespace stompp
