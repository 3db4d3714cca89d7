// The lowest bit of floats, and the check of elements that should be in a window which the caller
// has named: multiples of 2^low, below 2^high.
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

  // The lowest bit of each, as the bits of a float, less 1: so that 0 has the largest of all. x
  // with its lowest bit cleared, y = bits & (bits - 1), is a float, too. x - y is the lowest bit as
  // a number, without a rounding. A number with no bits but the hidden one is its own lowest bit.
  //   x = 1.5 = 1.1000... has y = 1.0, x - y = 0.5
  static INLINE R lowest_bit(Register<F> x) {
    const R bits = (R)x;
    const auto cleared = (Register<F>)(bits & (bits - 1));
    const Register<F> bit = (bits & (HIDDEN - 1)) != 0 ? x - cleared : x;
    return (((R)bit & ABSOLUTE) - 1) & ABSOLUTE;
  }
  static INLINE R magnitude(Register<F> x) { return (R)x & ABSOLUTE; }

  // The bits of 2^exponent; of infinity, if the type has no such power; of the least power it has.
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

// Whether any of some elements is outside of [2^low, 2^high), or not finite.
template <class X>
NOINLINE bool any_outside(const X* x, int64 count, int64 low, int64 high) {
  using F = Floats<FloatOf<X>>;
  constexpr int L = LANES<FloatOf<X>>;
  const typename F::Bits finest = F::power_of_2(low) - 1, top = F::power_of_2(high);
  typename F::R outside{};
  const auto look = [&](Register<FloatOf<X>> floats) {
    outside |= (typename F::R)(F::lowest_bit(floats) < finest);
    outside |= (typename F::R)(F::magnitude(floats) >= top);
  };
  int64 i = 0;
  for (; i + L <= count; i += L) look(floats_at(x + i));
  if (i < count) {
    X rest[L] = {};
    memcpy(rest, x + i, (count - i) * sizeof(X));
    look(floats_at(rest));
  }
  bool any = false;
  for (int k = 0; k < L; ++k) any |= outside[k] != 0;
  return any;
}

// Check elements of a job whose elements are to be checked.
template <class X>
INLINE void check(const Job& job, const X* x, int64 count) {
  if (job.outside && any_outside(x, count, job.low, job.high))
    __atomic_store_n(job.outside, 1, __ATOMIC_RELAXED);
}

}  // namespace distscan
