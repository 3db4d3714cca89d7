// Floats as integers of one or two words: an integer k stands for k * 2^lowest. Sums of integers
// are exact, in any order.
//
// Integers of a tile lie in an array for each word. So vectors convert elements and round sums,
// whatever adds them between. 2^25 elements on one core of an AMD EPYC (Zen 5), nanoseconds each:
//
//                        numpy.cumsum   AVX-512     AVX2        SSE2
//   float32, 1 / 2 words      2.8        0.3 / 1.1   0.8 / 2.4   2.0 / 9.7
//   float64, 1 / 2 words      2.8        0.35 / 1.0  0.6 / 1.8   1.0 / 8.4
#pragma once

#include "convert.hpp"
#include "job.hpp"

namespace distscan {

// An integer of two words in memory, in the two's complement.
struct TwoWords {
  uint64 low, high;
};
template <>
struct LaneOf<TwoWords> {
  using type = uint64;
};

// The sum of what Chain combines.
struct WideSum : Operator<TwoWords, true> {
  using R = Register<uint64>;
  static constexpr uint64 IDENTITY = 0;
  static INLINE R combine(R a, R b) {
    const R sum = a + b;
    return sum - (R)move_up<8>((Register<int64>)(sum < a));  // the carry of each low word
  }
};

// The running value in registers, and how Chain combines it in memory.
template <int WORDS>
struct Running;
template <>
struct Running<1> {
  using Value = uint64;
  using Op = Sum<int64>;
};
template <>
struct Running<2> {
  using Value = unsigned __int128;
  using Op = WideSum;
};
template <int WORDS>
using Integer = typename Running<WORDS>::Value;
template <int WORDS>
using Stored = typename Running<WORDS>::Op::E;

// A running value in memory; 0 if there is none.
template <int WORDS>
INLINE Integer<WORDS> value_in(const Stored<WORDS>* memory) {
  Integer<WORDS> value = 0;
  if (memory) memcpy(&value, memory, sizeof value);
  return value;
}
template <int WORDS>
INLINE void put_in(Stored<WORDS>* memory, Integer<WORDS> value) {
  memcpy(static_cast<void*>(memory), &value, sizeof value);
}

// Of a float type: the bits of its significand, the exponent of its lowest bit of all, and an
// integer of its size.
template <class X>
struct Format;
template <>
struct Format<half> {
  static constexpr int PRECISION = 11, LOWEST = -24;
  using Bits = unsigned short;
};
template <>
struct Format<bfloat16> {
  static constexpr int PRECISION = 8, LOWEST = -133;
  using Bits = unsigned short;
};
template <>
struct Format<float> {
  static constexpr int PRECISION = 24, LOWEST = -149;
  using Bits = unsigned;
};
template <>
struct Format<double> {
  static constexpr int PRECISION = 53, LOWEST = -1074;
  using Bits = uint64;
};

// Integers in the order of memory. Behind the last one, zeros fill up what is rounded at once.
constexpr int TILE_SIZE = 256, ROUNDED_AT_ONCE = LANES<float>;
template <int WORDS>
struct Tile {
  alignas(VECTOR) uint64 word[WORDS][TILE_SIZE];

