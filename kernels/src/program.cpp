#include "program.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

namespace stompp {
namespace {

constexpr std::int64_t kMostElements = std::int64_t(1) << 27;  // of one value, margins included
constexpr std::size_t kMostBytes = std::size_t(1) << 32;       // of a workspace for one image
constexpr std::size_t kPassBytes = std::size_t(1) << 19;       // images share a pass while they fit in a second-level cache
constexpr int kMostImages = 16;
constexpr std::int64_t kMostPlaces = std::int64_t(1) << 27;    // of all convolutions, four bytes each
constexpr std::size_t kAlign = 64;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

} // namespace

struct Program::Workspace {
    explicit Workspace(std::size_t bytes) : memory(static_cast<std::uint8_t *>(std::aligned_alloc(kAlign, aligned(bytes)))) {
        if (!memory) throw std::bad_alloc();
    }
    ~Workspace() { std::free(memory); }
    std::uint8_t *memory;
};

View Pass::view(int index) const {
    const Value &v = program.value(index);
    const std::ptrdiff_t corner = v.margin.top * v.row() + v.margin.left * v.pixel();
    return {memory + v.offset + 4 * corner, v.image(), v.row(), v.pixel()};
}

namespace {

// True if any of the values is infinite or no number: its exponent bits are all ones.
bool any_not_finite(const float *values, std::ptrdiff_t count) {
    std::uint32_t found = 0;
    for (std::ptrdiff_t i = 0; i < count; ++i) {
        std::uint32_t bits;
        std::memcpy(&bits, values + i, sizeof bits);
        found |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return found != 0;
}

// NCHW in, NHWC out.
struct Load : Op {
    void run(const Pass &pass) const override {
        const Value &v = pass.program.value(0);
        const View to = pass.view(0);
        const std::ptrdiff_t plane = std::ptrdiff_t(v.height) * v.width;
        pass.pool.split(std::int64_t(pass.images) * v.height, std::int64_t(pass.images) * plane * v.channels / 20000,
                        [&](std::int64_t begin, std::int64_t end) {
                            for (std::int64_t i = begin; i < end; ++i) {
                                const std::ptrdiff_t n = i / v.height, y = i % v.height;
                                const float *in = pass.input + n * plane * v.channels + y * v.width;
                                float *out = static_cast<float *>(to.data) + n * to.image + y * to.row;
                                for (int c = 0; c < v.channels; ++c)
                                    if (any_not_finite(in + c * plane, v.width)) pass.finite = false;
                                for (int x = 0; x < v.width; ++x, out += to.pixel)
                                    for (int c = 0; c < v.channels; ++c) out[c] = in[c * plane + x];
                            }
                        });
    }
};

struct Store : Op {
    explicit Store(int value) : value(value) {}
    void run(const Pass &pass) const override {
        const Value &v = pass.program.value(value);
        const View from = pass.view(value);
        float *out = pass.output;
        for (int n = 0; n < pass.images; ++n)
            for (int c = 0; c < v.channels; ++c)
                for (int y = 0; y < v.height; ++y)
                    for (int x = 0; x < v.width; ++x)
                        *out++ = static_cast<const float *>(from.data)[n * from.image + y * from.row + x * from.pixel + c];
    }
    int value;
};

} // namespace

Program::Program(int channels, int height, int width, const std::string &isa) : kernels_(kernels_for(isa)) {
    add_value(Kind::floats, height, width, channels);
    touch(0);
    add_op(std::make_unique<Load>());
}

Program::~Program() = default;

const Value &Program::value(int index) const {
    if (index < 0 || index >= static_cast<int>(values_.size()))
        throw std::invalid_argument("no value number " + std::to_string(index));
    return values_[index];
}

const Value &Program::checked(int index, Kind kind, const char *what) const {
    static const char *const names[] = {"floats", "bits", "bytes", "bf16", "bf16"};
    if (output_ >= 0) throw std::invalid_argument("the program is finished");
    const Value &v = value(index);
    if (v.kind != kind)
        throw std::invalid_argument(std::string(what) + " needs " + names[int(kind)] + ", value " + std::to_string(index) +
                                    " is " + names[int(v.kind)]);
    return v;
}

int Program::add_value(Kind kind, std::int64_t height, std::int64_t width, std::int64_t channels) {
    if (height < 1 || width < 1 || channels < 1 || height > kMostElements || width > kMostElements ||
        channels > kMostElements || height * width > kMostElements || height * width * channels > kMostElements)
        throw std::invalid_argument("a value's shape is empty or too large");
    values_.push_back({kind, int(height), int(width), int(channels), {}, 0, 0, 0});
    values_.back().born = values_.back().last = static_cast<int>(ops_.size());
    return static_cast<int>(values_.size()) - 1;
}

void Program::touch(int index) { values_[index].last = static_cast<int>(ops_.size()); }

void Program::write_over(int index, int dead) { values_[index].over = dead; }

void Program::widen_margin(int index, const std::array<int, 4> &padding) {
    Value &v = values_[index];
    Margins m = v.margin;
    m.top = std::max(m.top, padding[0]);
    m.left = std::max(m.left, padding[1]);
    m.bottom = std::max(m.bottom, padding[2]);
    m.right = std::max(m.right, padding[3]);
    const std::int64_t height = std::int64_t(v.height) + m.top + m.bottom, width = std::int64_t(v.width) + m.left + m.right;
    if (height * width > kMostElements || height * width * v.channels > kMostElements)
        throw std::invalid_argument("padding makes a value too large");
    v.margin = m;
}

int Program::add_op(std::unique_ptr<Op> op) {
    ops_.push_back(std::move(op));
    return static_cast<int>(ops_.size()) - 1;
}

void Program::finish(int output) {
    checked(output, Kind::floats, "the output");
    touch(output);
    add_op(std::make_unique<Store>(output));
    output_ = output;
    plan();
    for (auto &op : ops_) op->finish(*this);
}

// Values whose padding or unused bits must stay constant own their memory; plain floats share it when their lives do not
// overlap. A sum may be written over its residual, so that a long float stream stays in one place and in the cache. First
// fit, widest value first.
void Program::plan() {
    std::size_t single = 0;
    for (const Value &v : values_) single += aligned(4 * v.image());
    if (single > kMostBytes) throw std::invalid_argument("the program needs too much memory");
    chunk_ = static_cast<int>(std::clamp<std::size_t>(kPassBytes / single, 1, kMostImages));

    const auto size = [&](const Value &v) { return aligned(4 * std::size_t(v.image()) * chunk_); };
    const auto plain = [](const Value &v) { return kWordsPer[int(v.kind)] == 1 && !v.padded(); };
    std::vector<Value *> shared;
    for (Value &v : values_) {
        if (v.over >= 0) {
            Value *below = &values_[v.over];
            const bool dead = below->last == v.born;
            while (below->over >= 0) below = &values_[below->over];
            if (dead && plain(v) && plain(*below))
                below->last = v.last; // one place for both lives
            else
                v.over = -1;
        }
        if (v.over >= 0) continue;
        if (plain(v)) {
            shared.push_back(&v);
        } else {
            v.offset = bytes_;
            bytes_ += size(v);
        }
    }
    std::sort(shared.begin(), shared.end(), [&](const Value *a, const Value *b) { return size(*a) > size(*b); });
    const std::size_t base = bytes_;
    for (std::size_t i = 0; i < shared.size(); ++i) {
        Value &v = *shared[i];
        std::vector<const Value *> alive; // placed values that live at the same time
        for (std::size_t j = 0; j < i; ++j)
            if (shared[j]->born <= v.last && v.born <= shared[j]->last) alive.push_back(shared[j]);
        std::sort(alive.begin(), alive.end(), [](const Value *a, const Value *b) { return a->offset < b->offset; });
        v.offset = base;
        for (const Value *other : alive) {
            if (v.offset + size(v) <= other->offset) break;
            v.offset = std::max(v.offset, other->offset + size(*other));
        }
        bytes_ = std::max(bytes_, v.offset + size(v));
    }
    for (Value &v : values_)
        if (v.over >= 0) v.offset = values_[v.over].offset;
}

void Program::take_places(std::int64_t count) {
    place_count_ += count;
    if (place_count_ > kMostPlaces) throw std::invalid_argument("the program has too many output pixels");
}

std::unique_ptr<Program::Workspace> Program::take() const {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!idle_.empty()) {
            auto workspace = std::move(idle_.back());
            idle_.pop_back();
            return workspace;
        }
    }
    auto workspace = std::make_unique<Workspace>(bytes_);
    std::memset(workspace->memory, 0, bytes_);
    for (const Value &v : values_)
        if (v.kind == Kind::bytes) std::memset(workspace->memory + v.offset, 128, 4 * std::size_t(v.image()) * chunk_);
    return workspace;
}

void Program::put(std::unique_ptr<Workspace> workspace) const {
    std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(workspace));
}

void Program::run(const float *input, float *output, std::int64_t images, int threads) const {
    if (output_ < 0) throw std::invalid_argument("the program is not finished");
    const std::size_t in_size = std::size_t(values_[0].height) * values_[0].width * values_[0].channels;
    const Value &last = values_[output_];
    const std::size_t out_size = std::size_t(last.height) * last.width * last.channels;
    auto workspace = take();
    const Pool::Lease lease(threads);
    std::atomic<bool> finite{true};
    for (std::int64_t done = 0; done < images; done += chunk_) {
        const int now = static_cast<int>(std::min<std::int64_t>(chunk_, images - done));
        const Pass pass{*this, workspace->memory, now, input + done * in_size, output + done * out_size, lease, finite};
        for (const auto &op : ops_) op->run(pass);
    }
    put(std::move(workspace));
    if (!finite) throw std::invalid_argument("the input has values that are infinite or no numbers");
}

} // namespace stompp
