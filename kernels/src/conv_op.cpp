// Convolutions as operators: checks, weights laid out for the kernels, the tables that make zero padding exact.
#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <new>
#include <stdexcept>

#include "program.hpp"
#include "sweep.hpp"

namespace stompp {
namespace {

constexpr int kPartPixels = 12;                               // work is split in multiples of this: whole tiles
constexpr int kMostWindow = 4096;                             // kernel, stride, dilation and padding, each axis
constexpr std::int64_t kMostDot = std::int64_t(1) << 24;      // terms of one dot product: its float is exact
constexpr std::int64_t kMostInt8Dot = 66000;                  // 255 * 127 * this fits in 31 bits
constexpr std::int64_t kMostTable = std::int64_t(1) << 26;
constexpr std::int64_t kStepsPerThread = 60000;               // register operations that are worth another thread

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

enum class Form { binary, floats, int8 };

struct ConvOp : Op {
    Form form;
    int input, residual = -1;
    Outputs outputs;
    Window window;
    Conv conv{};
    ConvKernel kernel = nullptr;
    bool exclusive_words = true; // blocks write different words, so that they may run in different threads
    std::int64_t steps = 0;      // vectors touched per output pixel

    std::vector<Run> runs;
    std::vector<Block> blocks;
    Lines<std::uint32_t> weights; // bits, floats or bytes
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
        if (!exclusive_words) {
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

// Everything that the three forms share. Returns the operator with its blocks laid out and its weights still empty.
std::unique_ptr<ConvOp> prepare(Program &program, Form form, int input, int channels, const Window &window,
                                const Epilogue &epilogue) {
    static constexpr Kind kinds[] = {Kind::bits, Kind::floats, Kind::bytes};
    const Value in = program.checked(input, kinds[int(form)], "conv");
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
    check(terms <= (form == Form::int8 ? kMostInt8Dot : kMostDot), "conv: too many terms in one dot product");
    check(form != Form::int8 || window.groups == 1, "int8 conv: groups are not supported");
    check((epilogue.threshold != nullptr) != (epilogue.mul != nullptr), "conv: either thresholds or mul and bias");
    check(!epilogue.threshold || form == Form::binary, "conv: only a binary convolution has thresholds");
    check(!epilogue.threshold || (epilogue.want_bits && !epilogue.want_float), "conv: thresholds give bits");
    check(epilogue.want_bits || epilogue.want_float, "conv: no output is wanted");
    check(!epilogue.clamp || epilogue.low <= epilogue.high, "conv: clamp low must not be above high");

    auto op = std::make_unique<ConvOp>();
    op->form = form;
    op->window = window;
    op->residual = epilogue.residual;
    op->input = input;
    op->out_h = output_size(in.height, window.kernel[0], window.stride[0], window.dilation[0], window.padding[0],
                                 window.padding[2]);
    op->out_w = output_size(in.width, window.kernel[1], window.stride[1], window.dilation[1], window.padding[1],
                                 window.padding[3]);
    if (epilogue.residual >= 0) {
        const Value &r = program.value(epilogue.residual);
        check(r.kind != Kind::bytes && (!epilogue.threshold || r.kind == Kind::bits), "conv: this residual does not fit");
        check(r.height == op->out_h && r.width == op->out_w && r.channels == channels,
              "conv: the residual differs in shape");
    }

    // Groups whose channels are no whole words get words of their own.
    const int group_in = in.channels / window.groups, group_out = channels / window.groups;
    if (form == Form::binary && window.groups > 1 && group_in % 32 != 0) {
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
    const bool nibbles = form == Form::binary && program.kernels().layout == BinaryLayout::nibbles;
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

} // namespace

Outputs Program::binary_conv(int input, int channels, const Window &window, const std::uint8_t *weight,
                             const Epilogue &epilogue) {
    const Value in = checked(input, Kind::bits, "binary_conv");
    auto op = prepare(*this, Form::binary, input, channels, window, epilogue);
    op->kernel = kernels_.binary_conv;
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
    const int group_in = checked(input, Kind::floats, "float_conv").channels / std::max(1, window.groups);
    auto op = prepare(*this, Form::floats, input, channels, window, epilogue);
    op->kernel = kernels_.float_conv;
    const std::int64_t terms = std::int64_t(window.kernel[0]) * window.kernel[1] * group_in;
    each_weight(*op, group_in, [&](const Block &block, int lane, int, int, std::int64_t term) {
        std::memcpy(&op->weights[block.weights + term * 16 * block.vectors + lane],
                    &weight[(block.channel + lane) * terms + term], sizeof(float));
    });
    return complete(*this, std::move(op), channels, epilogue);
}

Outputs Program::int8_conv(int input, int channels, const Window &window, const std::int8_t *weight,
                           const Epilogue &epilogue) {
    const int in_channels = checked(input, Kind::bytes, "int8_conv").channels;
    auto op = prepare(*this, Form::int8, input, channels, window, epilogue);
    op->kernel = kernels_.int8_conv;
    const int words = (in_channels + 3) / 4;
    const std::int64_t terms = std::int64_t(window.kernel[0]) * window.kernel[1] * in_channels;
    op->start.assign(op->columns, 0);
    each_weight(*op, in_channels, [&](const Block &block, int lane, int tap, int c, std::int64_t term) {
        const std::int8_t w = weight[(block.channel + lane) * terms + term];
        op->start[block.column + lane] -= 128 * w;
        op->weights[block.weights + (std::size_t(tap) * words + c / 4) * 16 * block.vectors + lane] |=
            std::uint32_t(static_cast<std::uint8_t>(w)) << (8 * (c % 4));
    });
    return complete(*this, std::move(op), channels, epilogue);
}

} // namespace stompp
