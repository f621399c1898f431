// Convolutions as operators: checks, weights laid out for the kernels, the tables that make zero padding exact.
#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <stdexcept>

#include "conv_op.hpp"
#include "sweep.hpp"

namespace stompp {
namespace {

constexpr int kMostWindow = 4096;                             // kernel, stride, dilation and padding, each axis
constexpr std::int64_t kMostDot = std::int64_t(1) << 24;      // terms of one dot product: its float is exact
constexpr std::int64_t kMostInt8Dot = 66000;                  // 255 * 127 * this fits in 31 bits
constexpr std::int64_t kMostTable = std::int64_t(1) << 26;

int output_size(int size, int kernel, int stride, int dilation, int before, int after) {
    const std::int64_t room = std::int64_t(size) + before + after - (std::int64_t(kernel) - 1) * dilation - 1;
    if (room < 0) throw std::invalid_argument("conv: the kernel is larger than the padded image");
    return static_cast<int>(room / stride + 1);
}

// Which part of the kernel lies inside the image, for each output position along one axis.
struct Axis {
    Axis(int size, int out, int kernel, int stride, int dilation, int before) : classes(out) {
        std::map<std::pair<int, int>, int> known;
        for (int o = 0; o < out; ++o) {
            const std::int64_t first = std::int64_t(o) * stride - before;
            // Taps [low, high) are inside.
            const std::int64_t low = first >= 0 ? 0 : std::min<std::int64_t>(kernel, (-first + dilation - 1) / dilation);
            const std::int64_t last = first >= size ? -1 : (size - 1 - first) / dilation;
            const std::int64_t high = std::max(low, std::min<std::int64_t>(kernel, last + 1));
            const auto [entry, is_new] = known.try_emplace({int(low), int(high)}, static_cast<int>(ranges.size()));
            if (is_new) ranges.emplace_back(int(low), int(high));
            classes[o] = entry->second;
        }
    }
    std::vector<int> classes;
    std::vector<std::pair<int, int>> ranges;
};

// Copies channels into words of their own group, for groups that are no whole words.
struct Regroup : Op {
    Regroup(int input, int output, int groups) : input(input), output(output), groups(groups) {}
    static std::uint32_t *word(const View &view, std::int64_t image, std::int64_t y, std::int64_t x) {
        return static_cast<std::uint32_t *>(view.data) + image * view.image + y * view.row + x * view.pixel;
    }
    void run(const Pass &pass) const override {
        const Value &in = pass.program.value(input), &out = pass.program.value(output);
        const View from = pass.view(input), to = pass.view(output);
        const int narrow = in.channels / groups, wide = out.channels / groups;
        pass.pool.split(std::int64_t(pass.images) * in.height, 1, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) {
                for (int x = 0; x < in.width; ++x) {
                    const std::uint32_t *source = word(from, i / in.height, i % in.height, x);
                    std::uint32_t *target = word(to, i / in.height, i % in.height, x);
                    for (int g = 0; g < groups; ++g) {
                        for (int c = 0; c < narrow; c += 32) {
                            const int n = std::min(32, narrow - c);
                            const std::uint64_t mask = (std::uint64_t(1) << n) - 1;
                            const std::uint64_t bits = read_bits(source, g * narrow + c, n);
                            write_bits(target, g * wide + c, 32, bits & mask);
                        }
                    }
                }
            }
        });
    }
    int input, output, groups;
};

void check(bool ok, const char *message) {
    if (!ok) throw std::invalid_argument(message);
}

