// The element types, without any header: NVRTC compiles these files as they stand.
#pragma once

namespace distscan {

using int64 = long long;

template <class A, class B>
inline constexpr bool same = false;
template <class A>
inline constexpr bool same<A, A> = true;

template <class A>
inline constexpr bool is_const = false;
template <class A>
inline constexpr bool is_const<const A> = true;

// bool counts as an integer: true + true is true.
template <class T>
inline constexpr bool is_integer =
    same<T, bool> || same<T, signed char> || same<T, unsigned char> || same<T, short> ||
    same<T, unsigned short> || same<T, int> || same<T, unsigned> || same<T, int64> ||
    same<T, unsigned long long>;

template <bool FIRST, class A, class B>
struct Choose {
  using type = A;
};
template <class A, class B>
struct Choose<false, A, B> {
  using type = B;
};

__device__ constexpr int larger(int a, int b) { return a > b ? a : b; }

// A bool of a shard: NumPy takes any byte but 0 for true, C++ knows 0 and 1 alone.
struct boolean {
  unsigned char byte;
};

// A bool in a register of its own, as 1 or 0: what logical operators run in.
enum truth : unsigned {};

template <>
inline constexpr bool is_integer<truth> = true;

__device__ inline truth operator&(truth a, truth b) {
  return static_cast<truth>(static_cast<unsigned>(a) & static_cast<unsigned>(b));
}
__device__ inline truth operator|(truth a, truth b) {
  return static_cast<truth>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
__device__ inline truth operator^(truth a, truth b) {
  return static_cast<truth>(static_cast<unsigned>(a) ^ static_cast<unsigned>(b));
}

// The elements of the widest of some types that fill a 16-byte vector.
// items_per_vector<signed char, int>() == 4; no type has less than one.
template <class... Types>
__device__ constexpr int items_per_vector() {
  int widest = 1;
  ((widest = larger(widest, sizeof(Types))), ...);
  return larger(16 / widest, 1);
}

// IEEE half precision in memory; arithmetic is done in float.
struct half {
  unsigned short bits;
};

// The upper half of a float; arithmetic is done in float.
struct bfloat16 {
  unsigned short bits;
};

template <class Real>
struct complex {
  using Part = Real;
  Real re, im;
};
template <class T>
inline constexpr bool is_complex = same<T, complex<float>> || same<T, complex<double>>;

template <class Real>
__device__ complex<Real> operator+(complex<Real> a, complex<Real> b) {
  return {a.re + b.re, a.im + b.im};
}

// (1 + 2i) * (3 + 4i) = -5 + 10i, by the textbook rule, as NumPy does.
template <class Real>
__device__ complex<Real> operator*(complex<Real> a, complex<Real> b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

// The logarithm of a sum of exponentials, of which `max` is the largest term's logarithm, and
// `rest` the sum of all other terms, divided by the largest: the value is max + log(1 + rest).
// log(e^3 + e^2 + e^2) -> {3, 2/e}
template <class Real>
struct LogSum {
  using Part = Real;
  Real max, rest;
};
template <class T>
inline constexpr bool is_log_sum = same<T, LogSum<float>> || same<T, LogSum<double>>;

// Whether a type is an integer that stands for a float: see fixed.cuh.
template <class T>
inline constexpr bool is_fixed = false;

// Whether elements are checked as they become such integers: see checked.cuh.
template <class T>
inline constexpr bool is_checked = false;

// The bits of some floats: see bit_range.cuh.
struct BitRange;

// Whether any grouping of the running values gives the same bits.
template <class T>
inline constexpr bool is_exact = is_integer<T>;

// Whether values are so large that a multiprocessor waits for instructions, not for memory. So the
// steps of a warp are loops that are not unrolled. 2^20 products of 4 x 4 float32 took 173 us with
// unrolled loops (H200).
template <class T>
inline constexpr bool is_large = sizeof(T) > 16;

// Whether items are combined one by one behind the prefix, which is the shortest. Floats then round
// once for each item, so numbers are not. Of a sum of exponentials, one more combination takes
// long.
template <class T>
inline constexpr bool one_by_one = is_exact<T> || is_log_sum<T>;

#ifdef __CUDACC__
// ---- Conversion ----------------------------------------------------------------------------

// A word that is 0 where x is: of floats, what is left without the sign.
template <class T>
__device__ unsigned nonzero(T x) {
  if constexpr (is_complex<T>)
    return nonzero(x.re) | nonzero(x.im);
  else if constexpr (same<T, half> || same<T, bfloat16>)
    return x.bits & 0x7fff;
  else if constexpr (same<T, float>)
    return __float_as_uint(x) << 1;
  else if constexpr (same<T, double>)
    return static_cast<unsigned>(__double2loint(x)) | static_cast<unsigned>(__double2hiint(x)) << 1;
  else if constexpr (sizeof(T) == 8)
    return static_cast<unsigned>(x) | static_cast<unsigned>(x >> 32);
  else
    return static_cast<unsigned>(x);
}

template <class To, class From>
__device__ To to_fixed(From x);
template <class To, class From>
__device__ To to_checked(From x);
template <class To, class From>
__device__ To from_checked(From x);
template <class To, class From>
__device__ To rounded(From sum);
__device__ BitRange bit_range_of(float x);
__device__ BitRange bit_range_of(double x);
__device__ BitRange bit_range_of(half x);
__device__ BitRange bit_range_of(bfloat16 x);

// convert<To>(from) is C's cast, and for half, bfloat16 and complex what NumPy's astype does:
// convert<half>(1.0f).bits == 0x3c00, convert<float>(complex<float>{1, 2}) == 1.
template <class To, class From>
__device__ To convert(From from) {
  if constexpr (same<To, From>) {
    return from;
  } else if constexpr (same<To, BitRange>) {
    return bit_range_of(from);
  } else if constexpr (is_checked<From>) {
    return from_checked<To>(from);
  } else if constexpr (is_checked<To>) {
    return to_checked<To>(from);
  } else if constexpr (is_fixed<To>) {
    return to_fixed<To>(from);
  } else if constexpr (is_fixed<From>) {
    return rounded<To>(from);
  } else if constexpr (is_log_sum<To>) {
    return {convert<typename To::Part>(from), 0};
  } else if constexpr (is_log_sum<From>) {
    return convert<To>(from.max + log1p(from.rest));
  } else if constexpr (same<From, boolean>) {
    return convert<To>(convert<truth>(from.byte));
  } else if constexpr (same<To, truth>) {
    // By no comparison: predicates are few, and to keep more of them takes instructions.
    unsigned one;
    asm("min.u32 %0, %1, 1;" : "=r"(one) : "r"(nonzero(from)));
    return static_cast<truth>(one);
  } else if constexpr (is_complex<From>) {
    if constexpr (is_complex<To>)
      return {convert<typename To::Part>(from.re), convert<typename To::Part>(from.im)};
    else if constexpr (same<To, bool>)
      return from.re != 0 || from.im != 0;
    else
      return convert<To>(from.re);
  } else if constexpr (is_complex<To>) {
    return {convert<typename To::Part>(from), 0};
  } else if constexpr (same<From, half>) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(from.bits));
    return convert<To>(wide);
  } else if constexpr (same<From, bfloat16>) {
    return convert<To>(__uint_as_float(static_cast<unsigned>(from.bits) << 16));
  } else if constexpr (same<To, half>) {
    half to;
    if constexpr (same<From, double>)  // by way of float it would round twice
      asm("cvt.rn.f16.f64 %0, %1;" : "=h"(to.bits) : "d"(from));
    else
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(static_cast<float>(from)));
    return to;
  } else if constexpr (same<To, bfloat16>) {
    bfloat16 to;  // from double too by way of float, as ml_dtypes has it
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(static_cast<float>(from)));
    return to;
  } else {
    return static_cast<To>(from);
  }
}
#endif  // CPUs convert registers: cpu/convert.hpp

}  // namespace distscan
