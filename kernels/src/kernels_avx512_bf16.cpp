// The one kernel for AVX-512 with BF16 (Cooper Lake, Zen 4, Sapphire Rapids and later) that AVX-512 alone has not.
#include <x86intrin.h>

#include "dense_avx512.hpp"

namespace stompp {
namespace {

struct Bf16Pairs : FloatAvx512 {
    // Not the intrinsic, for the same reason as with vpdpbusd.
    static void add(Sum &acc, __m512i x, __m512i w) { asm("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(x), "v"(w)); }
};

// Ticks for many steps on twelve sums, the least of several tries.
template <class Step> std::uint64_t ticks() {
    std::uint64_t least = ~std::uint64_t(0);
    for (int attempt = 0; attempt < 10; ++attempt) {
        __m512 sums[12];
        __m512i x = _mm512_setzero_si512();
        STOMPP_UNROLL for (int i = 0; i < 12; ++i) sums[i] = _mm512_setzero_ps();
        const std::uint64_t begin = __rdtsc();
        for (int round = 0; round < 200; ++round) {
            asm volatile("" : "+v"(x)); // a new value, for all GCC knows
            STOMPP_UNROLL for (int i = 0; i < 12; ++i) Step::add(sums[i], x, x);
        }
        STOMPP_UNROLL for (int i = 0; i < 12; ++i) asm volatile("" : : "v"(sums[i]));
        const std::uint64_t taken = __rdtsc() - begin;
        least = taken < least ? taken : least;
    }
    return least;
}

float as_float(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

} // namespace

void bf16_conv_by_instruction(const Conv &conv, const Block &block, std::int64_t begin, std::int64_t end) {
    sweep<DenseAvx512<Bf16Pairs>, Mode::arithmetic>(conv, block, begin, end);
}

// Chains of sums by the instruction and by plain arithmetic, on numbers that a network may hold: near each other, so that
// order and number of roundings tell, and from all of the range, so that sums cancel and overflow.
bool bf16_instruction_agrees() {
    constexpr int kChains = 192, kPairs = 40;
    std::uint32_t state = 1;
    const auto next = [&](std::uint32_t below) { // xorshift
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        return state % below;
    };
    for (int chain = 0; chain < kChains; ++chain) {
        const std::uint32_t least = chain % 3 ? 124 : 77, exponents = chain % 3 ? 6 : 114; // biased by 127
        const auto half = [&] { return next(16) ? next(2) << 15 | (least + next(exponents)) << 7 | next(128) : 0u; };
        __m512 sums = _mm512_setzero_ps();
        float plain[16] = {}, got[16];
        for (int pair = 0; pair < kPairs; ++pair) {
            std::uint32_t x[16], w[16];
            for (int i = 0; i < 16; ++i) {
                x[i] = half() | half() << 16;
                w[i] = half() | half() << 16;
                plain[i] += as_float(x[i] & 0xffff0000u) * as_float(w[i] & 0xffff0000u);
                plain[i] += as_float(x[i] << 16) * as_float(w[i] << 16);
            }
            Bf16Pairs::add(sums, _mm512_loadu_si512(x), _mm512_loadu_si512(w));
            _mm512_storeu_ps(got, sums);
            for (int i = 0; i < 16; ++i)
                if (!(got[i] == plain[i])) return false;
        }
    }
    return true;
}

// It does the work of two fma, on Zen 4 in the time of one, on Zen 5 of two, on Sapphire Rapids of four. In the time of two
// it is still the faster one: it takes half as many loads.
bool bf16_instruction_is_fast() { return ticks<Bf16Pairs>() < 3 * ticks<FloatAvx512>(); }

} // namespace stompp
