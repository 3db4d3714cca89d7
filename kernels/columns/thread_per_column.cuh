// The scan down the columns of a matrix with many columns: a thread goes down a vector of columns
// of one scan, some rows at a time, and no two threads share a column.
//
// Loads of AHEAD rows are under way at once; neighbouring lanes read neighbouring vectors.
#pragma once

#include "slices.cuh"
#include "store.cuh"

namespace distscan {

// Launch: a thread for every vector of every scan. y may be x. An exclusive scan has a start.
template <class Op, class Shape, bool EXCLUSIVE, class X, class Y, class T>
__device__ void thread_per_column(const typename PointerTo<X>::Const& x /* [scans][n][inner] */,
                                  const typename PointerTo<Y>::Mutable& y /* [scans][n][inner] */,
                                  int64 scans, int64 n, int64 inner, bool reverse,
                                  const Start<T>& start) {
  constexpr int ITEMS = Shape::ITEMS, AHEAD = Shape::ROWS;
  const int64 vector = static_cast<int64>(blockIdx.x) * Shape::THREADS + threadIdx.x;
  const int64 across = inner / ITEMS, scan = vector / across, column = vector % across * ITEMS;
  if (scan >= scans) return;
  const int64 first = (scan * n + (reverse ? n - 1 : 0)) * inner + column;
  const int64 pitch = reverse ? -inner : inner;

  Run<T, ITEMS> before{};
  before.some = start.some();
#pragma unroll
  for (int i = 0; i < ITEMS; ++i)
    if (before.some) before.value[i] = start.at(column + i);
  const bool aligned = is_aligned<ITEMS>(y);
  for (int64 row = 0; row < n; row += AHEAD) {
    const int count = n - row < AHEAD ? static_cast<int>(n - row) : AHEAD;
    const auto rows = load_slice<Shape>(x, first + row * pitch, pitch, count);
    const auto to = y + (first + row * pitch);
    // The last row has no next one.
    const Store<Y, Shape, true> store(to, pitch, row + count < n ? count : count - 1, 0);
    auto own = scan_slice<EXCLUSIVE, Op>(
        rows, count, 0, before, start, column, [&](int r, const T(&value)[ITEMS]) {
          store.row(r, to + r * pitch, aligned, value, rows.row[r]);
        });
    if (before.some) put_before<Op>(before.value, own);
    before = own;
  }
}

}  // namespace distscan
