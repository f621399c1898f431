// The Python face of the kernels.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>

#include "program.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace stompp {
namespace {

template <class T> using Array = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;
using Clamp = std::optional<std::pair<float, float>>;
using SpanTuple = std::tuple<int, int, int>;

template <class T> const T *of_size(const Array<T> &array, std::int64_t size, const char *name) {
    if (static_cast<std::int64_t>(array.size()) != size)
        throw std::invalid_argument(std::string(name) + " has " + std::to_string(array.size()) + " elements, " +
                                    std::to_string(size) + " are needed");
    return array.data();
}

std::int64_t terms(const Program &program, int input, const Window &window) {
    if (window.groups < 1) throw std::invalid_argument("conv: groups must be at least 1");
    for (int k : window.kernel)
        if (k < 1 || k > 4096) throw std::invalid_argument("conv: kernel out of range");
    return std::int64_t(window.kernel[0]) * window.kernel[1] * (program.value(input).channels / window.groups);
}


Epilogue epilogue(int channels, const std::optional<Array<float>> &mul, const std::optional<Array<float>> &bias,
                  int residual, const Clamp &clamp, bool want_float, bool want_bits) {
    Epilogue e;
    if (mul.has_value() != bias.has_value()) throw std::invalid_argument("conv: mul and bias come together");
    if (mul) {
        e.mul = of_size(*mul, channels, "mul");
        e.bias = of_size(*bias, channels, "bias");
    }
    e.residual = residual;
    if (clamp) {
        e.clamp = true;
        e.low = clamp->first;
        e.high = clamp->second;
    }
    e.want_float = want_float;
    e.want_bits = want_bits;
    return e;
}

std::pair<int, int> as_pair(const Outputs &outputs) { return {outputs.floats, outputs.bits}; }

// A convolution of numbers of type T.
template <class T>
void def_conv(nb::class_<Program> &program, const char *name,
              Outputs (Program::*conv)(int, int, const Window &, const T *, const Epilogue &)) {
    program.def(
        name,
        [conv](Program &self, int input, int channels, const Array<T> &weight, std::array<int, 2> kernel,
               std::array<int, 2> stride, std::array<int, 2> dilation, std::array<int, 4> padding, int groups,
               const std::optional<Array<float>> &mul, const std::optional<Array<float>> &bias, int residual,
               const Clamp &clamp, bool want_float, bool want_bits) {
            const Window window{kernel, stride, dilation, padding, groups};
            const Epilogue e = epilogue(channels, mul, bias, residual, clamp, want_float, want_bits);
            const std::int64_t row = terms(self, input, window);
            return as_pair((self.*conv)(input, channels, window, of_size(weight, channels * row, "weight"), e));
        },
        "input"_a, "channels"_a, "weight"_a, nb::kw_only(), "kernel"_a, "stride"_a, "dilation"_a, "padding"_a, "groups"_a,
        "mul"_a, "bias"_a, "residual"_a = -1, "clamp"_a = nb::none(), "want_float"_a = false, "want_bits"_a = false);
}

std::vector<Span> spans(const std::vector<SpanTuple> &tuples) {
    std::vector<Span> result;
    for (const auto &[begin, end, count] : tuples) result.push_back({begin, end, count});
    return result;
}

} // namespace
} // namespace stompp