// Everything that convolutions of all kinds share. Returns the operator with its blocks laid out and its weights still empty.
std::unique_ptr<ConvOp> prepare(Program &program, Kind kind, int input, int channels, const Window &window,
                                const Epilogue &epilogue) {
    static constexpr ConvKernel Kernels::*kernels[] = {&Kernels::float_conv, &Kernels::binary_conv, &Kernels::int8_conv,
                                                       &Kernels::float_conv, &Kernels::bf16_conv}; // by Kind
    const Value in = program.checked(input, kind, "conv");
    for (int axis = 0; axis < 2; ++axis)
        check(window.kernel[axis] >= 1 && window.kernel[axis] <= kMostWindow && window.stride[axis] >= 1 &&
                  window.stride[axis] <= kMostWindow && window.dilation[axis] >= 1 && window.dilation[axis] <= kMostWindow,
              "conv: kernel, stride and dilation must be between 1 and 4096");
    for (int side : window.padding) check(side >= 0 && side <= kMostWindow, "conv: padding must be between 0 and 4096");
    check(channels >= 1 && channels <= 1 << 20, "conv: channels out of range");
    check(window.groups >= 1 && in.channels % window.groups == 0 && channels % window.groups == 0,
          "conv: groups must divide the channels of input and output");
    const std::int64_t terms =
        std::int64_t(window.kernel[0]) * window.kernel[1] * (in.channels / window.groups);
    check(terms <= (kind == Kind::bytes ? kMostInt8Dot : kMostDot), "conv: too many terms in one dot product");
    check(window.groups == 1 || kind == Kind::bits || kind == Kind::floats, "conv: int8 and bf16 have one group");
    check((epilogue.threshold != nullptr) != (epilogue.mul != nullptr), "conv: either thresholds or mul and bias");
    check(!epilogue.threshold || kind == Kind::bits, "conv: only a binary convolution has thresholds");
    check(!epilogue.threshold || (epilogue.want_bits && !epilogue.want_float), "conv: thresholds give bits");
    check(epilogue.want_bits || epilogue.want_float, "conv: no output is wanted");
    check(!epilogue.clamp || epilogue.low <= epilogue.high, "conv: clamp low must not be above high");

    auto op = std::make_unique<ConvOp>();
    op->kernel = program.kernels().*kernels[int(kind)];
    op->window = window;
    op->residual = epilogue.residual;
    op->input = input;
    op->out_h = output_size(in.height, window.kernel[0], window.stride[0], window.dilation[0], window.padding[0],
                                 window.padding[2]);
    op->out_w = output_size(in.width, window.kernel[1], window.stride[1], window.dilation[1], window.padding[1],
                                 window.padding[3]);
    if (epilogue.residual >= 0) {
        const Value &r = program.value(epilogue.residual);
        check(r.kind == Kind::bits || (r.kind == Kind::floats && !epilogue.threshold), "conv: this residual does not fit");
        check(r.height == op->out_h && r.width == op->out_w && r.channels == channels,
              "conv: the residual differs in shape");
    }

    // Groups whose channels are no whole words get words of their own.
    const int group_in = in.channels / window.groups, group_out = channels / window.groups;
    if (kind == Kind::bits && window.groups > 1 && group_in % 32 != 0) {
        const std::int64_t wide = (group_in + 31) / 32 * 32;
        const int regrouped = program.add_value(Kind::bits, in.height, in.width, wide * window.groups);
        program.touch(input);
        program.add_op(std::make_unique<Regroup>(input, regrouped, window.groups));
        op->input = regrouped;
    }
    program.widen_margin(op->input, window.padding);
    op->exclusive_words = window.groups == 1 || group_out % 32 == 0;

    const Value from = program.value(op->input);
    const std::int64_t per_tap = from.pixel() / window.groups;
    const std::int64_t elements = std::int64_t(window.kernel[0]) * window.kernel[1] * per_tap;
    const bool nibbles = kind == Kind::bits && program.kernels().layout == BinaryLayout::nibbles;
    std::size_t weights = 0;
    int column = 0;
    for (int g = 0; g < window.groups; ++g) {
        for (int c = 0; c < group_out; c += kBlockChannels) {
            const int count = std::min(kBlockChannels, group_out - c), vectors = (count + 15) / 16;
            const int channel = g * group_out + c;
            const bool whole = count == kBlockChannels && channel % 32 == 0;
            op->blocks.push_back({weights, g * per_tap, column, channel, count, vectors, whole, channel / 32});
            weights += elements * (nibbles ? std::size_t((vectors + 1) / 2) * 32 * 8 : std::size_t(vectors) * 16);
            column += vectors * 16;
            op->steps += vectors * elements / window.groups;
        }
    }
    check(weights <= std::size_t(1) << 30, "conv: weights too large");
    op->weights.assign(nibbles ? weights / 4 : weights, 0);
    op->columns = column;
    if (kind == Kind::bytes) op->start.assign(column, 0);
    return op;
}

