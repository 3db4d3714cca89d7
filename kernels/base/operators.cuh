// The functions that the operators' expressions call: combine(earlier, later). CPUs call them, too,
// with registers of many lanes: there a comparison is a mask of as many lanes.
#pragma once

#include "types.cuh"

namespace distscan {

// Integers wrap, as NumPy's do; signed overflow would be the compiler's to do with as it likes.
template <class T>
using Wrapping = typename Choose<sizeof(T) == 8, unsigned long long, unsigned>::type;

template <class T>
__device__ T plus(T a, T b) {
  if constexpr (is_integer<T>)
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
  else
    return a + b;
}
template <class T>
__device__ T times(T a, T b) {
  if constexpr (is_integer<T>)
    return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
  else
    return a * b;
}

template <class T>
__device__ auto is_nan(T x) {
  return x != x;
}
template <class Real>
__device__ bool is_nan(complex<Real> x) {
  return is_nan(x.re) || is_nan(x.im);
}

template <class T>
__device__ auto less(T a, T b) {
  return a < b;
}
// NumPy's order of complex numbers: by real part, then by imaginary part; a NaN in either part
// is neither less nor greater than anything.
template <class Real>
__device__ bool less(complex<Real> a, complex<Real> b) {
  return (a.re < b.re && !is_nan(a.im) && !is_nan(b.im)) || (a.re == b.re && a.im < b.im);
}

// The first NaN stays: maximum(1, NaN) = NaN, maximum(NaN, 1) = NaN; of equals, the later.
template <class T>
__device__ T maximum(T a, T b) {
  return is_nan(a) || less(b, a) ? a : b;
}
template <class T>
__device__ T minimum(T a, T b) {
  return is_nan(a) || less(a, b) ? a : b;
}

#ifdef __CUDACC__
// log(1 + exp(-x)) for x >= 0. In float by the chip's own exponential and 2 artanh(s), a polynomial
// for s up to 1/3: within 2e-7, where log1pf(expf(-x)) is within 1.1e-7 in twice as many steps.
__device__ inline float log_of_one_plus(float x) {
  const float e = __expf(-x), s = __fdividef(e, 2 + e), z = s * s;
  const float series = 0.333332066f + z * (0.200108498f + z * (0.139995666f + z * 0.140122477f));
  return 2 * s + 2 * s * z * series;
}
__device__ inline double log_of_one_plus(double x) { return log1p(exp(-x)); }

// log(exp(a) + exp(b)) without overflow, as NumPy has it: infinities of one sign stay what they
// are, and a NaN spreads, by way of the difference.
template <class Real>
__device__ Real log_add_exp(Real a, Real b) {
  if (a == b) return a + static_cast<Real>(0.69314718055994530942);
  const Real over = a - b;
  return (over > 0 ? a : b) + log_of_one_plus(fabs(over));
}

__device__ inline float exp_of_minus(float x) { return __expf(-x); }
__device__ inline double exp_of_minus(double x) { return exp(-x); }

// The same of sums of exponentials, by one exponential and no logarithm. Infinities of one sign
// have no difference: their terms are equal. A NaN spreads by way of the difference.
// {3, 0} then {2, 0} -> {3, 1/e}
template <class Real>
__device__ LogSum<Real> log_add_exp(LogSum<Real> a, LogSum<Real> b) {
  const Real scale = a.max == b.max ? 1 : exp_of_minus(fabs(a.max - b.max));
  if (a.max > b.max) return {a.max, a.rest + (scale + scale * b.rest)};
  return {b.max, b.rest + (scale + scale * a.rest)};
}
#endif

}  // namespace distscan
