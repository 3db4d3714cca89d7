// Exact sums: floats as integers of one or two words, which add exactly and in any order.
//
// An element x is the integer x / 2^lowest. The host has found `lowest`, and so many words that no
// sum overflows (distscan/fsum/words.py). Sums are rounded once, when they are stored:
//
//   lowest -1:  [0.5 2] -> 1 4 -> sums 1 5 -> [0.5 2.5]
//
// Infinities and NaN become any integers: the host overwrites the results that follow them.
// Elements become integers, and integers results, by multiplications with powers of 2. These are in
// shared memory (`Units`), since conversions are called from everywhere.
#pragma once

#include "types.cuh"

#ifdef __CUDACC__
namespace distscan {

// A sum of WORDS words; its elements have ELEMENT words. Those of one word are below 2^59, so that
// 16 of them add in a word.
template <int WORDS, int ELEMENT = WORDS>
struct Fixed;
template <>
struct Fixed<1> {
  int64 value;
};
template <int ELEMENT>
struct Fixed<2, ELEMENT> {  // in the two's complement; below 2^124 in magnitude
  unsigned long long low;
  int64 high;

  __device__ static Fixed of(int64 x) { return {static_cast<unsigned long long>(x), x >> 63}; }
};

template <int WORDS, int ELEMENT>
inline constexpr bool is_fixed<Fixed<WORDS, ELEMENT>> = true;
template <int WORDS, int ELEMENT>
inline constexpr bool is_exact<Fixed<WORDS, ELEMENT>> = true;
template <class T>
inline constexpr bool has_two_words = same<T, Fixed<2, 1>> || same<T, Fixed<2>>;

__device__ inline Fixed<1> operator+(Fixed<1> a, Fixed<1> b) { return {a.value + b.value}; }

template <int ELEMENT>
__device__ Fixed<2, ELEMENT> operator+(Fixed<2, ELEMENT> a, Fixed<2, ELEMENT> b) {
  Fixed<2, ELEMENT> sum;
  asm("add.cc.u64 %0, %2, %4; addc.u64 %1, %3, %5;"
      : "=l"(sum.low), "=l"(sum.high)
      : "l"(a.low), "l"(a.high), "l"(b.low), "l"(b.high));
  return sum;
}

// sum += x of the lane `distance` before this one, if there is one; by a whole warp. The shuffle
// gives the predicate of the additions. From a condition around them the compiler would copy the
// sum. distance 1, sum = x = [3 1 4 ...] -> [3 4 5 ...]
__device__ inline void add_earlier(Fixed<1> x, int distance, Fixed<1>& sum) {
  asm volatile(
      "{ .reg .pred p; .reg .b32 x0, x1, y0, y1; .reg .b64 y;"
      "mov.b64 {x0, x1}, %1;"
      "shfl.sync.up.b32 y0, x0, %2, 0, -1; shfl.sync.up.b32 y1|p, x1, %2, 0, -1;"
      "mov.b64 y, {y0, y1}; @p add.u64 %0, %0, y; }"
      : "+l"(sum.value)
      : "l"(x.value), "r"(distance));
}
template <int ELEMENT>
__device__ void add_earlier(Fixed<2, ELEMENT> x, int distance, Fixed<2, ELEMENT>& sum) {
  asm volatile(
      "{ .reg .pred p; .reg .b32 x0, x1, x2, x3, y0, y1, y2, y3; .reg .b64 low, high;"
      "mov.b64 {x0, x1}, %2; mov.b64 {x2, x3}, %3;"
      "shfl.sync.up.b32 y0, x0, %4, 0, -1; shfl.sync.up.b32 y1, x1, %4, 0, -1;"
      "shfl.sync.up.b32 y2, x2, %4, 0, -1; shfl.sync.up.b32 y3|p, x3, %4, 0, -1;"
      "mov.b64 low, {y0, y1}; mov.b64 high, {y2, y3};"
      "@p add.cc.u64 %0, %0, low; @p addc.u64 %1, %1, high; }"
      : "+l"(sum.low), "+l"(sum.high)
      : "l"(x.low), "l"(x.high), "r"(distance));
}

// ---- Powers of 2 ------------------------------------------------------------------------------

// 2^exponent, or the nearest power of 2 that the type has.
template <class Real>
__device__ Real power_of_2(int exponent) {
  if constexpr (same<Real, float>) {
    exponent = max(-149, min(127, exponent));
    return __int_as_float(exponent < -126 ? 1 << (exponent + 149) : (exponent + 127) << 23);
  } else {
    exponent = max(-1074, min(1023, exponent));
    return __longlong_as_double(exponent < -1022 ? 1ll << (exponent + 1074)
                                                 : static_cast<int64>(exponent + 1023) << 52);
  }
}

// Elements of two words are joined from two parts, high * 2^SPLIT + low.
constexpr int SPLIT = 51;

// The unit of exact sums, set by the host; a parameter of kernels. A running value k stands for
// k * 2^lowest. Elements that are checked must be multiples of 2^low, below 2^high.
struct Unit {
  int lowest, low, high;
  unsigned epoch;     // of the launch
  unsigned* outside;  // [1], in pinned host memory: gets the epoch if an element is outside
};

// The limits of elements that are checked: see checked.cuh.
template <class Real>
struct Limits {
  Real top;    // 2^high, or infinity
  Real whole;  // 2^(low + 23) of float, 2^(low + 53) of double: larger numbers are multiples
};

// The factors of the conversions in a kernel.
struct Units {
  double up, down;     // 2^-lowest, or 2^(-lowest - SPLIT) for elements of two words; 2^lowest
  float up32, down32;  // the same for floats
  // Of checks: see checked.cuh.
  Limits<double> limits;
  Limits<float> limits32;
  unsigned epoch;
  unsigned* outside;
};

__device__ inline Units& units() {
  __shared__ Units shared;
  return shared;
}

// If `whole` is beyond the type, all elements count as outside, and the host checks them again.
template <class Real>
__device__ Limits<Real> limits_of(int low, int high) {
  constexpr int WIDTH = same<Real, float> ? 23 : 53, LAST = same<Real, float> ? 127 : 1023;
  const Real infinite = __int_as_float(0x7f800000);
  const Real top = high > LAST ? infinite : power_of_2<Real>(high);
  const Real whole = low > LAST - WIDTH ? infinite : power_of_2<Real>(low + WIDTH);
  return {top, whole};
}

// Set the units; by a whole block, before the first conversion. Without exact sums, do nothing.
template <class T>
__device__ void set_units(const Unit& unit) {
  if constexpr (is_fixed<T>) {
    if (threadIdx.x == 0) {
      const int up = -unit.lowest - (same<T, Fixed<2>> ? SPLIT : 0);
      Units& to = units();
      to.up = power_of_2<double>(up), to.down = power_of_2<double>(unit.lowest);
      to.up32 = power_of_2<float>(up), to.down32 = power_of_2<float>(unit.lowest);
      if (unit.outside) {
        to.limits = limits_of<double>(unit.low, unit.high);
        to.limits32 = limits_of<float>(unit.low, unit.high);
        to.epoch = unit.epoch, to.outside = unit.outside;
      }
    }
    __syncthreads();
  }
}

__device__ inline int64 join_words(unsigned low, unsigned high) {
  return static_cast<int64>(static_cast<unsigned long long>(high) << 32 | low);
}

// ---- From floats ------------------------------------------------------------------------------

// An element of one word.
__device__ inline int64 word_of(float x) { return __float2ll_rz(__fmul_rn(x, units().up32)); }
__device__ inline int64 word_of(double x) { return __double2ll_rz(__dmul_rn(x, units().up)); }

// An element of two words, below 2^102, as high * 2^SPLIT + low. A number that is added to 1.5
// times a large power of 2 is rounded to an integer, which is then in the sum's lowest bits. So the
// parts are the bits of two sums, from whose upper words two constants are subtracted.
// Parts of several elements add as 64-bit integers. low is never negative.
constexpr unsigned UPPER_OF_HIGH = 0x43380000;  // of 1.5 * 2^52
constexpr unsigned UPPER_OF_LOW = 0x40080000;   // of 1.5 * 2^(52 - SPLIT)

struct Parts {
  int64 high, low;

