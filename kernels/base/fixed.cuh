// Exact sums: floats as integers of one or two words, which add exactly and in any order.
//
// An element x is the integer x / 2^lowest. The host has found `lowest`, and so many words that no
// sum overflows (distscan/core/fixed_sum.py). Sums are rounded once, when they are stored:
//
//   lowest -1:  [0.5 2 inf] -> 1 4 0 -> sums 1 5 5 -> [0.5 2.5 2.5]; what is not finite counts as 0
//
// Elements become integers, and integers floats, by multiplications with powers of 2. Those that a
// conversion needs are in shared memory (`Units`), since conversions are called from everywhere.
#pragma once

#include "types.cuh"

#ifdef __CUDACC__
namespace distscan {

template <int WORDS>
struct Fixed;
template <>
struct Fixed<1> {
  int64 value;
};
template <>
struct Fixed<2> {  // in the two's complement
  unsigned long long low;
  int64 high;
};

template <int WORDS>
inline constexpr bool is_fixed<Fixed<WORDS>> = true;
template <int WORDS>
inline constexpr bool is_exact<Fixed<WORDS>> = true;

__device__ inline Fixed<1> operator+(Fixed<1> a, Fixed<1> b) { return {a.value + b.value}; }

__device__ inline Fixed<2> operator+(Fixed<2> a, Fixed<2> b) {
  Fixed<2> sum;
  asm("add.cc.u64 %0, %2, %4; addc.u64 %1, %3, %5;"
      : "=l"(sum.low), "=l"(sum.high)
      : "l"(a.low), "l"(a.high), "l"(b.low), "l"(b.high));
  return sum;
}

// ---- Powers of 2 ------------------------------------------------------------------------------

// 2^exponent, the nearest float of all that are powers of 2.
template <class Real>
__device__ Real power_of_2(int exponent) {
  if constexpr (same<Real, float>) {
    exponent = exponent < -149 ? -149 : exponent > 127 ? 127 : exponent;
    return __int_as_float(exponent < -126 ? 1 << (exponent + 149) : (exponent + 127) << 23);
  } else {
    exponent = exponent < -1074 ? -1074 : exponent > 1023 ? 1023 : exponent;
    return __longlong_as_double(exponent < -1022 ? 1ll << (exponent + 1074)
                                                 : static_cast<int64>(exponent + 1023) << 52);
  }
}

// Two words are joined from two parts, high * 2^SPLIT + low. Elements have high parts below 2^59:
// so the parts of 16 elements add in 64 bits.
constexpr int SPLIT = 58;

// What the conversions of a kernel multiply with.
struct Units {
  double up[2], down;       // of float64: 2^-lowest or 2^(-lowest - SPLIT), as a product; 2^lowest
  float up32[2], down32;    // the same of float32
  bool by_double;           // whether results by way of `down32` might be wrong
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
      Units& own = units();
      own.up[0] = power_of_2<double>(up);
      own.up[1] = power_of_2<double>(up > 1023 ? up - 1023 : 0);
      own.down = power_of_2<double>(lowest);
      own.up32[0] = power_of_2<float>(up);
      own.up32[1] = power_of_2<float>(up > 127 ? up - 127 : up < -149 ? up + 149 : 0);
      own.down32 = power_of_2<float>(lowest);
      own.by_double = lowest < -149 || lowest > 127;
    }
    __syncthreads();
  }
}

// ---- From floats ------------------------------------------------------------------------------

// x * 2^-lowest or x * 2^(-lowest - SPLIT), which is exact; 0 if x is not finite.
__device__ inline float scaled_up(float x) {
  const Units& own = units();
  x = fabsf(x) < __int_as_float(0x7f800000) ? x : 0;
  return __fmul_rn(__fmul_rn(x, own.up32[0]), own.up32[1]);
}
__device__ inline double scaled_up(double x) {
  const Units& own = units();
  x = fabs(x) < __longlong_as_double(0x7ffll << 52) ? x : 0;
  return __dmul_rn(__dmul_rn(x, own.up[0]), own.up[1]);
}

