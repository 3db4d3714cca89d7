// The check of elements that should be in a window which the caller has named: multiples of 2^low,
// below 2^high.
//
// To add 2^(low + FRACTION), and to take it away, rounds a smaller number to a multiple of 2^low;
// larger ones are multiples.
//   float, low = 0: 0.75 + 2^23 = 2^23 + 1, and 1 is not 0.75
#pragma once

#include "fixed.hpp"

namespace distscan {

// The bits of floats of type F as integers, which compare as magnitudes do.
template <class F>
struct Floats {
  using Bits = Word<F>;
  using R = Register<Bits>;
  static constexpr int FRACTION = Format<F>::PRECISION - 1, LOWEST = Format<F>::LOWEST;
  static constexpr Bits ABSOLUTE = Bits(~(1ull << (8 * sizeof(F) - 1)));
  static constexpr Bits HIDDEN = Bits(1ull << FRACTION), INFINITE = ABSOLUTE - HIDDEN + 1;

  static INLINE Register<F> same(Bits bits) { return (Register<F>)(R{} + bits); }
  static INLINE R magnitude(Register<F> x) { return (R)x & ABSOLUTE; }

  // The bits of 2^exponent; of infinity, or of the least power, where the type has no such one.
  static Bits power_of_2(int64 exponent) {
    if (exponent > LOWEST + FRACTION + (INFINITE >> FRACTION) - 2) return INFINITE;
    if (exponent >= LOWEST + FRACTION) return (exponent - LOWEST - FRACTION + 1) << FRACTION;
    return Bits(1) << (exponent > LOWEST ? exponent - LOWEST : 0);
  }
};

// Registers of the floats that have the numbers of x: float16 and bfloat16 are read as float32.
template <class X>
using FloatOf = typename Choose<same<X, double>, double, float>::type;
template <class X>
INLINE Register<FloatOf<X>> floats_at(const X* x) {
  if constexpr (same<X, half>)
    return from_half(x);
  else if constexpr (same<X, bfloat16>)
    return from_bfloat16(x);
  else
    return load<Register<FloatOf<X>>>(x);
}

// Whether any of some elements is outside, or not finite. Where 2^(low + FRACTION) is beyond the
// type, every one counts as outside: Python looks again.
template <class X>
NOINLINE bool any_outside(const X* x, int64 count, int64 low, int64 high) {
  using F = Floats<FloatOf<X>>;
  using R = Register<FloatOf<X>>;
  constexpr int L = LANES<FloatOf<X>>;
  const R whole = F::same(F::power_of_2(low + F::FRACTION));
  typename F::R off{}, highest{};  // bits of what the rounding takes away
  const auto look = [&](R floats) {
    const auto bits = F::magnitude(floats);
    const R size = (R)bits, smaller = size < whole ? size : whole;
    off |= (typename F::R)(smaller + whole - whole - smaller);
    highest = bits > highest ? bits : highest;
  };
  int64 i = 0;
  for (; i + L <= count; i += L) look(floats_at(x + i));
  if (i < count) {
    X rest[L] = {};
    memcpy(rest, x + i, (count - i) * sizeof(X));
    look(floats_at(rest));
  }
  off |= highest >= F::power_of_2(high);
  uint64 words[sizeof off / 8], any = 0;
  memcpy(words, &off, sizeof off);
  for (const uint64 word : words) any |= word;
  return any != 0;
}

// Check elements of a job whose elements are to be checked.
template <class X>
INLINE void check(const Job& job, const X* x, int64 count) {
  if (job.outside && any_outside(x, count, job.low, job.high))
    __atomic_store_n(job.outside, 1, __ATOMIC_RELAXED);
}

}  // namespace distscan
