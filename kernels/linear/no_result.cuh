// What stands in place of the results of a GPU that has no offset: they must not look like results.
#pragma once

#include "../base/tile.cuh"

namespace distscan {

// NaN of floats, 0 of integers and bools. complex<float> -> {NaN, NaN}
template <class Y>
struct NoResult {
  __device__ static Y value() {
    if constexpr (is_integer<Y>)
      return Y{};
    else
      return convert<Y>(__uint_as_float(0x7fc00000));
  }
};
template <class Real>
struct NoResult<complex<Real>> {
  __device__ static complex<Real> value() {
    return {NoResult<Real>::value(), NoResult<Real>::value()};
  }
};

// Fill y [n] with it, by one block.
template <class Y>
__device__ void fill_without_result(Y* y /* [n] */, int64 n) {
  for (int64 i = threadIdx.x; i < n; i += blockDim.x) y[i] = NoResult<Y>::value();
}

// Fill rows with it.
template <class Y, class Shape>
__device__ void fill_without_result(Rows<Y, Shape>& rows) {
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r)
#pragma unroll
    for (int i = 0; i < Shape::ITEMS; ++i) set_item(rows.row[r], i, NoResult<Y>::value());
}

}  // namespace distscan
