// log(exp(a) + exp(b)) on registers, by sums, products and quotients alone: so every level of
// instructions gives the same bits. And its scan of a tile, with one exponential and one logarithm
// for each element.
#pragma once

#include "tile.hpp"

namespace distscan {

#define UNROLL_TERMS _Pragma("GCC unroll 16")

// Numbers of the series, and of the reductions to them, for each type.
template <class T>
struct Series;
template <>
struct Series<float> {
  using Bits = int;
  static constexpr int EXP = 7, ONE_PLUS = 7, LOG = 5;  // terms: errors of less than 2e-8
  static constexpr float FAR = 87;                      // exp(-87) is a normal number
  static constexpr float ROUND = 0x1.8p23f;             // added, it rounds to an integer
  static constexpr float LN2_HIGH = 0x1.62e4p-1f;       // its products with exponents are exact
  static constexpr float LN2_LOW = 0x1.7f7d1cp-20f;     // the rest
  static constexpr int MANTISSA = 23, BIAS = 127;
  static constexpr Bits HALF_ROOT = 0x3f3504f3;  // the bits of the root of 1/2
};
template <>
struct Series<double> {
  using Bits = int64;
  static constexpr int EXP = 13, ONE_PLUS = 16, LOG = 11;  // errors of less than 1e-17
  static constexpr double FAR = 708;
  static constexpr double ROUND = 0x1.8p52;
  static constexpr double LN2_HIGH = 0x1.62e42feep-1;
  static constexpr double LN2_LOW = 0x1.a39ef35793c76p-33;
  static constexpr int MANTISSA = 52, BIAS = 1023;
  static constexpr Bits HALF_ROOT = 0x3fe6a09e667f3bcd;
};

constexpr double one_by_odd(int i) { return 1.0 / (2 * i + 1); }
constexpr double one_by_factorial(int i) { return i > 1 ? one_by_factorial(i - 1) / i : 1; }
constexpr double LOG2_E = 1.4426950408889634074, LN2 = 0.69314718055994530942;

// FACTOR(0) + FACTOR(1) x + ... up to the power DEGREE. Even and odd powers have a chain each, so
// that half as many steps wait for each other.
template <int DEGREE, double FACTOR(int), class R, class T = decltype(R{}[0] + 0)>
INLINE R polynomial(R x) {
  const R square = x * x;
  R sums[2] = {R{} + T(FACTOR(DEGREE)), R{} + T(FACTOR(DEGREE - 1))};
  UNROLL_TERMS
  for (int i = DEGREE - 2; i >= 0; --i)
    sums[(DEGREE - i) % 2] = sums[(DEGREE - i) % 2] * square + T(FACTOR(i));
  return sums[DEGREE % 2] + x * sums[(DEGREE + 1) % 2];
}

// exp(-x) for 0 <= x <= FAR: 2^-k exp(-r), with x = k ln 2 + r and |r| <= ln(2) / 2.
template <class T>
INLINE Register<T> exp_minus(Register<T> x) {
  using S = Series<T>;
  using B = typename S::Bits;
  const Register<T> shifted = x * T(LOG2_E) + S::ROUND, k = shifted - S::ROUND;
  const Register<T> r = k * S::LN2_HIGH - x + k * S::LN2_LOW;  // minus r
  const Register<T> series = polynomial<S::EXP, one_by_factorial>(r);
  const auto power = (S::BIAS - ((Register<B>)shifted - (Register<B>)(Register<T>{} + S::ROUND)))
                     << S::MANTISSA;
  return series * (Register<T>)power;
}

// The same for all x >= 0: 0 from FAR on. A NaN stays.
template <class T>
INLINE Register<T> exp_minus_any(Register<T> x) {
  const auto near = x < Series<T>::FAR;
  const Register<T> power = exp_minus<T>(near ? x : Register<T>{});
  return near ? power : x != x ? x : Register<T>{};
}

// artanh(s) for small s: s + s^3 / 3 + s^5 / 5 + ...
template <int TERMS, class T>
INLINE Register<T> artanh(Register<T> s) {
  return s * polynomial<TERMS, one_by_odd>(Register<T>(s * s));
}

// log(1 + e) for 0 <= e <= 1: 2 artanh(s), with s = e / (2 + e) <= 1/3.
template <class T>
INLINE Register<T> log_of_one_plus(Register<T> e) {
  return artanh<Series<T>::ONE_PLUS, T>(e / (e + T(2))) * T(2);
}

// log(x) of normal numbers x > 0: x = 2^k m, with m from the root of 1/2 to the root of 2. A NaN
// stays.
template <class T>
INLINE Register<T> log_of(Register<T> x) {
  using S = Series<T>;
  using B = typename S::Bits;
  using Words = Register<typename Choose<sizeof(T) == 8, uint64_t, uint32_t>::type>;
  constexpr B ONE = B(S::BIAS) << S::MANTISSA;
  const auto bits = (Register<B>)x + (ONE - S::HALF_ROOT);
  // k + BIAS as the lowest bits of 2^MANTISSA: integers of 64 bits have no conversion of their own.
  constexpr T SHIFTED = T(B(1) << S::MANTISSA);
  const auto biased = (Register<B>)((Words)bits >> S::MANTISSA);
  const Register<T> k =
      (Register<T>)(biased + (Register<B>)(Register<T>{} + SHIFTED)) - (SHIFTED + T(S::BIAS));
  const auto m = (Register<T>)((bits & ((B(1) << S::MANTISSA) - 1)) + S::HALF_ROOT);
  const Register<T> series = artanh<S::LOG, T>((m - T(1)) / (m + T(1))) * T(2);
  const Register<T> result = k * S::LN2_HIGH + (series + k * S::LN2_LOW);
  return x != x ? x : result;
}

template <class E>
struct LogAddExp : Operator<E, false> {
  using typename Operator<E, false>::R;
  using Plain = LogAddExp;
  static constexpr E IDENTITY = LOWEST<E>;

