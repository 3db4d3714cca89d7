// The warp level: the reduction and the scan of one warp's stretch of a tile.
//
//   level  a part is              its total travels by    who combines
//   lane   one vector             registers               the lane
//   warp   one lane's vector      shuffles                the warp
//   warp   one row                shuffle from lane 31    the warp
#pragma once

#include "warp_scan.cuh"

namespace distscan {

// The total of the stretch, whole in lane 0.
template <class Op, class T, class X, class Shape>
__device__ T reduce_stretch(const Rows<X, Shape>& rows) {
  T total = reduce<Op, T>(rows.row[0]);
  if constexpr (!Op::COMMUTATIVE) total = warp_reduce<Op>(total);
#pragma unroll
  for (int r = 1; r < Shape::ROWS; ++r) {
    const T row_total = reduce<Op, T>(rows.row[r]);
    total = Op::combine(total, Op::COMMUTATIVE ? row_total : warp_reduce<Op>(row_total));
  }
  return Op::COMMUTATIVE ? warp_reduce<Op>(total) : total;
}

// The scan of the stretch behind `seed`.
// sum, seed 10, stretch [1 2 3 ...] -> [11 13 16 ...]; EXCLUSIVE: [10 11 13 ...]
template <class Op, class Y, bool EXCLUSIVE, class T, class X, class Shape>
__device__ Rows<Y, Shape> scan_stretch(const Rows<X, Shape>& rows, Seed<T> seed) {
  // ---- 1. the vectors' totals over the lanes, row by row -------------------------------------
  T inclusive[Shape::ROWS];
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) inclusive[r] = warp_scan<Op>(reduce<Op, T>(rows.row[r]));

  // ---- 2. every vector behind all that comes before it ---------------------------------------
  Rows<Y, Shape> scanned;
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) {
    const T earlier_lanes = shuffle_up(inclusive[r], 1);
    const Seed<T> before = lane_index() > 0 ? join<Op>(seed, earlier_lanes) : seed;
    Seed<T> own;
    T value[Shape::ITEMS];
#pragma unroll
    for (int i = 0; i < Shape::ITEMS; ++i) {
      const T item = get<T>(rows.row[r], i);
      if constexpr (is_integer<T>) {
        // Any grouping gives the same bits: item by item behind the seed is the shortest.
        if constexpr (EXCLUSIVE) value[i] = i == 0 ? before.value : own.value;
        own = join<Op>(i == 0 ? before : own, item);
        if constexpr (!EXCLUSIVE) value[i] = own.value;
      } else {
        // From the vector's start: one rounding at the size of the seed, not one per item.
        if constexpr (EXCLUSIVE)
          value[i] = i == 0 ? before.value : join<Op>(before, own.value).value;
        own = join<Op>(own, item);
        if constexpr (!EXCLUSIVE) value[i] = join<Op>(before, own.value).value;
      }
    }
    scanned.row[r] = pack<Y>(value);
    seed = join<Op>(seed, broadcast(inclusive[r], LANES - 1));
  }
  return scanned;
}

}  // namespace distscan