  INLINE Integer<WORDS> at(int64 i) const {
    if constexpr (WORDS == 1)
      return word[0][i];
    else
      return Integer<2>(word[1][i]) << 64 | word[0][i];
  }
  INLINE void put(int64 i, Integer<WORDS> value) {
    word[0][i] = uint64(value);
    if constexpr (WORDS == 2) word[1][i] = uint64(value >> 64);
  }
};

using Words = Register<uint64>;

INLINE Words same_words(uint64 word) { return Words{} + word; }

// Shifts of lanes. A count of 64 or more, as an unsigned number, gives 0.
template <bool LEFT>
INLINE Words shifted(Words r, Words count) {
#if defined __AVX512BW__
  return LEFT ? (Words)_mm512_sllv_epi64((__m512i)r, (__m512i)count)
              : (Words)_mm512_srlv_epi64((__m512i)r, (__m512i)count);
#elif defined __AVX2__
  return LEFT ? (Words)_mm256_sllv_epi64((__m256i)r, (__m256i)count)
              : (Words)_mm256_srlv_epi64((__m256i)r, (__m256i)count);
#else
  Words result;
  for (int i = 0; i < LANES<uint64>; ++i)
    result[i] = count[i] > 63 ? 0 : LEFT ? r[i] << count[i] : r[i] >> count[i];
  return result;
#endif
}
INLINE Words up(Words r, Words count) { return shifted<true>(r, count); }
INLINE Words down(Words r, Words count) { return shifted<false>(r, count); }

// The integers of a register of elements, into place i of a tile. What is not finite is 0.
//   0.75 = 3 * 2^-2; with lowest = -4, it is 12: its significand 1.1000... is shifted to there
template <class X, int WORDS>
INLINE void load_register(const X* x, int64 lowest, Tile<WORDS>& tile, int i) {
  using F = Format<X>;
  constexpr int SIZE = 8 * sizeof(X), FRACTION = F::PRECISION - 1;
  constexpr uint64 HIDDEN = 1ull << FRACTION, ONES = (1ull << (SIZE - F::PRECISION)) - 1;
  const Words bits = widened<uint64>(reinterpret_cast<const typename F::Bits*>(x));
  const Words sign = (Words)((Register<int64>)(bits << (64 - SIZE)) >> 63);
  const Words exponent = bits >> FRACTION & ONES;
  Words whole = bits & (HIDDEN - 1);
  whole = exponent != 0 ? whole | HIDDEN : whole;
  whole = exponent == ONES ? Words{} : whole;
  // Subnormal numbers have the exponent of the smallest normal ones.
  const Words shift = (exponent == 0 ? exponent + 1 : exponent) + uint64(F::LOWEST - 1 - lowest);
  const Words low = up(whole, shift) | down(whole, -shift);
  const Words negated = (low ^ sign) - sign;
  store(&tile.word[0][i], negated);
  if constexpr (WORDS == 2) {
    const Words high = up(whole, shift - 64) | down(whole, 64 - shift);
    const Words carry = (Words)(low == 0) & sign;  // of ~low + 1
    store(&tile.word[1][i], (high ^ sign) - carry);
  }
}

using Doubles = Register<double>;

// 2^exponent as a double, subnormal ones among them.
INLINE double power_of_2(int64 exponent) {
  const bool normal = exponent >= -1022;
  const uint64 bits = normal ? uint64(exponent + 1023) << 52 : 1ull << (exponent + 1074);
  return load<double>(&bits);
}

// Doubles that are integers below 2^63 in magnitude as such.
INLINE Words integers_of(Doubles r) {
#if defined __AVX512DQ__
  return (Words)_mm512_cvttpd_epi64((__m512d)r);
#else
  // Rounded to a multiple of 2^32, and the rest: each stands in the last bits of a sum.
  constexpr double HIGH = 0x1.8p84, LOW = 0x1.8p52;
  const Doubles high = r + HIGH, low = r - (high - HIGH) + LOW;
  return ((Words)high << 32) + (Words)low - 0x4338000000000000;
#endif
}

// The same as `load_register` for one word, by multiplication with 1 / 2^lowest, which is exact.
template <class X>
INLINE void multiply_register(const X* x, double scale, Tile<1>& tile, int i) {
  Doubles r;
  if constexpr (same<X, double>)
    r = load<Doubles>(x);
  else
    r = widened<double>(x);
  r = r - r == 0 ? r * scale : Doubles{};  // infinities and NaN minus themselves are NaN
  store(&tile.word[0][i], integers_of(r));
}

// The integers of `count` elements, at most a tile.
template <class X, int WORDS>
NOINLINE void load_tile(const X* x, int64 count, int64 lowest, bool reverse, Tile<WORDS>& tile) {
  constexpr int L = LANES<uint64>;
  const auto each = [&](auto load_at) {
    int64 i = 0;
    for (; i + L <= count; i += L) {
      prefetch(x + i, reverse);
      load_at(x + i, int(i));
    }
    if (i < count) {
      X rest[L] = {};
      memcpy(rest, x + i, (count - i) * sizeof(X));
      load_at(rest, int(i));
      i += L;
    }
    static_assert(ROUNDED_AT_ONCE == 2 * L);
    if (i % ROUNDED_AT_ONCE == 0) return;
    for (auto& words : tile.word) store(&words[i], Words{});
  };
  if constexpr (WORDS == 1 && (same<X, float> || same<X, double>)) {
    if (lowest >= -1022 && lowest <= 1022) {
      const double scale = power_of_2(-lowest);
      return each([&](const X* from, int i) { multiply_register(from, scale, tile, i); });
    }
  }
  each([&](const X* from, int i) { load_register(from, lowest, tile, i); });
}

// Add registers of integers to sums, which may have any address: sum[w] is their word w.
template <int WORDS>
INLINE void add_register(const Tile<WORDS>& tile, int i, Words (&sum)[WORDS]) {
  const Words added = load<Words>(&tile.word[0][i]);
  sum[0] += added;
  if constexpr (WORDS == 2) sum[1] += load<Words>(&tile.word[1][i]) - (Words)(sum[0] < added);
}

// The sum of `count` integers.
template <int WORDS>
NOINLINE Integer<WORDS> total_of(const Tile<WORDS>& tile, int64 count) {
  Words lanes[WORDS] = {};
  for (int64 i = 0; i < count; i += LANES<uint64>) add_register(tile, int(i), lanes);
  Tile<WORDS> sums;
  for (int w = 0; w < WORDS; ++w) store(sums.word[w], lanes[w]);
  Integer<WORDS> total = 0;
  for (int i = 0; i < LANES<uint64>; ++i) total += sums.at(i);
  return total;
}

// Floats are computed as IEEE has it while this lives: programs may flush subnormal numbers to 0.
class DefaultFloats {
 public:
#if defined __SSE2__
  DefaultFloats() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~DefaultFloats() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined __aarch64__
  DefaultFloats() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(uint64(0)));
  }
  ~DefaultFloats() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }

 private:
  uint64 saved_;
#endif
};

}  // namespace distscan
