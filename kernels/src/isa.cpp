#include "isa.hpp"

#include <stdexcept>

namespace stompp {
namespace {

std::vector<const Kernels *> available() {
    std::vector<const Kernels *> found;
#ifdef STOMPP_X86
    // These ask the operating system too, whether it saves the wide registers.
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avx512vnni")) {
        // Another maker's instruction may round otherwise, and then answers would depend on the CPU. And some are slow:
        // then it comes second, to be had by its name.
        static const bool bf16 = __builtin_cpu_supports("avx512bf16") && bf16_instruction_agrees();
        static const bool fast = bf16 && bf16_instruction_is_fast();
        static const Kernels with_bf16 = [] {
            Kernels kernels = avx512_kernels;
            kernels.name = "avx512_bf16";
            kernels.bf16_conv = bf16_conv_by_instruction;
            return kernels;
        }();
        found.push_back(&avx512_kernels);
        if (bf16) found.insert(fast ? found.begin() : found.end(), &with_bf16);
    }
    if (avx2) found.push_back(&avx2_kernels);
#endif
    found.push_back(&portable_kernels);
    return found;
}

} // namespace

std::vector<std::string> available_isas() {
    std::vector<std::string> names;
    for (const Kernels *kernels : available()) names.emplace_back(kernels->name);
    return names;
}

const Kernels &kernels_for(const std::string &isa) {
    std::string known;
    for (const Kernels *kernels : available()) {
        if (isa == "auto" || isa == kernels->name) return *kernels;
        known += std::string(known.empty() ? "" : ", ") + kernels->name;
    }
    throw std::invalid_argument("isa '" + isa + "' is not available here; use auto, " + known);
}

} // namespace stompp
