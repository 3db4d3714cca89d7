// The warp level for exact sums: additions without conditions, since zero is an exact identity.
#pragma once

#include "warp_rows.cuh"

namespace distscan {

// The scan of a warp tile, seeded with prefixed(): see scan_rows.
template <class Op, class T, class Y, bool EXCLUSIVE, class X, class Shape, class Prefixed>
__device__ Rows<Y, Shape> scan_fixed_rows(const Rows<X, Shape>& rows, const Prefixed& prefixed) {
  // ---- 1. the vectors' totals over the lanes, row by row -------------------------------------
  T inclusive[Shape::ROWS];
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) inclusive[r] = warp_scan<Op>(reduce<Op, T>(rows.row[r]));

  // ---- 2. every vector, seeded with the combination of all before it --------------------------
  const Prefix<T> prefix = prefixed();
  T before_row = prefix.some ? prefix.value : T{};
  Rows<Y, Shape> scanned;
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) {
    T sum = before_row;
    add_earlier(inclusive[r], 1, sum);
    Y value[Shape::ITEMS];
#pragma unroll
    for (int i = 0; i < Shape::ITEMS; ++i) {
      if constexpr (EXCLUSIVE) value[i] = convert<Y>(sum);
      sum = sum + get<T>(rows.row[r], i);
      if constexpr (!EXCLUSIVE) value[i] = convert<Y>(sum);
    }
    scanned.row[r] = pack<Y>(value);
    before_row = before_row + broadcast(inclusive[r], LANES - 1);
  }
  return scanned;
}

}  // namespace distscan
