// The warp level: the reduction and the scan of one warp's stretch of a tile.
//
//   level  a part is              its total travels by    who combines
//   lane   one vector             registers               the lane
//   warp   one lane's vector      shuffles                the warp
//   warp   one row                shuffle from lane 31    the warp
#pragma once

#include "warp_scan.cuh"

namespace distscan {

// The scan of the vectors' totals over the lanes, row by row: what the lanes know of each other.
template <class T, class Shape>
struct LaneTotals {
  T inclusive[Shape::ROWS];
};

template <class Op, class T, class X, class Shape>
__device__ LaneTotals<T, Shape> scan_lanes(const Rows<X, Shape>& rows) {
  LaneTotals<T, Shape> lanes;
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r)
    lanes.inclusive[r] = warp_scan<Op>(reduce<Op, T>(rows.row[r]));
  return lanes;
}

// The total of the stretch, whole in lane 0: half the shuffles, or less, that total_of needs.
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

// The total of the stretch, in all lanes.
template <class Op, class T, class Shape>
__device__ T total_of(const LaneTotals<T, Shape>& lanes) {
  T total = broadcast(lanes.inclusive[0], LANES - 1);
#pragma unroll
  for (int r = 1; r < Shape::ROWS; ++r)
    total = Op::combine(total, broadcast(lanes.inclusive[r], LANES - 1));
  return total;
}

// The inclusive scan of the stretch behind `seed`.
// sum, seed 10, stretch [1 2 3 ...] -> [11 13 16 ...]
template <class Op, class Y, class T, class X, class Shape>
__device__ Rows<Y, Shape> scan_stretch(const Rows<X, Shape>& rows,
                                       const LaneTotals<T, Shape>& lanes, Seed<T> seed) {
  Rows<Y, Shape> scanned;
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) {
    const T earlier_lanes = shuffle_up(lanes.inclusive[r], 1);
    const Seed<T> before = lane_index() > 0 ? join<Op>(seed, earlier_lanes) : seed;
    Seed<T> own;
#pragma unroll
    for (int i = 0; i < Shape::ITEMS; ++i) {
      const T item = convert<T>(rows.row[r].item[i]);
      if constexpr (is_integer<T>) {
        // Any grouping gives the same bits: item by item behind the seed is the shortest.
        own = join<Op>(i == 0 ? before : own, item);
        scanned.row[r].item[i] = convert<Y>(own.value);
      } else {
        // From the vector's start: one rounding at the size of the seed, not one per item.
        own = join<Op>(own, item);
        scanned.row[r].item[i] = convert<Y>(join<Op>(before, own.value).value);
      }
    }
    seed = join<Op>(seed, broadcast(lanes.inclusive[r], LANES - 1));
  }
  return scanned;
}

}  // namespace distscan
