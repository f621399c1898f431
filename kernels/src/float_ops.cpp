// The operators that are not convolutions: they go through rows or pixels of one value and write another.
#include <cmath>
#include <stdexcept>

#include "program.hpp"

namespace stompp {
namespace {

constexpr std::int64_t kElementsPerThread = 20000; // less than this is not worth another thread

template <class T> T *row_of(const View &view, std::int64_t image, std::int64_t y) {
    return static_cast<T *>(view.data) + image * view.image + y * view.row;
}

// Calls `row(image, y)` for all rows of `value`, in parallel.
template <class Row> void each_row(const Pass &pass, const Value &value, const Row &row) {
    const std::int64_t rows = std::int64_t(pass.images) * value.height;
    pass.pool.split(rows, rows * value.width * value.channels / kElementsPerThread,
                    [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t i = begin; i < end; ++i) row(i / value.height, i % value.height);
                    });
}

// An operator on rows: `Body` is called with (kernels, value, input row, output row) as set up by run().
template <class In, class Out, class Body> struct RowOp : Op {
    RowOp(int input, int output, Body body) : input(input), output(output), body(std::move(body)) {}
    void run(const Pass &pass) const override {
        const View from = pass.view(input), to = pass.view(output);
        const Value &value = pass.program.value(output);
        const Kernels &kernels = pass.program.kernels();
        each_row(pass, value, [&](std::int64_t n, std::int64_t y) {
            body(kernels, value, row_of<const In>(from, n, y), from.pixel, row_of<Out>(to, n, y), to.pixel);
        });
    }
    int input, output;
    Body body;
};

template <class In, class Out, class Body> int add_row_op(Program &program, int input, Kind kind, Body body) {
    const Value from = program.value(input);
    const int output = program.add_value(kind, from.height, from.width, from.channels);
    program.touch(input);
    program.add_op(std::make_unique<RowOp<In, Out, Body>>(input, output, std::move(body)));
    return output;
}

struct Add : Op {
    Add(int a, int b, int output) : a(a), b(b), output(output) {}
    void run(const Pass &pass) const override {
        const View va = pass.view(a), vb = pass.view(b), to = pass.view(output);
        const Value &value = pass.program.value(output);
        each_row(pass, value, [&](std::int64_t n, std::int64_t y) {
            pass.program.kernels().add_row(row_of<const float>(va, n, y), va.pixel, row_of<const float>(vb, n, y),
                                           vb.pixel, row_of<float>(to, n, y), to.pixel, value.width, value.channels);
        });
    }
    int a, b, output;
};

struct Flatten : Op {
    Flatten(int input, int output) : input(input), output(output) {}
    void run(const Pass &pass) const override {
        const View from = pass.view(input), to = pass.view(output);
        const Value &value = pass.program.value(input);
        const std::ptrdiff_t plane = std::ptrdiff_t(value.height) * value.width;
        each_row(pass, value, [&](std::int64_t n, std::int64_t y) {
            const float *in = row_of<const float>(from, n, y);
            float *out = row_of<float>(to, n, 0) + y * value.width;
            for (int x = 0; x < value.width; ++x, in += from.pixel)
                for (int c = 0; c < value.channels; ++c) out[c * plane + x] = in[c];
        });
    }
    int input, output;
};

struct Pooling : Op {
    Pooling(int input, int output, Reduce reduce, std::vector<Span> rows, std::vector<Span> cols)
        : input(input), output(output), reduce(reduce), rows(std::move(rows)), cols(std::move(cols)) {}
    void run(const Pass &pass) const override {
        const View from = pass.view(input), to = pass.view(output);
        const Value &value = pass.program.value(output);
        const Kernels &kernels = pass.program.kernels();
        each_row(pass, value, [&](std::int64_t n, std::int64_t y) {
            const Span &r = rows[y];
            for (int x = 0; x < value.width; ++x) {
                const Span &c = cols[x];
                if (value.kind == Kind::bits)
                    kernels.pool_bits_pixel(row_of<const std::uint32_t>(from, n, r.begin) + c.begin * from.pixel, from.row,
                                            from.pixel, r.end - r.begin, c.end - c.begin,
                                            row_of<std::uint32_t>(to, n, y) + x * to.pixel, static_cast<int>(value.pixel()));
                else
                    kernels.pool_pixel(row_of<const float>(from, n, r.begin) + c.begin * from.pixel, from.row, from.pixel,
                                       r.end - r.begin, c.end - c.begin, row_of<float>(to, n, y) + x * to.pixel,
                                       value.channels, reduce, static_cast<float>(r.count) * static_cast<float>(c.count));
            }
        });
    }
    int input, output;
    Reduce reduce;
    std::vector<Span> rows, cols;
};

void check_spans(const std::vector<Span> &spans, int size) {
    if (spans.empty()) throw std::invalid_argument("pooling needs at least one window on each axis");
    for (const Span &span : spans)
        if (span.begin < 0 || span.begin >= span.end || span.end > size || span.count < 1 || span.count > 4096)
            throw std::invalid_argument("a pooling window is empty, outside the image or divides by nothing");
}

} // namespace

