// The bits that floats need: the lowest bit of all, the highest exponent, and what is special.
//
// x with its lowest bit cleared, y = bits & (bits - 1), is a float, too. x - y is the lowest bit as
// a number, without a rounding. A number with no bits but the hidden one is its own lowest bit.
//   x = 1.5 = 1.1000... has y = 1.0, x - y = 0.5
// So the window is the least of these numbers, and the largest |x|. Float16 and bfloat16 are read
// as float32, which has their numbers.
//
// Share of the speed at which one core of an AMD EPYC (Zen 5) reads 2^27 bytes. If all 2048
// elements there is an infinity, it takes two to three times as long; float64 by SSE2, eight times.
//
//              AVX-512  AVX2  SSE2
//   float32      1.0    .95   .24
//   float64      1.0    .73   .14
//   float16      .70    .43   .06
#include "window.hpp"

#include "outside.hpp"

namespace distscan {

template <class F>
class Bounds : Floats<F> {
 public:
  using typename Floats<F>::Bits;
  using typename Floats<F>::R;
  using Floats<F>::FRACTION, Floats<F>::ABSOLUTE, Floats<F>::HIDDEN, Floats<F>::INFINITE;

  // Take in a register of elements. Finite ones alone: if there are others, `highest` says so.
  INLINE void add(Register<F> x) {
    const R bits = (R)x, size = Floats<F>::magnitude(x);
    const auto cleared = (Register<F>)(bits & (bits - 1));
    const Register<F> bit = (bits & (HIDDEN - 1)) != 0 ? x - cleared : x;
    // Less 1, 0 is the largest of all.
    const R lower = (((R)bit & ABSOLUTE) - 1) & ABSOLUTE;
    least = lower < least ? lower : least;
    highest = size > highest ? size : highest;
    first = bits < first ? bits : first;  // -0.0 is the first of signed integers
  }

  // The same; what is not finite counts as 0.
  INLINE void add_finite(Register<F> x) {
    const R bits = (R)x, size = bits & ABSOLUTE;
    const R infinite = size == INFINITE;
    plus |= infinite & (bits >= 0);
    minus |= infinite & (bits < 0);
    nan |= (R)(size > INFINITE);
    add((Register<F>)(size < INFINITE ? bits : R{}));
  }

  INLINE void join(const Bounds& other) {
    least = other.least < least ? other.least : least;
    highest = other.highest > highest ? other.highest : highest;
    first = other.first < first ? other.first : first;
    plus |= other.plus, minus |= other.minus, nan |= other.nan;
  }

  INLINE bool all_finite() const {
    Bits most = 0;
    for (int i = 0; i < LANES<F>; ++i) most = highest[i] > most ? highest[i] : most;
    return most < INFINITE;
  }

  Found found() const {
    Bits low = ABSOLUTE, high = 0, lowest = 0, specials[3] = {};
    for (int i = 0; i < LANES<F>; ++i) {
      low = least[i] < low ? least[i] : low;
      high = highest[i] > high ? highest[i] : high;
      lowest = first[i] < lowest ? first[i] : lowest;
      specials[0] |= plus[i], specials[1] |= minus[i], specials[2] |= nan[i];
    }
    Found found{0, 0, lowest == Bits(~ABSOLUTE) ? MINUS_ZERO : 0};
    found.special |= (specials[0] ? PLUS : 0) | (specials[1] ? MINUS : 0);
    found.special |= specials[2] ? NOT_A_NUMBER : 0;
    if (high > 0) found.low = exponent_of(low + 1), found.high = exponent_of(high) + 1;
    return found;
  }

  R least = R{} + ABSOLUTE, highest{}, first{}, plus{}, minus{}, nan{};

 private:
  // The exponent of the first bit of a positive float.
  static int64 exponent_of(Bits bits) {
    if (bits >= HIDDEN) return (bits >> FRACTION) - 1 + Format<F>::LOWEST + FRACTION;
    return Format<F>::LOWEST + 63 - __builtin_clzll(bits);
  }
};

// Elements that are looked at together. If some are not finite, they are looked at once more.
constexpr int64 MANY = 2048;

template <class X>
void find_window(const void* from, int64 count, Found& found) {
  using F = FloatOf<X>;
  constexpr int L = LANES<F>, WAYS = 4;  // so many minima do not wait for each other
  const DefaultFloats floats;
  Bounds<F> all;
  for (int64 done = 0; done < count; done += MANY) {
    const X* const x = static_cast<const X*>(from) + done;
    const int64 size = min_of(MANY, count - done), whole = size / L * L;
    X rest[L] = {};
    memcpy(rest, x + whole, (size - whole) * sizeof(X));
    Bounds<F> ways[WAYS];
    int64 i = 0;
    for (; i + WAYS * L <= whole; i += WAYS * L) {
      UNROLL
      for (int k = 0; k < WAYS; ++k) {
        prefetch(x + i + k * L, false);
        ways[k].add(floats_at(x + i + k * L));
      }
    }
    for (; i < whole; i += L) ways[0].add(floats_at(x + i));
    ways[0].add(floats_at(rest));
    UNROLL
    for (int k = 1; k < WAYS; ++k) ways[0].join(ways[k]);
    if (!ways[0].all_finite()) {
      ways[0] = {};
      for (i = 0; i < whole; i += L) ways[0].add_finite(floats_at(x + i));
      ways[0].add_finite(floats_at(rest));
    }
    all.join(ways[0]);
  }
  found = all.found();
}

}  // namespace distscan

using namespace distscan;

extern "C" __attribute__((visibility("default"))) const Window distscan_windows[] = {
    {"float16", find_window<half>},
    {"bfloat16", find_window<bfloat16>},
    {"float32", find_window<float>},
    {"float64", find_window<double>},
    {},
};
