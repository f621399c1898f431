// A convolution as an operator: its weights and tables as the kernels want them, and how its work is split.
#pragma once
#include <algorithm>
#include <new>

#include "program.hpp"

namespace stompp {

constexpr int kPartPixels = 12;                 // work is split in multiples of this: whole tiles
constexpr std::int64_t kTilesPerThread = 8;     // so many of kPartPixels share out evenly
constexpr std::int64_t kStepsPerThread = 60000; // register operations that are worth another thread

// Vectors are loaded from these: none should straddle two cache lines.
template <class T> struct LineAllocator {
    using value_type = T;
    LineAllocator() = default;
    template <class U> LineAllocator(const LineAllocator<U> &) {}
    T *allocate(std::size_t n) { return static_cast<T *>(::operator new(n * sizeof(T), std::align_val_t(64))); }
    void deallocate(T *p, std::size_t) { ::operator delete(p, std::align_val_t(64)); }
    template <class U> bool operator==(const LineAllocator<U> &) const { return true; }
    template <class U> bool operator!=(const LineAllocator<U> &) const { return false; }
};
template <class T> using Lines = std::vector<T, LineAllocator<T>>;

struct ConvOp : Op {
    int input, residual = -1;
    Outputs outputs;
    Window window;
    Conv conv{};
    ConvKernel kernel = nullptr;
    bool exclusive_words = true; // blocks write different words, so that they may run in different threads
    std::int64_t steps = 0;      // vectors touched per output pixel

    std::vector<Run> runs;
    std::vector<Block> blocks;
    Lines<std::uint32_t> weights; // bits, floats, bytes or bf16
    int columns = 0; // of the tables, padded to whole vectors
    std::vector<int> row_table, col_table; // a pixel's border class begins at their sum
    int out_h = 0, out_w = 0;
    Lines<std::int32_t> start, limit, limit_plus;
    Lines<float> mul, bias;

    // The strides of the input are known once all consumers have asked for their margins.
    void finish(Program &program) override {
        const Value &in = program.value(input);
        const std::ptrdiff_t length = in.pixel() / window.groups;
        for (int ky = 0; ky < window.kernel[0]; ++ky) {
            for (int kx = 0; kx < window.kernel[1]; ++kx) {
                const std::ptrdiff_t offset = ky * window.dilation[0] * in.row() + kx * window.dilation[1] * in.pixel();
                if (!runs.empty() && runs.back().offset + runs.back().length == offset)
                    runs.back().length += length;
                else
                    runs.push_back({offset, length});
            }
        }
        conv.runs = runs.data();
        conv.n_runs = static_cast<int>(runs.size());
        conv.blocks = blocks.data();
        conv.weights = weights.data();
        const auto places = [&](int value, int stride_y, int stride_x) -> const std::int32_t * {
            if (value < 0) return nullptr;
            const Value &v = program.value(value);
            return program.places(out_h, out_w, [&](std::int64_t n, std::int64_t y, std::int64_t x) {
                return n * v.image() + y * stride_y * v.row() + x * stride_x * v.pixel();
            });
        };
        conv.window = places(input, window.stride[0], window.stride[1]);
        conv.out_float = places(outputs.floats, 1, 1);
        conv.out_bits = places(outputs.bits, 1, 1);
        conv.residual_float = conv.residual_bits = places(residual, 1, 1);
        conv.table = program.places(out_h, out_w, [&](std::int64_t, std::int64_t y, std::int64_t x) {
            return std::int64_t(row_table[y]) + col_table[x];
        });
        conv.start = start.empty() ? nullptr : start.data();
        conv.limit = limit.empty() ? nullptr : limit.data();
        conv.limit_plus = limit_plus.empty() ? nullptr : limit_plus.data();
        conv.mul = mul.data();
        conv.bias = bias.data();
    }

    void run(const Pass &pass) const override {
        Conv c = conv;
        const View from = pass.view(input);
        c.input = static_cast<std::uint32_t *>(from.data) - window.padding[0] * from.row - window.padding[1] * from.pixel;
        if (outputs.floats >= 0) c.to_float = static_cast<float *>(pass.view(outputs.floats).data);
        if (outputs.bits >= 0) c.to_bits = static_cast<std::uint32_t *>(pass.view(outputs.bits).data);
        if (residual >= 0) {
            const void *data = pass.view(residual).data;
            if (pass.program.value(residual).kind == Kind::bits)
                c.from_bits = static_cast<const std::uint32_t *>(data);
            else
                c.from_float = static_cast<const float *>(data);
        }

        const std::int64_t pixels = std::int64_t(pass.images) * out_h * out_w;
        const std::int64_t tiles = (pixels + kPartPixels - 1) / kPartPixels;
        const std::int64_t threads = pixels * steps / kStepsPerThread;
        // Threads share out the pixels: what one wrote in the last layer it reads in this one. Channels are shared out where
        // pixels are few, but threads that write words of the same cache line hold each other up.
        const std::int64_t across = std::min<std::int64_t>(threads, pass.pool.threads());
        if (!exclusive_words || tiles >= kTilesPerThread * across) {
            pass.pool.split(tiles, threads, [&](std::int64_t begin, std::int64_t end) {
                for (const Block &block : blocks)
                    kernel(c, block, begin * kPartPixels, std::min(end * kPartPixels, pixels));
            });
            return;
        }
        // Block by block, so that a block's weights stay in the first-level cache while the pixels pass.
        pass.pool.split(tiles * static_cast<std::int64_t>(blocks.size()), threads,
                        [&](std::int64_t begin, std::int64_t end) {
                            while (begin < end) {
                                const std::int64_t block = begin / tiles, first = begin % tiles;
                                const std::int64_t last = std::min(tiles, first + end - begin);
                                kernel(c, blocks[block], first * kPartPixels, std::min(last * kPartPixels, pixels));
                                begin += last - first;
                            }
                        });
    }
};

} // namespace stompp
