// The warp level: the reduction and the scan of one warp tile.
//
//   level  a part is              its total travels by    who combines
//   lane   one vector             registers               the lane
//   warp   one lane's vector      shuffles                the warp
//   warp   one row                shuffle from lane 31    the warp
#pragma once

#include "warp_scan.cuh"

namespace distscan {

// The rules of segments for a shard that is one segment; linear/flagged.cuh has other rules.
struct Unsegmented {
  template <class Op, class T>
  __device__ Prefix<T> behind(Prefix<T> prefix, T later) const {
    return join<Op>(prefix, later);
  }
  template <class Op, class T>
  __device__ T close_segment(T total) const {
    return total;
  }
  // The result of an exclusive scan in an item's place; `all` comes before the item.
  template <class T>
  __device__ T before(T all, T item) const {
    return all;
  }
};

// The value alone.
template <class T>
__device__ T value_of(T x) {
  return x;
}

// The total of the warp tile, complete in lane 0 only. T may be a narrow type, if it holds every
// total of so few elements.
template <class Op, class T, class X, class Shape>
__device__ T reduce_rows(const Rows<X, Shape>& rows) {
  T total = reduce<Op, T>(rows.row[0]);
  if constexpr (!Op::COMMUTATIVE) total = warp_reduce<Op>(total);
#pragma unroll
  for (int r = 1; r < Shape::ROWS; ++r) {
    const T row_total = reduce<Op, T>(rows.row[r]);
    total = Op::combine(total, Op::COMMUTATIVE ? row_total : warp_reduce<Op>(row_total));
  }
  return Op::COMMUTATIVE ? warp_reduce<Op>(total) : total;
}

// The same of its first `count` items, at least one. sum, [3 1 4 ...], count 2 -> 4
template <class Op, class T, class X, class Shape>
__device__ T reduce_first_items(const Rows<X, Shape>& rows, int count) {
  Prefix<T> total{};
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) {
    const int left = count - r * Shape::ROW;  // of this row, or more
    T own = get<T>(rows.row[r], 0);
#pragma unroll
    for (int i = 1; i < Shape::ITEMS; ++i)
      if (lane_index() * Shape::ITEMS + i < left) own = Op::combine(own, get<T>(rows.row[r], i));
    own = warp_reduce<Op>(own, (left + Shape::ITEMS - 1) / Shape::ITEMS);
    if (left > 0) total = join<Op>(total, own);
  }
  return total.value;
}

// Whether the items of a warp tile are combined in any order. This gives the same bits for exact
// types. It pays for narrow items, which take about as long to align as to combine.
template <class Op, class T, class X, int ITEMS>
inline constexpr bool in_any_order = Op::COMMUTATIVE && is_exact<T> && is_packed<X, ITEMS>;

// The total of a warp tile, of a tile that lies in shared memory at any address. Lanes combine the
// aligned vectors inside the warp tile; the last lanes also have one item each of the two vectors
// that stick out of it.
// ITEMS 4: [. . 2 3 | 4 5 6 7 | 8 9 . .] -> lane 0 has [4 5 6 7], the last four have 8, 9, 2, 3
template <class Op, class T, class Shape, class X>
__device__ T reduce_anywhere(const X* p /* [SIZE] */, int warp) {
  constexpr int ITEMS = Shape::ITEMS, WARP_TILE = Shape::ROWS * Shape::ROW;
  static_assert(LANES % ITEMS == 0, "the last lanes take an item each");
  const int behind = reinterpret_cast<unsigned long long>(p) % sizeof(Vector<X, ITEMS>) / sizeof(X);
  const X* first = p - behind + (Shape::REVERSE ? Shape::WARPS - 1 - warp : warp) * WARP_TILE;
  const int lane = lane_index(), i = lane % ITEMS;
  const auto total_of = [&](int vector) {
    return reduce<Op, T>(load_packed<ITEMS>(first + vector * ITEMS));
  };
  // The last lane has no vector of this row: it takes its neighbour's, and drops the result.
  T total = total_of((Shape::ROWS - 1) * LANES + (lane < LANES - 1 ? 1 + lane : lane));
  const T single = convert<T>(first[i < behind ? WARP_TILE + i : i]);
  if (lane >= LANES - ITEMS) total = lane < LANES - 1 ? Op::combine(total, single) : single;
#pragma unroll
  for (int r = 0; r < Shape::ROWS - 1; ++r)
    total = Op::combine(total, total_of(r * LANES + 1 + lane));
  return warp_reduce<Op>(total);
}

// The scan of the warp tile, seeded with prefixed(), which is called late, since it may wait.
// Totals of vectors and rows are of type Partial.
// sum, prefix 10, warp tile [1 2 3 ...] -> [11 13 16 ...]; EXCLUSIVE: [10 11 13 ...]
template <class Op, class PartialOp, class Partial, class T, class Y, bool EXCLUSIVE, class X,
          class Shape, class Segments, class Prefixed>
__device__ Rows<Y, Shape> scan_rows(const Rows<X, Shape>& rows, const Segments& segments,
                                    const Prefixed& prefixed) {
  // ---- 1. the vectors' totals over the lanes, row by row -------------------------------------
  Partial inclusive[Shape::ROWS];
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r)
    inclusive[r] = warp_scan<PartialOp>(reduce<PartialOp, Partial>(rows.row[r]));

  // ---- 2. every vector, seeded with the combination of all before it --------------------------
  Prefix<T> prefix = prefixed();
  Rows<Y, Shape> scanned;
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) {
    const T earlier_lanes = convert<T>(shuffle_up(inclusive[r], 1));
    const Prefix<T> before =
        lane_index() > 0 ? segments.template behind<Op>(prefix, earlier_lanes) : prefix;
    Prefix<T> own;
    T value[Shape::ITEMS];
#pragma unroll
    for (int i = 0; i < Shape::ITEMS; ++i) {
      const T item = convert<T>(get<Partial>(rows.row[r], i));
      if constexpr (one_by_one<T>) {
        if constexpr (EXCLUSIVE)
          value[i] = segments.before(i == 0 ? before.value : own.value, item);
        own = segments.template behind<Op>(i == 0 ? before : own, item);
        if constexpr (!EXCLUSIVE) value[i] = own.value;
      } else {
        // From the vector's start: one rounding at the size of the prefix, not one per item.
        if constexpr (EXCLUSIVE)
          value[i] = segments.before(
              i == 0 ? before.value : segments.template behind<Op>(before, own.value).value, item);
        own = join<Op>(own, item);
        if constexpr (!EXCLUSIVE) value[i] = segments.template behind<Op>(before, own.value).value;
      }
    }
    scanned.row[r] = pack<Y>(value);
    prefix = segments.template behind<Op>(prefix, convert<T>(broadcast(inclusive[r], LANES - 1)));
  }
  return scanned;
}

}  // namespace distscan
