// The warp level: the reduction and the scan of one warp tile, in the way that fits its type.
#pragma once

#include "fixed_rows.cuh"
#include "log_sum.cuh"

namespace distscan {

// The total of the warp tile, complete in lane 0 only. T may be a narrow type, if it holds every
// total of so few elements.
template <class Op, class T, class X, class Shape>
__device__ T reduce_warp_tile(const Rows<X, Shape>& rows) {
  if constexpr (same<T, LogSum<float>>)
    return reduce_log_sums<Op, T>(rows);
  else
    return reduce_rows<Op, T>(rows);
}

// The scan of the warp tile, seeded with prefixed(), which is called late, since it may wait.
// Totals of vectors and rows are of type Partial.
// sum, prefix 10, warp tile [1 2 3 ...] -> [11 13 16 ...]; EXCLUSIVE: [10 11 13 ...]
template <class Op, class PartialOp, class Partial, class T, class Y, bool EXCLUSIVE, class X,
          class Shape, class Segments, class Prefixed>
__device__ Rows<Y, Shape> scan_warp_tile(const Rows<X, Shape>& rows, const Segments& segments,
                                         const Prefixed& prefixed) {
  if constexpr (same<T, LogSum<float>>)
    return scan_log_sums<Op, T, Y, EXCLUSIVE>(rows, prefixed);
  else if constexpr (is_fixed<T>)
    return scan_fixed_rows<Op, T, Y, EXCLUSIVE>(rows, prefixed);
  else
    return scan_rows<Op, PartialOp, Partial, T, Y, EXCLUSIVE>(rows, segments, prefixed);
}

}  // namespace distscan
