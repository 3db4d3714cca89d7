// Exact sums of elements that must be in the caller's window.
//
// Elements are multiples of 2^low, and below 2^high in magnitude. A kernel that sees another one
// writes its epoch to the host's memory, and goes on. The host then drops the results.
//   low 0, high 3: 5 is inside; 0.5 is no multiple of 1; 9 is not below 8
#pragma once

#include "fixed.cuh"
#include "tile.cuh"

namespace distscan {

// A sum whose elements are checked; F is Fixed. The conversion to F reports elements outside.
template <class F>
struct Checked {
  F value;
  unsigned outside;  // not 0 if an element is
};
template <class F>
inline constexpr bool is_checked<Checked<F>> = true;
template <class F>
inline constexpr bool is_exact<Checked<F>> = true;
template <class F>
inline constexpr bool is_large<Checked<F>> = false;

template <class F>
__device__ Checked<F> operator+(Checked<F> a, Checked<F> b) {
  return {a.value + b.value, a.outside | b.outside};
}

// Whether an element is outside. A comparison with NaN is false, so NaN is outside.
//
// A float below W = 2^(low + 23): (x + W) - W is x, rounded to a multiple of 2^low. Larger floats
// are multiples.
// A double below 2^(low + 105), with W = 2^(low + 53): (x - W) + W is x if x is a multiple of
// 2^low, else another number. Larger doubles are beyond `top`, because no sum in words is so wide.
//   low 0: 2.5 -> 2 and is outside; 3 -> 3 and is inside
__device__ inline unsigned is_outside(float x) {
  const Limits<float>& limits = units().limits32;
  const float size = fabsf(x), smaller = fminf(size, limits.whole);
  const float rounded = __fsub_rn(__fadd_rn(smaller, limits.whole), limits.whole);
  return !(size < limits.top) | (rounded != smaller);
}
__device__ inline unsigned is_outside(double x) {
  const Limits<double>& limits = units().limits;
  const double size = fabs(x);
  const double rounded = __dadd_rn(__dsub_rn(size, limits.whole), limits.whole);
  return !(size < limits.top) | (rounded != size);
}

__device__ inline void report_outside() {
  *const_cast<volatile unsigned*>(units().outside) = units().epoch;
  __threadfence_system();  // the host sees it before the total
}

// The type in which elements of a type are checked.
template <class X>
using RealOf = typename Choose<same<X, double>, double, float>::type;

// Whether any element of one lane's vector is outside.
template <class X, int ITEMS>
__device__ unsigned any_outside(const Vector<X, ITEMS>& vector) {
  unsigned outside = 0;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) outside |= is_outside(get<RealOf<X>>(vector, i));
  return outside;
}

template <class To, class From>
__device__ To to_checked(From x) {
  if constexpr (is_fixed<From>)
    return {x, 0};
  else
    return {convert<decltype(To::value)>(x), is_outside(convert<RealOf<From>>(x))};
}
template <class To, class F>
__device__ To from_checked(Checked<F> x) {
  if (x.outside) report_outside();
  return convert<To>(x.value);
}

}  // namespace distscan