  // As NumPy has it: of equal operands, also infinities, ln 2 more; a NaN spreads. Where one
  // operand does not change the other, such as the identity, the other stays as it is.
  static INLINE R combine(R a, R b) {
    const R over = a - b, larger = over > 0 ? a : b;
    const R distance = over > 0 ? over : -over;
    const auto near = distance < Series<E>::FAR;
    const R sum = larger + log_of_one_plus<E>(exp_minus<E>(near ? distance : R{}));
    const R result = near ? sum : over != over ? over : larger;
    return a == b ? a + E(LN2) : result;
  }

  // ---- Tiles -----------------------------------------------------------------------------------

  static constexpr bool TILES = true;
  static constexpr int64 TILE = 2048 / sizeof(E);
  // How far the logarithm of a sum may be below the largest element. Results have the rounding
  // errors of this distance.
  static constexpr E FAR = 16;

  // The total of elements [low, high) of x [n]: one sum of exponentials, in units of the largest.
  // False if that is infinite or NaN.
  template <class X>
  static NOINLINE bool tile_total(const X* x, int64 n, int64 low, int64 high, bool reverse,
                                  Value<E>& total) {
    R largest, sum{};
    if (!find_largest(x, n, low, high, reverse, largest)) return false;
    for (int64 i = low; i < high; i += N) sum = last(sums(x, n, i, high, reverse, largest, sum));
    total = {largest + log_of<E>(sum), true};
    return true;
  }

  // Scan elements [low, high) of x [n] into the stream, if their sums fit: what comes before them,
  // or their first one, must not be too small beside their largest one. The total is that of
  // `tile_total`.
  template <class X, class Out>
  static NOINLINE bool scan_tile(const X* x, int64 n, int64 low, int64 high, bool reverse,
                                 State<E>& state, Stream<Out>& stream) {
    R largest, sum{};
    if (!find_largest(x, n, low, high, reverse, largest)) return false;
    const R before = combine(state.before.value, state.total.value);
    const R first = all(E(x[reverse ? n - 1 - low : low]));
    if (!(before[0] < HIGHEST<E>) || (largest[0] - before[0] > FAR && largest[0] - first[0] > FAR))
      return false;
    const R unit = before > largest ? before : largest;
    const R carried = exp_minus_any<E>(unit - before), scale = exp_minus_any<E>(unit - largest);
    Lines lines = stream.lines();
    for (int64 i = low; i < high; i += N) {
      Vector<E> v = sums(x, n, i, high, reverse, largest, sum);
      sum = last(v);
      UNROLL
      for (auto& part : v.part) part = unit + log_of<E>(carried + scale * part);
      // With nothing before it, the first result is the first element, to the bit.
      if (i == low && before[0] == LOWEST<E>) v.part[0][0] = first[0];
      if (reverse) v = mirrored<E>(v);
      store_as(stream.next(N), v);
      stream.put(min_of(N, high - i));
      if (sizeof(Out) == sizeof(E) && high - i >= N) lines.write();
    }
    stream.wrote(lines);
    state.total = join<LogAddExp>(state.total, {largest + log_of<E>(sum), true});
    return true;
  }

 private:
  static constexpr int64 N = ELEMENTS<E>;

  static INLINE int64 min_of(int64 a, int64 b) { return a < b ? a : b; }
  static INLINE R last(const Vector<E>& v) { return splat_last<E>(v.part[PARTS - 1]); }

  // The largest element that is not a NaN; false if that is infinite. A NaN then spreads by its own
  // exponential, from its place on. PlainMax gives its second operand if either is a NaN: so the
  // maximum must be the second one. If a NaN took its place, larger elements before it would be
  // forgotten, and their exponentials overflow.
  template <class X>
  static INLINE bool find_largest(const X* x, int64 n, int64 low, int64 high, bool reverse,
                                  R& largest) {
    if (high - low < 2 * N) return false;  // few: pair by pair, results near 0 keep their digits
    Vector<E> most;
    UNROLL
    for (auto& part : most.part) part = identity<LogAddExp>();
    for (int64 i = low; i < high; i += N) {
      const Vector<E> v = load_vector<LogAddExp>(x, n, i, high, reverse);
      UNROLL
      for (int k = 0; k < PARTS; ++k) most.part[k] = PlainMax<E>::combine(v.part[k], most.part[k]);
    }
    vector_scan<PlainMax<E>>(most);
    largest = last(most);
    return largest[0] > LOWEST<E> && largest[0] < HIGHEST<E>;
  }

  // The sums of exponentials up to each of elements [i, i + N), in the order of the scan.
  template <class X>
  static INLINE Vector<E> sums(const X* x, int64 n, int64 i, int64 high, bool reverse, R largest,
                               R sum) {
    Vector<E> v = load_vector<LogAddExp>(x, n, i, high, reverse);
    if (reverse) v = mirrored<E>(v);
    UNROLL
    for (auto& part : v.part) part = exp_minus_any<E>(largest - part);
    vector_scan<Sum<E>>(v);
    put_before<Sum<E>>(sum, v);
    return v;
  }
};

}  // namespace distscan
