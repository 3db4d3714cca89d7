// Exact sums: floats as integers of one or two words, which add exactly and in any order.
//
// An element x is the integer x / 2^lowest. The host has found `lowest`, and so many words that no
// sum overflows (distscan/core/fixed_sum.py). Sums are rounded once, when they are stored:
//
//   lowest -1:  [0.5 2] -> 1 4 -> sums 1 5 -> [0.5 2.5]
//
// Infinities and NaN become any integers: the host stores what comes behind them. Elements become
// integers, and integers results, by multiplications with powers of 2. These are in shared memory
// (`Units`), since conversions are called from everywhere.
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
struct Fixed<2, ELEMENT> {  // in the two's complement; below 2^126 in magnitude
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

// What the conversions of a kernel multiply with.
struct Units {
  double up, down;      // 2^-lowest, or 2^(-lowest - SPLIT) for elements of two words; 2^lowest
  float up32, down32;   // the same for floats
  bool by_double;       // whether `down32` may be wrong for results
};

__device__ inline Units& units() {
  __shared__ Units shared;
  return shared;
}

// Set the units; by a whole block, before the first conversion. Without exact sums, do nothing.
template <class T>
__device__ void set_units(int lowest) {
  if constexpr (is_fixed<T>) {
    if (threadIdx.x == 0) {
      const int up = -lowest - (same<T, Fixed<2>> ? SPLIT : 0);
      units() = {power_of_2<double>(up), power_of_2<double>(lowest), power_of_2<float>(up),
                 power_of_2<float>(lowest), lowest < -149 || lowest > 127};
    }
    __syncthreads();
  }
}

// ---- From floats ------------------------------------------------------------------------------

// An element of one word.
__device__ inline int64 word_of(float x) { return __float2ll_rz(__fmul_rn(x, units().up32)); }
__device__ inline int64 word_of(double x) { return __double2ll_rz(__dmul_rn(x, units().up)); }

// An element of two words, below 2^102, as high * 2^SPLIT + low. A number that is added to 1.5 times
// a large power of 2 is rounded to an integer, which is then in the sum's lowest bits. So the parts
// are the bits of two sums, of which ROUNDS_HIGH and ROUNDS_LOW are yet to be subtracted. Parts of
// several elements add as 64-bit integers.
constexpr int64 ROUNDS_HIGH = 0x4338000000000000;  // the bits of 1.5 * 2^52
constexpr int64 ROUNDS_LOW = 0x4008000000000000;   // of 1.5 * 2^(52 - SPLIT)

struct Parts {
  int64 high, low;

  __device__ static Parts of(double x) {
    const double whole = __longlong_as_double(ROUNDS_HIGH), fine = __longlong_as_double(ROUNDS_LOW);
    const double scaled = __dmul_rn(x, units().up), high = __dadd_rn(scaled, whole);
    const double low = __dadd_rn(__dsub_rn(scaled, __dsub_rn(high, whole)), fine);
    return {__double_as_longlong(high), __double_as_longlong(low)};
  }
  // Join the parts of `count` elements.
  __device__ Fixed<2> joined(int count) const {
    const int64 h = high - count * ROUNDS_HIGH;
    return Fixed<2>{static_cast<unsigned long long>(h) << SPLIT, h >> (64 - SPLIT)} +
           Fixed<2>::of(low - count * ROUNDS_LOW);
  }
};

template <class To, class From>
__device__ To to_fixed(From x) {
  if constexpr (same<To, Fixed<2>>)
    return Parts::of(convert<double>(x)).joined(1);
  else if constexpr (sizeof(From) < 4)
    return to_fixed<To>(convert<float>(x));
  else if constexpr (same<To, Fixed<1>>)
    return {word_of(x)};
  else
    return To::of(word_of(x));
}

// ---- To floats --------------------------------------------------------------------------------

// The leading bits of a sum, which is bits * 2^shift, but for bits that are lost: if any of these
// is 1, the lowest bit is 1. So what has more bits than a float needs, and two more, rounds as the
// sum does: it is neither a float, nor half-way between two, unless the sum is.
// Shifts by 2, all bits lost at once: 0b10000 -> 0b100, 0b10001 -> 0b101
struct Leading {
  int64 bits;
  int shift;
};

__device__ inline int64 join_words(unsigned low, unsigned high) {
  return static_cast<int64>(static_cast<unsigned long long>(high) << 32 | low);
}

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

// Of a sum of more than 64 bits, 63: enough for double.
template <int ELEMENT>
__device__ Leading leading_bits(Fixed<2, ELEMENT> sum) {
  const unsigned w0 = static_cast<unsigned>(sum.low), w1 = static_cast<unsigned>(sum.low >> 32);
  const unsigned w2 = static_cast<unsigned>(sum.high), w3 = static_cast<unsigned>(sum.high >> 32);
  // The bits from the first one on that differs from the sign; 65 more than those of the low word.
  const unsigned sign = static_cast<int>(w3) >> 31;
  const unsigned upper = w3 ^ sign, middle = w2 ^ sign, top = (w1 ^ sign) >> 31;
  const int shift = upper ? 65 - __clz(upper) : middle ? 33 - __clz(middle) : static_cast<int>(top);
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
__device__ inline double double_to_odd(int64 bits) {
  const double below = __ll2double_rz(bits);
  return __longlong_as_double(__double_as_longlong(below) | (__double2ll_rz(below) != bits));
}
__device__ inline float float_to_odd(double number) {
  const float below = __double2float_rz(number);
  return __int_as_float(__float_as_int(below) | (below != number));
}

// 2^shift, 0 to 64
__device__ inline double shifted(int shift) { return __hiloint2double((1023 + shift) << 20, 0); }

// A result by way of double, whose range holds all numbers of other types.
template <class To>
__device__ __noinline__ To rounded_by_double(Leading sum) {
  const double number = double_to_odd(sum.bits) * shifted(sum.shift) * units().down;
  if constexpr (same<To, bfloat16>)
    return convert<To>(float_to_odd(number));
  else
    return convert<To>(number);
}

template <class To>
__device__ To rounded_bits(Leading sum) {
  if constexpr (same<To, double>) {
    return __ll2double_rn(sum.bits) * shifted(sum.shift) * units().down;
  } else {
    if (units().by_double) return rounded_by_double<To>(sum);
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