int Program::sign(int input) {
    checked(input, Kind::floats, "sign");
    return add_row_op<float, std::uint32_t>(
        *this, input, Kind::bits,
        [](const Kernels &k, const Value &v, const float *in, std::ptrdiff_t in_pixel, std::uint32_t *out,
           std::ptrdiff_t out_pixel) { k.sign_row(in, in_pixel, out, out_pixel, v.width, v.channels); });
}

int Program::unpack(int input) {
    checked(input, Kind::bits, "unpack");
    return add_row_op<std::uint32_t, float>(
        *this, input, Kind::floats,
        [](const Kernels &k, const Value &v, const std::uint32_t *in, std::ptrdiff_t in_pixel, float *out,
           std::ptrdiff_t out_pixel) { k.unpack_row(in, in_pixel, out, out_pixel, v.width, v.channels); });
}

int Program::quantize(int input, float scale) {
    checked(input, Kind::floats, "quantize");
    if (!std::isfinite(scale) || scale <= 0) throw std::invalid_argument("quantize: scale must be positive and finite");
    return add_row_op<float, std::uint32_t>(
        *this, input, Kind::bytes,
        [scale](const Kernels &k, const Value &v, const float *in, std::ptrdiff_t in_pixel, std::uint32_t *out,
                std::ptrdiff_t out_pixel) {
            k.quantize_row(in, in_pixel, reinterpret_cast<std::uint8_t *>(out), 4 * out_pixel, v.width, v.channels, scale);
        });
}

int Program::round(int input) {
    checked(input, Kind::floats, "round");
    if (!kernels_.bf16_conv)
        return add_row_op<float, float>(
            *this, input, Kind::bf16,
            [](const Kernels &k, const Value &v, const float *in, std::ptrdiff_t in_pixel, float *out,
               std::ptrdiff_t out_pixel) { k.round_row(in, in_pixel, out, out_pixel, v.width, v.channels); });
    return add_row_op<float, std::uint32_t>(
        *this, input, Kind::pairs,
        [](const Kernels &k, const Value &v, const float *in, std::ptrdiff_t in_pixel, std::uint32_t *out,
           std::ptrdiff_t out_pixel) {
            k.pair_row(in, in_pixel, reinterpret_cast<std::uint16_t *>(out), 2 * out_pixel, v.width, v.channels);
        });
}

int Program::affine(int input, const float *mul, const float *bias) {
    const int channels = checked(input, Kind::floats, "affine").channels;
    return add_row_op<float, float>(
        *this, input, Kind::floats,
        [m = std::vector<float>(mul, mul + channels), b = std::vector<float>(bias, bias + channels)](
            const Kernels &k, const Value &v, const float *in, std::ptrdiff_t in_pixel, float *out,
            std::ptrdiff_t out_pixel) { k.affine_row(in, in_pixel, out, out_pixel, v.width, v.channels, m.data(), b.data()); });
}

int Program::clamp(int input, float low, float high) {
    checked(input, Kind::floats, "clamp");
    if (!(low <= high)) throw std::invalid_argument("clamp: low must not be above high");
    return add_row_op<float, float>(
        *this, input, Kind::floats,
        [low, high](const Kernels &k, const Value &v, const float *in, std::ptrdiff_t in_pixel, float *out,
                    std::ptrdiff_t out_pixel) { k.clamp_row(in, in_pixel, out, out_pixel, v.width, v.channels, low, high); });
}

int Program::add(int a, int b) {
    const Value left = checked(a, Kind::floats, "add"), right = checked(b, Kind::floats, "add");
    if (left.height != right.height || left.width != right.width || left.channels != right.channels)
        throw std::invalid_argument("add: the two values differ in shape");
    const int output = add_value(Kind::floats, left.height, left.width, left.channels);
    touch(a);
    touch(b);
    add_op(std::make_unique<Add>(a, b, output));
    return output;
}

int Program::flatten(int input) {
    const Value from = checked(input, Kind::floats, "flatten");
    const int output = add_value(Kind::floats, 1, 1, std::int64_t(from.height) * from.width * from.channels);
    touch(input);
    add_op(std::make_unique<Flatten>(input, output));
    return output;
}

int Program::pool(int input, Reduce reduce, const std::vector<Span> &rows, const std::vector<Span> &cols) {
    const Kind kind = value(input).kind;
    if (kind != Kind::floats && (kind != Kind::bits || reduce != Reduce::max))
        throw std::invalid_argument("pool: floats have a maximum and a mean, bits a maximum, others neither");
    const Value from = checked(input, kind, "pool");
    check_spans(rows, from.height);
    check_spans(cols, from.width);
    const int output = add_value(kind, static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(cols.size()),
                                 from.channels);
    touch(input);
    add_op(std::make_unique<Pooling>(input, output, reduce, rows, cols));
    return output;
}

} // namespace stompp