  __device__ static Parts of(double x) {
    const double whole = __hiloint2double(UPPER_OF_HIGH, 0);
    const double fine = __hiloint2double(UPPER_OF_LOW, 0);
    const double scaled = __dmul_rn(x, units().up), high = __dadd_rd(scaled, whole);
    const double low = __dadd_rn(__dsub_rn(scaled, __dsub_rn(high, whole)), fine);
    return {__double_as_longlong(high), __double_as_longlong(low)};
  }
  // Join the parts of COUNT elements.
  template <int COUNT>
  __device__ Fixed<2> joined() const {
    const int64 h = less_upper(high, COUNT * UPPER_OF_HIGH);
    const unsigned long long l = less_upper(low, COUNT * UPPER_OF_LOW);
    const Fixed<2> shifted{static_cast<unsigned long long>(h) << SPLIT, h >> (64 - SPLIT)};
    if constexpr (COUNT == 1) return {shifted.low | l, shifted.high};
    return shifted + Fixed<2>{l, 0};
  }

 private:
  __device__ static int64 less_upper(int64 x, unsigned upper) {
    return join_words(static_cast<unsigned>(x), static_cast<unsigned>(x >> 32) - upper);
  }
};

template <class To, class From>
__device__ To to_fixed(From x) {
  if constexpr (same<To, Fixed<2>>)
    return Parts::of(convert<double>(x)).joined<1>();
  else if constexpr (sizeof(From) < 4)
    return to_fixed<To>(convert<float>(x));
  else if constexpr (same<To, Fixed<1>>)
    return {word_of(x)};
  else
    return To::of(word_of(x));
}

// ---- To floats --------------------------------------------------------------------------------

// The leading bits of a sum, which is bits * 2^shift plus the lost bits. If any lost bit is 1, the
// lowest bit is 1 (a sticky bit). So if there are two bits more than a float needs, the bits are
// rounded as the sum is: they are a float, or half-way between two, only if the sum is.
// Shifts by 2, all bits lost at once: 0b10000 -> 0b100, 0b10001 -> 0b101
struct Leading {
  int64 bits;
  int shift;
};

// Of a sum of more than 64 bits, 33 to 64: enough for float.
template <int ELEMENT>
__device__ Leading leading_words(Fixed<2, ELEMENT> sum) {
  const unsigned w0 = static_cast<unsigned>(sum.low), w1 = static_cast<unsigned>(sum.low >> 32);
  const unsigned w2 = static_cast<unsigned>(sum.high), w3 = static_cast<unsigned>(sum.high >> 32);
  const bool far = static_cast<int>(w3) != static_cast<int>(w2) >> 31;
  const bool near = sum.high == static_cast<int>(w1) >> 31;
  const unsigned low = far ? w2 : near ? w0 : w1, high = far ? w3 : near ? w1 : w2;
  const unsigned lost = far ? w0 | w1 : near ? 0 : w0;
  return {join_words(low | (lost != 0), high), far ? 64 : near ? 0 : 32};
}

// Of a sum of more than 64 bits, 62 or 63: enough for double. Their number comes from the exponent
// of a float, which is near the sum's upper word, rounded.
template <int ELEMENT>
__device__ Leading leading_bits(Fixed<2, ELEMENT> sum) {
  const unsigned w0 = static_cast<unsigned>(sum.low), w1 = static_cast<unsigned>(sum.low >> 32);
  const unsigned w2 = static_cast<unsigned>(sum.high), w3 = static_cast<unsigned>(sum.high >> 32);
  const int64 upper = sum.high + (w1 >> 31);  // 0 if the sum has no more than 64 bits
  const unsigned size = __float_as_uint(__ll2float_rn(upper)) & 0x7fffffff;
  const int shift = max(static_cast<int>(size >> 23) - 125, 0);
  const bool far = shift >= 32;
  const unsigned a = far ? w1 : w0, b = far ? w2 : w1, c = far ? w3 : w2;
  const unsigned lost = __funnelshift_r(0, a, shift) | (far ? w0 : 0);
  const unsigned low = __funnelshift_r(a, b, shift) | (lost != 0);
  return {join_words(low, __funnelshift_r(b, c, shift)), shift};
}

// The float below a number in magnitude; if it is not the number, with 1 as its lowest bit.
__device__ inline float float_to_odd(int64 bits) {
  const float below = __ll2float_rz(bits);
  return __int_as_float(__float_as_int(below) | (__float2ll_rz(below) != bits));
}
// Where results are not double, `lowest` is an exponent of float, and that of its lowest bit or
// more: so the products are exact, unless they overflow as the sum does.
template <class To>
__device__ To rounded_bits(Leading sum) {
  if constexpr (same<To, double>) {
    const double shift = __hiloint2double((1023 + sum.shift) << 20, 0);
    return __ll2double_rn(sum.bits) * shift * units().down;
  } else {
    const float shift = __int_as_float((127 + sum.shift) << 23), down = units().down32;
    if constexpr (same<To, float>)
      return __ll2float_rn(sum.bits) * shift * down;
    else
      return convert<To>(float_to_odd(sum.bits) * shift * down);
  }
}

template <class To>
__device__ To rounded(Fixed<1> sum) {
  return rounded_bits<To>(Leading{sum.value, 0});
}
template <class To, int ELEMENT>
__device__ To rounded(Fixed<2, ELEMENT> sum) {
  if constexpr (same<To, double>)
    return rounded_bits<To>(leading_bits(sum));
  else
    return rounded_bits<To>(leading_words(sum));
}

}  // namespace distscan
#endif  // CPUs have their own
