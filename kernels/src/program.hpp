// A network as a list of operators over numbered values, with its memory planned once.
//
// Built by calls in the order of evaluation, then `finish`, then `run` any number of times from any threads. Every call
// checks what it is given and throws std::invalid_argument, so no sequence of calls can reach memory it does not own.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "isa.hpp"
#include "pool.hpp"

namespace stompp {

// bytes: quantized values + 128. bf16: as floats, of each pair of channels the second first. pairs: bf16, two to a word.
enum class Kind { floats, bits, bytes, bf16, pairs };

constexpr int kWordsPer[] = {1, 32, 4, 1, 2}; // channels in one 32-bit element, by Kind

struct Margins {
    int top = 0, left = 0, bottom = 0, right = 0;
};

struct Value {
    Kind kind;
    int height, width, channels;
    Margins margin;         // the widest that a consumer's padding asks for
    int born = 0, last = 0; // first and last operator that touches it
    std::size_t offset = 0; // bytes in a workspace
    int over = -1;          // a value of the same shape that this one may be written over, if nothing reads it later

    std::ptrdiff_t pixel() const { return (channels + kWordsPer[int(kind)] - 1) / kWordsPer[int(kind)]; }
    std::ptrdiff_t row() const { return pixel() * (width + margin.left + margin.right); }
    std::ptrdiff_t image() const { return row() * (height + margin.top + margin.bottom); }
    bool padded() const { return margin.top || margin.left || margin.bottom || margin.right; }
};

class Program;

// One call's state: a workspace, the images of this pass, and the threads.
struct Pass {
    const Program &program;
    std::uint8_t *memory;
    int images;
    const float *input; // NCHW
    float *output;      // NCHW
    const Pool::Lease &pool;
    std::atomic<bool> &finite; // set to false where the input is not

    View view(int value) const;
};

class Op {
  public:
    virtual ~Op() = default;
    virtual void finish(Program &) {} // margins are final
    virtual void run(const Pass &) const = 0;
};

struct Window {
    std::array<int, 2> kernel{1, 1}, stride{1, 1}, dilation{1, 1};
    std::array<int, 4> padding{0, 0, 0, 0}; // top, left, bottom, right
    int groups = 1;
};

// Absent arrays are null, absent values -1.
struct Epilogue {
    const std::int32_t *threshold = nullptr; // [channels], or [2][channels] with a residual of bits
    const float *mul = nullptr, *bias = nullptr;
    int residual = -1;
    bool clamp = false;
    float low = 0, high = 0;
    bool want_float = false, want_bits = false;
};

struct Outputs {
    int floats = -1, bits = -1;
};

// Half-open range of pixels along one axis.
struct Span {
    int begin, end;
    int count; // what a mean divides by along this axis
};

class Program {
  public:
    Program(int channels, int height, int width, const std::string &isa);
    ~Program();

    // Values are numbered from 0, the input.
    // `weight`: bits, each row of kernel_h * kernel_w * (channels / groups) bits padded to a byte.
    Outputs binary_conv(int input, int channels, const Window &, const std::uint8_t *weight, const Epilogue &);
    Outputs float_conv(int input, int channels, const Window &, const float *weight, const Epilogue &);
    Outputs int8_conv(int input, int channels, const Window &, const std::int8_t *weight, const Epilogue &);
    Outputs bf16_conv(int input, int channels, const Window &, const std::uint16_t *weight, const Epilogue &);
    int sign(int input);
    int unpack(int input);
    int quantize(int input, float scale);
    int round(int input); // to bf16
    int affine(int input, const float *mul, const float *bias);
    int clamp(int input, float low, float high);
    int add(int a, int b);
    int flatten(int input); // channel, row, column, as PyTorch
    int pool(int input, Reduce, const std::vector<Span> &rows, const std::vector<Span> &cols);

    void finish(int output);
    void run(const float *input, float *output, std::int64_t images, int threads) const;

    const Value &value(int index) const;
    const Kernels &kernels() const { return kernels_; }
    std::size_t workspace_bytes() const { return bytes_; }
    int chunk() const { return chunk_; }
    int output() const { return output_; }

    // For operators.
    int add_value(Kind, std::int64_t height, std::int64_t width, std::int64_t channels);
    void touch(int value); // the operator that is being built reads or writes it
    void write_over(int value, int dead); // element for element, each read before it is written
    void widen_margin(int value, const std::array<int, 4> &padding);
    int add_op(std::unique_ptr<Op>);
    const Value &checked(int value, Kind kind, const char *what) const;
    // at(image, y, x) for all pixels of a pass, row-major; equal lists are kept once.
    template <class At> const std::int32_t *places(int height, int width, const At &at) {
        take_places(std::int64_t(chunk_) * height * width);
        std::vector<std::int32_t> list;
        list.reserve(std::size_t(chunk_) * height * width);
        for (int n = 0; n < chunk_; ++n)
            for (int y = 0; y < height; ++y)
                for (int x = 0; x < width; ++x) list.push_back(static_cast<std::int32_t>(at(n, y, x)));
        return places_.insert(std::move(list)).first->data();
    }

  private:
    struct Workspace;
    void plan();
    void take_places(std::int64_t count); // throws where there would be too many
    std::unique_ptr<Workspace> take() const;
    void put(std::unique_ptr<Workspace>) const;

    const Kernels &kernels_;
    std::vector<Value> values_;
    std::vector<std::unique_ptr<Op>> ops_;
    std::set<std::vector<std::int32_t>> places_;
    std::int64_t place_count_ = 0;
    int output_ = -1;
    std::size_t bytes_ = 0;
    int chunk_ = 1;

    mutable std::mutex mutex_;
    mutable std::vector<std::unique_ptr<Workspace>> idle_;
};

} // namespace stompp
