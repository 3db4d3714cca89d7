// The block level of a scan down the columns of a tile: what each slice, each warp and the tile
// hands on to the rows below.
//
//   level   a part is              its total travels by    who combines
//   lane    one row of its slice   registers               the lane
//   warp    one slice              shuffles                the warp
//   block   one warp's rows        shared memory           a thread per column
//
// A total begins at the last head in its part, or at its first row. Where heads are follows from
// the row's number, for all columns alike; so no flags travel.
#pragma once

#include "strip.cuh"

namespace distscan {

// The running value of each column of a lane's vectors: of nothing, where not `some`.
template <class T, int ITEMS>
struct Run {
  T value[ITEMS];
  bool some = false;
};

// What comes before, joined with what follows it.
template <class Op, class T, int ITEMS>
__device__ void put_before(const T (&earlier)[ITEMS], Run<T, ITEMS>& run) {
#pragma unroll
  for (int i = 0; i < ITEMS; ++i)
    run.value[i] = run.some ? Op::combine(earlier[i], run.value[i]) : earlier[i];
  run.some = true;
}

// Bit r: whether row r of a slice is a head; its first has `position` in a scan of n rows.
// n = 3, position 1, ROWS 8: 0b00100100
template <int ROWS>
__device__ unsigned heads(int64 position, int64 n) {
  static_assert(ROWS <= 32, "a bit for each row");
  unsigned bits = 0;
  for (int64 r = position == 0 ? 0 : n - position; r < ROWS; r += n) bits |= 1u << r;
  return bits;
}

// What the warps of a block share of a tile.
template <class T, int WARPS, int COLUMNS>
struct Shared {
  T up_to_warp[WARPS][COLUMNS];  // first each warp's total, then what is before each warp
};

// The total of each column of a tile of `count` rows, from its last head on, in the threads whose
// numbers are the columns'. What comes before this thread's slice goes to `before`, as far as it
// is of this tile; `mine` rows of the slice exist.
// sum, one column, slices of 2 rows, no heads: rows [3 1 | 4 1 | 5 9] -> before [. | 4 | 9], 23
template <class Op, class T, class X, class Shape, int COLUMNS>
__device__ T scan_slices(const Rows<X, Shape>& rows, const Spot<Shape>& spot, const Tile& tile,
                         int count, int mine, Shared<T, Shape::WARPS, COLUMNS>& shared,
                         Run<T, Shape::ITEMS>& before) {
  constexpr int ROWS = Shape::ROWS, ITEMS = Shape::ITEMS;
  const int width = spot.columns / ITEMS;
  const bool works = spot.slice < spot.per_warp;

  const unsigned heads = distscan::heads<ROWS>(tile.position_of(spot.row, spot.rows), tile.n);

  // ---- 1. down each slice --------------------------------------------------------------------
  Run<T, ITEMS> own{};
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    if (r < mine) {
      const bool goes_on = r > 0 && !(heads >> r & 1);
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        const T item = get<T>(rows.row[r], i);
        own.value[i] = goes_on ? Op::combine(own.value[i], item) : item;
      }
      own.some = true;
    }
  }

  // ---- 2. down the slices of each warp (Hillis and Steele) -----------------------------------
  // The rows from the last head to the end of this slice; what is not of them is not joined.
  const int64 reach = tile.position_of(spot.row + ROWS - 1, spot.rows) + 1;
  for (int distance = 1; distance < spot.per_warp; distance *= 2) {
    T earlier[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) earlier[i] = shuffle_up(own.value[i], distance * width);
    const int joined = distance * ROWS;  // rows that `own` has of this slice and those above
    const int offered = 2 * distance - 1 < spot.slice ? 2 * distance - 1 : spot.slice;
    if (works && spot.slice >= distance && reach > joined && spot.row - offered * ROWS < count) {
      own.some = spot.row + ROWS - joined < count;
      put_before<Op>(earlier, own);
    }
  }
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) before.value[i] = shuffle_up(own.value[i], width);
  before.some = spot.slice > 0 && tile.position_of(spot.row, spot.rows) > 0;

  // ---- 3. down the warps ---------------------------------------------------------------------
  if (spot.slice == spot.per_warp - 1) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) shared.up_to_warp[warp_index()][spot.column + i] = own.value[i];
  }
  __syncthreads();
  T total{};
  const int column = threadIdx.x;
  if (column < spot.columns) {
#pragma unroll
    for (int w = 0; w < Shape::WARPS; ++w) {
      const int first = w * spot.warp_rows;
      if (first < count) {
        const T next = shared.up_to_warp[w][column];
        shared.up_to_warp[w][column] = total;
        const bool goes_on =
            w > 0 && tile.position_of(first + spot.warp_rows - 1, spot.rows) >= spot.warp_rows;
        total = goes_on ? Op::combine(total, next) : next;
      }
    }
  }
  return total;
}

// Join what the warps above bring to what comes before this thread's slice; after a barrier that
// follows scan_slices.
template <class Op, class T, class Shape, int COLUMNS>
__device__ void behind_warps(const Spot<Shape>& spot, const Tile& tile,
                             const Shared<T, Shape::WARPS, COLUMNS>& shared,
                             Run<T, Shape::ITEMS>& before) {
  const int above = spot.slice * Shape::ROWS;  // rows of this warp
  if (warp_index() > 0 && tile.position_of(spot.row, spot.rows) > above) {
    T earlier[Shape::ITEMS];
#pragma unroll
    for (int i = 0; i < Shape::ITEMS; ++i)
      earlier[i] = shared.up_to_warp[warp_index()][spot.column + i];
    put_before<Op>(earlier, before);
  }
}

}  // namespace distscan