// Border classes, epilogue tables and output values.
Outputs complete(Program &program, std::unique_ptr<ConvOp> op, int channels, const Epilogue &epilogue) {
    op->conv.clamp = epilogue.clamp;
    op->conv.low = epilogue.low;
    op->conv.high = epilogue.high;
    op->mul.assign(op->columns, 0.0f);
    op->bias.assign(op->columns, 0.0f);
    if (epilogue.mul) {
        for (const Block &block : op->blocks) {
            std::copy_n(epilogue.mul + block.channel, block.count, op->mul.begin() + block.column);
            std::copy_n(epilogue.bias + block.channel, block.count, op->bias.begin() + block.column);
        }
    }
    if (op->row_table.empty()) {
        op->row_table.assign(op->out_h, 0);
        op->col_table.assign(op->out_w, 0);
    }
    if (epilogue.want_float) op->outputs.floats = program.add_value(Kind::floats, op->out_h, op->out_w, channels);
    if (epilogue.want_bits) op->outputs.bits = program.add_value(Kind::bits, op->out_h, op->out_w, channels);
    program.touch(op->input);
    if (op->residual >= 0) program.touch(op->residual);
    if (op->outputs.floats >= 0 && op->residual >= 0 && op->residual != op->input &&
        program.value(op->residual).kind == Kind::floats)
        program.write_over(op->outputs.floats, op->residual);
    const Outputs outputs = op->outputs;
    program.add_op(std::move(op));
    return outputs;
}

// Calls put(block, channel in block, tap, input channel, index of the term in its row) for every weight.
template <class Put> void each_weight(const ConvOp &op, int group_in, const Put &put) {
    const int taps = op.window.kernel[0] * op.window.kernel[1];
    for (const Block &block : op.blocks)
        for (int lane = 0; lane < block.count; ++lane)
            for (int tap = 0; tap < taps; ++tap)
                for (int c = 0; c < group_in; ++c) put(block, lane, tap, c, std::int64_t(tap) * group_in + c);
}

// A convolution of numbers. As many weights as fit share an element, those of lower channels in lower bytes.
template <class T>
Outputs number_conv(Program &program, Kind kind, int input, int channels, const Window &window, const T *weight,
                    const Epilogue &epilogue) {
    auto op = prepare(program, kind, input, channels, window, epilogue);
    constexpr int kPer = sizeof(std::uint32_t) / sizeof(T);
    const int group_in = program.value(input).channels / window.groups, words = (group_in + kPer - 1) / kPer;
    const std::int64_t terms = std::int64_t(window.kernel[0]) * window.kernel[1] * group_in;
    each_weight(*op, group_in, [&](const Block &block, int lane, int tap, int c, std::int64_t term) {
        const std::size_t word = std::size_t(tap) * words + c / kPer;
        std::uint32_t &element = op->weights[block.weights + word * 16 * block.vectors + lane];
        const T &w = weight[(block.channel + lane) * terms + term];
        std::memcpy(reinterpret_cast<std::uint8_t *>(&element) + c % kPer * sizeof(T), &w, sizeof(T));
        if constexpr (sizeof(T) == 1) op->start[block.column + lane] -= 128 * w; // inputs are stored with 128 added
    });
    return complete(program, std::move(op), channels, epilogue);
}

} // namespace