NB_MODULE(_kernels, m) {
    using namespace stompp;
    m.doc() = "Packed binary networks: a Program is built operator by operator, then run. Values are numbered from 0, the input.";
    m.def("available_isas", &available_isas, "Instruction sets this CPU can run, best first.");

    m.def(
        "register_loop",
        [](const std::string &isa, std::int64_t rounds) {
            const Kernels &kernels = kernels_for(isa);
            if (!kernels.register_loop) throw std::invalid_argument("isa '" + isa + "' has no register loop");
            nb::gil_scoped_release release;
            return kernels.register_loop(rounds);
        },
        "isa"_a, "rounds"_a,
        "Does the arithmetic of the binary kernel on registers alone and returns the operations done, for benchmarks.");

    nb::class_<Program> program(m, "Program");
    def_conv(program, "float_conv", &Program::float_conv);
    def_conv(program, "int8_conv", &Program::int8_conv);
    def_conv(program, "bf16_conv", &Program::bf16_conv); // weights are the upper halves of floats
    program
        .def(nb::init<int, int, int, const std::string &>(), "channels"_a, "height"_a, "width"_a, "isa"_a = "auto")
        .def(
            "binary_conv",
            [](Program &self, int input, int channels, const Array<std::uint8_t> &weight, std::array<int, 2> kernel,
               std::array<int, 2> stride, std::array<int, 2> dilation, std::array<int, 4> padding, int groups,
               const std::optional<Array<std::int32_t>> &threshold, const std::optional<Array<float>> &mul,
               const std::optional<Array<float>> &bias, int residual, const Clamp &clamp, bool want_float, bool want_bits) {
                const Window window{kernel, stride, dilation, padding, groups};
                Epilogue e = epilogue(channels, mul, bias, residual, clamp, want_float, want_bits);
                if (threshold)
                    e.threshold = of_size(*threshold, (residual >= 0 ? 2 : 1) * std::int64_t(channels), "threshold");
                const std::int64_t row = (terms(self, input, window) + 7) / 8;
                return as_pair(self.binary_conv(input, channels, window, of_size(weight, channels * row, "weight"), e));
            },
            "input"_a, "channels"_a, "weight"_a, nb::kw_only(), "kernel"_a, "stride"_a, "dilation"_a, "padding"_a,
            "groups"_a, "threshold"_a = nb::none(), "mul"_a = nb::none(), "bias"_a = nb::none(), "residual"_a = -1,
            "clamp"_a = nb::none(), "want_float"_a = false, "want_bits"_a = false)
        .def("sign", &Program::sign, "input"_a)
        .def("unpack", &Program::unpack, "input"_a)
        .def("quantize", &Program::quantize, "input"_a, "scale"_a)
        .def("round", &Program::round, "input"_a)
        .def(
            "affine",
            [](Program &self, int input, const Array<float> &mul, const Array<float> &bias) {
                const int channels = self.value(input).channels;
                return self.affine(input, of_size(mul, channels, "mul"), of_size(bias, channels, "bias"));
            },
            "input"_a, "mul"_a, "bias"_a)
        .def("clamp", &Program::clamp, "input"_a, "low"_a, "high"_a)
        .def("add", &Program::add, "a"_a, "b"_a)
        .def("flatten", &Program::flatten, "input"_a)
        .def(
            "pool",
            [](Program &self, int input, const std::string &reduce, const std::vector<SpanTuple> &rows,
               const std::vector<SpanTuple> &cols) {
                if (reduce != "max" && reduce != "mean") throw std::invalid_argument("pool: reduce is max or mean");
                return self.pool(input, reduce == "max" ? Reduce::max : Reduce::mean, spans(rows), spans(cols));
            },
            "input"_a, "reduce"_a, "rows"_a, "cols"_a)
        .def("finish", &Program::finish, "output"_a)
        .def(
            "run",
            [](const Program &self, const Array<float> &input,
               nb::ndarray<float, nb::c_contig, nb::device::cpu> output, int threads) {
                if (self.output() < 0) throw std::invalid_argument("the program is not finished");
                const Value &in = self.value(0), &out = self.value(self.output());
                const std::int64_t size = std::int64_t(in.height) * in.width * in.channels;
                if (input.ndim() == 0 || static_cast<std::int64_t>(input.size()) != std::int64_t(input.shape(0)) * size)
                    throw std::invalid_argument("the input is not (n, channels, height, width)");
                const std::int64_t images = static_cast<std::int64_t>(input.shape(0));
                if (static_cast<std::int64_t>(output.size()) !=
                    images * std::int64_t(out.height) * out.width * out.channels)
                    throw std::invalid_argument("the output has another size");
                const float *from = input.data();
                float *to = output.data();
                nb::gil_scoped_release release;
                self.run(from, to, images, threads);
            },
            "input"_a, "output"_a, "threads"_a = 1)
        .def("shape", [](const Program &self, int value) {
            const Value &v = self.value(value);
            return std::make_tuple(v.channels, v.height, v.width);
        })
        .def_prop_ro("output", &Program::output)
        .def_prop_ro("isa", [](const Program &self) { return std::string(self.kernels().name); })
        .def_prop_ro("workspace_bytes", &Program::workspace_bytes)
        .def_prop_ro("images_per_pass", &Program::chunk);
}