// An integer near x, such that x less it is exact and at most 1: rounded to even numbers by the
// addition of 1.5 * 2^24; floats from 2^23 on are integers.
__device__ inline float near_integer(float x) {
  constexpr float ROUNDS = 3 << 23;
  return fabsf(x) < (1 << 23) ? __fadd_rn(__fadd_rn(x, ROUNDS), -ROUNDS) : x;
}
__device__ inline double near_integer(double x) {
  constexpr double ROUNDS = 3ll << 52;
  return fabs(x) < (1ll << 52) ? __dadd_rn(__dadd_rn(x, ROUNDS), -ROUNDS) : x;
}

// An integer of two words as high * 2^SPLIT + low. Parts add as 64-bit integers.
struct Parts {
  int64 high, low;

  __device__ Fixed<2> joined() const {
    return Fixed<2>{static_cast<unsigned long long>(high) << SPLIT, high >> (64 - SPLIT)} +
           Fixed<2>{static_cast<unsigned long long>(low), low >> 63};
  }
};

__device__ inline Parts parts_of(float x) {
  const float scaled = scaled_up(x), high = near_integer(scaled);
  return {__float2ll_rz(high), __float2ll_rz(__fmul_rn(__fsub_rn(scaled, high), 1ll << SPLIT))};
}
__device__ inline Parts parts_of(double x) {
  const double scaled = scaled_up(x), high = near_integer(scaled);
  return {__double2ll_rz(high), __double2ll_rz(__dmul_rn(__dsub_rn(scaled, high), 1ll << SPLIT))};
}
__device__ inline Parts parts_of(half x) { return parts_of(convert<float>(x)); }
__device__ inline Parts parts_of(bfloat16 x) { return parts_of(convert<float>(x)); }

template <class To, class From>
__device__ To to_fixed(From x) {
  if constexpr (sizeof(From) < 4)
    return to_fixed<To>(convert<float>(x));
  else if constexpr (same<To, Fixed<2>>)
    return parts_of(x).joined();
  else if constexpr (same<From, double>)
    return {__double2ll_rz(scaled_up(x))};
  else
    return {__float2ll_rz(scaled_up(x))};
}

// Whether the elements X of a vector are added in parts before they are joined.
template <class T, class X>
inline constexpr bool adds_parts = same<T, Fixed<2>> && !same<X, Fixed<2>>;

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
__device__ inline Leading leading_words(Fixed<2> sum) {
  const unsigned w0 = static_cast<unsigned>(sum.low), w1 = static_cast<unsigned>(sum.low >> 32);
  const unsigned w2 = static_cast<unsigned>(sum.high), w3 = static_cast<unsigned>(sum.high >> 32);
  if (sum.high == static_cast<int>(w1) >> 31) return {static_cast<int64>(sum.low), 0};
  if (static_cast<int>(w3) == static_cast<int>(w2) >> 31)
    return {join_words(w1 | (w0 != 0), w2), 32};
  return {join_words(w2 | ((w0 | w1) != 0), w3), 64};
}

// Of a sum of more than 64 bits, 63: enough for double.
__device__ inline Leading leading_bits(Fixed<2> sum) {
  const int64 sign = sum.high >> 63, size = sum.high ^ sign;
  const int shift = size != 0 ? 65 - __clzll(size)
                              : static_cast<int>((sum.low ^ static_cast<unsigned long long>(sign)) >> 63);
  const unsigned w0 = static_cast<unsigned>(sum.low), w1 = static_cast<unsigned>(sum.low >> 32);
  const unsigned w2 = static_cast<unsigned>(sum.high), w3 = static_cast<unsigned>(sum.high >> 32);
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

// A result by way of double, whose range holds all numbers of other types.
template <class To>
__device__ __noinline__ To rounded_by_double(Leading sum) {
  const double number = double_to_odd(sum.bits) * power_of_2<double>(sum.shift) * units().down;
  if constexpr (same<To, bfloat16>)
    return convert<To>(float_to_odd(number));
  else
    return convert<To>(number);
}

template <class To>
__device__ To rounded(Leading sum) {
  if constexpr (same<To, double>) {
    return __ll2double_rn(sum.bits) * power_of_2<double>(sum.shift) * units().down;
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
  return rounded<To>(Leading{sum.value, 0});
}
template <class To>
__device__ To rounded(Fixed<2> sum) {
  if constexpr (same<To, double>)
    return rounded<To>(leading_bits(sum));
  else
    return rounded<To>(leading_words(sum));
}

}  // namespace distscan
#endif  // CPUs have their own
