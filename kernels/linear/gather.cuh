// Rows of a matrix, copied to one place: those whose indices are given, in that order.
#pragma once

#include "../base/vector.cuh"

namespace distscan {

// The length of a row, and its reciprocal, for fast divisions by it.
struct Division {
  int64 length;
  unsigned long long reciprocal;  // 2^64 / length, rounded down; 2^64 - 1 of 1
};

// Row i of y becomes row index[i] of x. A thread copies one element at a time, of up to 16 bytes.
// Neighbours in a warp copy neighbours in y.
// rows of 2: x [a b | c d | e f], index [0 2] -> y [a b | e f]
template <int AT_ONCE, class X, class Index>
__device__ void gather(const X* x /* [n][row.length] */, const Index* index /* [count] */,
                       X* y /* [count][row.length] */, int64 count, const Division& row) {
  const int64 size = count * row.length, step = static_cast<int64>(gridDim.x) * blockDim.x;
  const int64 thread = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int64 first = thread; first < size; first += AT_ONCE * step) {
    X item[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) {
      const int64 at = first + k * step;
      if (at >= size) break;
      int64 i = __umul64hi(at, row.reciprocal);  // at / length; it may come out one too small
      int64 column = at - i * row.length;
      if (column >= row.length) {
        column -= row.length;
        ++i;
      }
      item[k] = x[static_cast<int64>(index[i]) * row.length + column];
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k)
      if (first + k * step < size) y[first + k * step] = item[k];
  }
}

}  // namespace distscan
