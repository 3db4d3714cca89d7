// The warp and block levels of a scan down the columns of a tile: the totals between slices.
//
//   level   a part is              its total travels by    who combines
//   lane    one row of its slice   registers               the lane
//   warp    one slice              shuffles                the warp
//   block   one warp tile         shared memory           a lane per column
//
// A total begins at the last head in its part, or at its first row. The numbers of rows tell where
// heads are, for all columns; so no flags travel.
#pragma once

#include "../base/warp_scan.cuh"
#include "strip_of_fields.cuh"

namespace distscan {

// The running value of each column of a lane's vectors. If not `some`, there is no value.
template <class T, int ITEMS>
struct Run {
  alignas(Vector<T, ITEMS>) T value[ITEMS];
  bool some = false;
};

// An earlier value, joined with the next one.
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
__device__ unsigned long long heads(int64 position, int64 n) {
  static_assert(ROWS <= 64, "a bit for each row");
  unsigned long long bits = 0;
  for (int64 r = position == 0 ? 0 : n - position; r < ROWS; r += n) bits |= 1ull << r;
  return bits;
}

// The total of each slice of a warp tile with those above it, as far as they are of one scan: this
// lane's in `own`, what comes before its slice in `before`. The tile must be whole. A lane that
// does not `work` combines nothing.
// sum, one column, slices of 2 rows: [3 1 | 4 1 | 5 9] -> own [4 | 9 | 23], before [. | 4 | 9]
template <class Op, class T, class X, class Shape>
__device__ void reduce_whole(const Rows<X, Shape>& rows, const Spot<Shape>& spot, bool works,
                             Run<T, Shape::ITEMS>& own, Run<T, Shape::ITEMS>& before) {
  constexpr int ITEMS = Shape::ITEMS;
  if (works) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      own.value[i] = get<T>(rows.row[0], i);
#pragma unroll
      for (int r = 1; r < Shape::ROWS; ++r)
        own.value[i] = Op::combine(own.value[i], get<T>(rows.row[r], i));
    }
  }
  for (int distance = 1; distance < spot.slices; distance *= 2) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const T earlier = shuffle_up(own.value[i], distance * spot.width);
      if (works && spot.slice >= distance) own.value[i] = Op::combine(earlier, own.value[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) before.value[i] = shuffle_up(own.value[i], spot.width);
}

// The same of any tile.
template <class Op, class T, class X, class Shape>
__device__ void reduce_slices(const Rows<X, Shape>& rows, const Spot<Shape>& spot, const Tile& tile,
                              bool works, int warp, Run<T, Shape::ITEMS>& own,
                              Run<T, Shape::ITEMS>& before) {
  constexpr int ROWS = Shape::ROWS, ITEMS = Shape::ITEMS;
  const int row = spot.row(warp), mine = works ? tile.rows_of(row, ROWS) : 0;

  // ---- 1. down each slice --------------------------------------------------------------------
  const unsigned long long heads = distscan::heads<ROWS>(tile.position_of(row), tile.n);
  own.some = false;
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

  // ---- 2. down the slices (Hillis and Steele, 1986) ------------------------------------------
  // Rows from the last head to the end of this slice. Earlier rows are not joined.
  const int64 since_head = tile.position_of(row + ROWS - 1) + 1;
  for (int distance = 1; distance < spot.slices; distance *= 2) {
    T earlier[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) earlier[i] = shuffle_up(own.value[i], distance * spot.width);
    const int joined = distance * ROWS;  // rows that `own` has of this slice and those above
    const int offered = 2 * distance - 1 < spot.slice ? 2 * distance - 1 : spot.slice;
    if (works && spot.slice >= distance && since_head > joined &&
        row - offered * ROWS < tile.count) {
      own.some = row + ROWS - joined < tile.count;
      put_before<Op>(earlier, own);
    }
  }
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) before.value[i] = shuffle_up(own.value[i], spot.width);
}

// The level of a block: the total of column `column` of a tile, which exists. Leaves in `parts`,
// in place of each warp tile's total, the total before the warp tile.
// sum, no heads: parts [3 1 4] -> [. 3 4], 8
template <class Op, class T, class Shape, int WARPS, int COLUMNS>
__device__ T join_warps(T (&parts)[WARPS][COLUMNS], const Spot<Shape>& spot, const Tile& tile,
                        int column) {
  T next[WARPS];
#pragma unroll
  for (int w = 0; w < WARPS; ++w) next[w] = parts[w][column];
  T total = next[0];
#pragma unroll
  for (int w = 1; w < WARPS; ++w) {
    const int first = w * spot.rows;
    if (first >= tile.count) break;
    parts[w][column] = total;
    const bool goes_on = tile.whole || tile.position_of(first + spot.rows - 1) >= spot.rows;
    total = goes_on ? Op::combine(total, next[w]) : next[w];
  }
  return total;
}

// The seeds of scans: a row of offsets, or `first` for all columns, or none.
template <class T>
struct Start {
  const T* offset;  // [inner], or null
  T first;
  bool has_first;

  __device__ bool some() const { return offset || has_first; }
  __device__ T at(int64 column) const { return offset ? offset[column] : first; }
};

// Pass the results of a slice of a whole tile, row by row, to `store`.
// sum, before 3, rows [1 2 5] -> [4 6 11], exclusive [3 4 6]
template <bool EXCLUSIVE, class Op, class T, class X, class Shape, class Store>
__device__ void scan_whole(const Rows<X, Shape>& rows, const T (&before)[Shape::ITEMS],
                           const Store& store) {
  constexpr int ITEMS = Shape::ITEMS;
  T own[ITEMS];
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) {
    T value[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const T item = get<T>(rows.row[r], i);
      const T with = r > 0 ? Op::combine(own[i], item) : item;
      // Behind the slice's own combination: one rounding at the size of the prefix, not one per
      // row.
      value[i] = !EXCLUSIVE ? Op::combine(before[i], with)
                 : r > 0    ? Op::combine(before[i], own[i])
                            : before[i];
      own[i] = with;
    }
    store(r, value);
  }
}

// Pass the results of the first `mine` rows of one slice, row by row, to `store`. `before` is the
// total before the slice, `start` the seed at each head. Returns what the slice adds to `before`.
// sum, start 10, before 3, rows [1 2 |head 5] -> [4 6 15], exclusive [3 4 10]
template <bool EXCLUSIVE, class Op, class T, class X, class Shape, class Store>
__device__ Run<T, Shape::ITEMS> scan_slice(const Rows<X, Shape>& rows, int mine,
                                           unsigned long long heads, Run<T, Shape::ITEMS> before,
                                           const Start<T>& start, int64 column,
                                           const Store& store) {
  constexpr int ITEMS = Shape::ITEMS;
  Run<T, ITEMS> own{};  // from the slice's first row or its last head
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) {
    if (r >= mine) break;
    if (heads >> r & 1) {
      before.some = start.some();
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) before.value[i] = start.at(column + i);
      own.some = false;
    }
    T value[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const T item = get<T>(rows.row[r], i);
      const T with = own.some ? Op::combine(own.value[i], item) : item;
      // Behind the slice's own combination: one rounding at the size of the prefix, not one per
      // row.
      const T last = EXCLUSIVE ? own.value[i] : with;
      const bool some = EXCLUSIVE ? own.some : true;
      value[i] = !before.some ? last : some ? Op::combine(before.value[i], last) : before.value[i];
      own.value[i] = with;
    }
    own.some = true;
    store(r, value);
  }
  return own;
}

}  // namespace distscan