Outputs Program::binary_conv(int input, int channels, const Window &window, const std::uint8_t *weight,
                             const Epilogue &epilogue) {
    const Value in = checked(input, Kind::bits, "binary_conv");
    auto op = prepare(*this, Kind::bits, input, channels, window, epilogue);
    const int group_in = in.channels / window.groups, words = (group_in + 31) / 32;
    const int kernel_h = window.kernel[0], kernel_w = window.kernel[1];
    const std::int64_t bytes = (std::int64_t(kernel_h) * kernel_w * group_in + 7) / 8;
    const bool nibbles = kernels_.layout == BinaryLayout::nibbles;

    // Weights, and for each channel and tap how many of its bits are 1.
    std::vector<std::int32_t> ones(std::size_t(op->columns) * kernel_h * kernel_w, 0);
    auto *const as_bytes = reinterpret_cast<std::uint8_t *>(op->weights.data());
    each_weight(*op, group_in, [&](const Block &block, int lane, int tap, int c, std::int64_t term) {
        const std::uint8_t *row = weight + (block.channel + lane) * bytes;
        if (!(row[term / 8] >> (term % 8) & 1)) return;
        ++ones[std::size_t(block.column + lane) * kernel_h * kernel_w + tap];
        const std::size_t word = std::size_t(tap) * words + c / 32;
        if (nibbles) {
            const std::size_t lanes = std::size_t((block.vectors + 1) / 2) * 32;
            as_bytes[block.weights + (word * 8 + c % 32 / 4) * lanes + lane] |= static_cast<std::uint8_t>(1 << (c % 4));
        } else {
            op->weights[block.weights + word * 16 * block.vectors + lane] |= 1u << (c % 32);
        }
    });

    // A padded pixel is all zero bits and so counts the ones of the weights there: the table takes them out again.
    const Axis rows(in.height, op->out_h, kernel_h, window.stride[0], window.dilation[0], window.padding[0]);
    const Axis cols(in.width, op->out_w, kernel_w, window.stride[1], window.dilation[1], window.padding[1]);
    const int columns = op->columns, col_classes = static_cast<int>(cols.ranges.size());
    const std::int64_t classes = std::int64_t(rows.ranges.size()) * col_classes;
    check(classes * columns <= kMostTable, "conv: too many border classes");
    op->row_table = rows.classes;
    op->col_table = cols.classes;
    for (int &entry : op->row_table) entry *= col_classes * columns;
    for (int &entry : op->col_table) entry *= columns;
    op->start.assign(classes * columns, 0);
    if (epilogue.threshold) op->limit.assign(classes * columns, -1);
    if (epilogue.threshold && epilogue.residual >= 0) op->limit_plus.assign(classes * columns, -1);
    std::vector<std::int64_t> sum((kernel_h + 1) * std::size_t(kernel_w + 1), 0); // ones of all taps above and to the left
    for (const Block &block : op->blocks) {
        for (int lane = 0; lane < block.count; ++lane) {
            const std::int32_t *tap = &ones[std::size_t(block.column + lane) * kernel_h * kernel_w];
            const auto total = [&](int y, int x) -> std::int64_t & { return sum[std::size_t(y) * (kernel_w + 1) + x]; };
            for (int y = 0; y < kernel_h; ++y)
                for (int x = 0; x < kernel_w; ++x)
                    total(y + 1, x + 1) = *tap++ + total(y, x + 1) + total(y + 1, x) - total(y, x);
            for (std::size_t r = 0; r < rows.ranges.size(); ++r) {
                for (int c = 0; c < col_classes; ++c) {
                    const auto [y0, y1] = rows.ranges[r];
                    const auto [x0, x1] = cols.ranges[c];
                    const std::int64_t inside = total(y1, x1) - total(y0, x1) - total(y1, x0) + total(y0, x0);
                    const std::int64_t start = std::int64_t(y1 - y0) * (x1 - x0) * group_in +
                                               2 * (total(kernel_h, kernel_w) - inside);
                    const std::size_t entry = (r * col_classes + c) * columns + block.column + lane;
                    op->start[entry] = static_cast<std::int32_t>(start);
                    // start - 2 p >= t  <=>  p <= floor((start - t) / 2)
                    const auto limit = [&](std::int32_t threshold) {
                        const std::int64_t most = (start - threshold) >> 1;
                        return static_cast<std::int32_t>(
                            std::clamp<std::int64_t>(most, -1, std::numeric_limits<std::int32_t>::max()));
                    };
                    const int channel = block.channel + lane;
                    if (!op->limit.empty()) op->limit[entry] = limit(epilogue.threshold[channel]);
                    if (!op->limit_plus.empty()) op->limit_plus[entry] = limit(epilogue.threshold[channels + channel]);
                }
            }
        }
    }
    return complete(*this, std::move(op), channels, epilogue);
}

Outputs Program::float_conv(int input, int channels, const Window &window, const float *weight,
                            const Epilogue &epilogue) {
    return number_conv(*this, Kind::floats, input, channels, window, weight, epilogue);
}

Outputs Program::int8_conv(int input, int channels, const Window &window, const std::int8_t *weight,
                           const Epilogue &epilogue) {
    return number_conv(*this, Kind::bytes, input, channels, window, weight, epilogue);
}

Outputs Program::bf16_conv(int input, int channels, const Window &window, const std::uint16_t *weight,
                           const Epilogue &epilogue) {
    if (kernels_.bf16_conv) return number_conv(*this, Kind::pairs, input, channels, window, weight, epilogue);
    auto op = prepare(*this, Kind::bf16, input, channels, window, epilogue);
    const int in = value(input).channels, taps = window.kernel[0] * window.kernel[1];
    each_weight(*op, in, [&](const Block &block, int lane, int tap, int c, std::int64_t term) {
        const std::size_t element = std::size_t(tap) * in + swapped(c, in);
        const std::uint32_t half = weight[std::int64_t(block.channel + lane) * taps * in + term];
        op->weights[block.weights + element * 16 * block.vectors + lane] = half << 16;
    });
    return complete(*this, std::move(op), channels, epilogue);
}

} // namespace stompp
