// What the expressions of the operators call, beside + and *: combine(earlier, later).
#pragma once

#include "types.cuh"

namespace distscan {

template <class T>
__device__ bool is_nan(T x) {
  return x != x;
}
template <class Real>
__device__ bool is_nan(complex<Real> x) {
  return is_nan(x.re) || is_nan(x.im);
}

template <class T>
__device__ bool less(T a, T b) {
  return a < b;
}
// NumPy's order of complex numbers: by real part, then by imaginary part.
template <class Real>
__device__ bool less(complex<Real> a, complex<Real> b) {
  return a.re < b.re || (a.re == b.re && a.im < b.im);
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

}  // namespace distscan
