// Exact sums of elements that should be in a window which the caller has named.
//
// Elements are multiples of 2^low, and below 2^high in magnitude. A kernel that sees another one
// writes its epoch to the host's memory, and goes on; its results are of no use then.
//   low 0, high 3: 5 is inside; 0.5 is no multiple of 1; 9 is not below 8
#pragma once

#include "fixed.cuh"
#include "tile.cuh"

namespace distscan {

// A sum whose elements are checked; F is Fixed.
template <class F>
struct Checked {
  F value;
};
template <class F>
inline constexpr bool is_checked<Checked<F>> = true;
template <class F>
inline constexpr bool is_exact<Checked<F>> = true;

template <class F>
__device__ Checked<F> operator+(Checked<F> a, Checked<F> b) {
  return {a.value + b.value};
}

// Whether an element is outside. To add 2^(low + 23), and to take it away, rounds a smaller float
// to a multiple of 2^low; larger ones are multiples. A comparison with NaN is false.
__device__ inline bool is_outside(float x) {
  const Limits<float>& limits = units().limits32;
  const float size = fabsf(x), smaller = fminf(size, limits.whole);
  return !(size < limits.top) ||
         __fsub_rn(__fadd_rn(smaller, limits.whole), limits.whole) != smaller;
}
__device__ inline bool is_outside(double x) {
  const Limits<double>& limits = units().limits;
  const double size = fabs(x), smaller = size < limits.whole ? size : 0;
  return !(size < limits.top) ||
         __dsub_rn(__dadd_rn(smaller, limits.whole), limits.whole) != smaller;
}

__device__ inline void report_outside() {
  *const_cast<volatile unsigned*>(units().outside) = units().epoch;
  __threadfence_system();  // the host sees it before the total
}

// The type in which elements of a type are checked.
template <class X>
using RealOf = typename Choose<same<X, double>, double, float>::type;

// Check one lane's vector.
template <class X, int ITEMS>
__device__ void check(const Vector<X, ITEMS>& vector) {
  bool outside = false;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) outside |= is_outside(get<RealOf<X>>(vector, i));
  if (outside) report_outside();
}

template <class To, class From>
__device__ To to_checked(From x) {
  using F = decltype(To::value);
  if constexpr (!same<From, F>)
    if (is_outside(convert<RealOf<From>>(x))) report_outside();
  return {convert<F>(x)};
}

}  // namespace distscan
