// The scan down the columns of a matrix in one pass over memory: each element is read once and
// written once.
//
// Persistent blocks, several to a multiprocessor, draw tiles from a counter: tile 0 of every strip,
// then tile 1 of every strip, and so on. So tiles that run at the same time lie side by side in
// memory, and a tile waits only for tiles that running blocks have drawn.
//
//   level   a part is      its total travels by    who combines
//   block   one slice      slices.cuh
//   device  one tile       global memory           a thread per column of each block: above.cuh
#pragma once

#include "above.cuh"

namespace distscan {

// What the scan of columns works with beside its input and output.
struct ColumnsWork {
  Published published;
  unsigned* drawn;  // [1], zero; zero again after the launch
  int64 tiles;      // of all strips
  int64 launch;     // goes with every total: a number that none of an earlier scan had
};

// What each scan begins behind: `first`, or where a row of offsets is given, that.
template <class T>
struct Start {
  const T* offset;  // [inner], or null
  T first;
  bool has_first;

  __device__ bool some() const { return offset || has_first; }
  __device__ T at(int64 column) const { return offset ? offset[column] : first; }
};

// The results of one slice, row by row: `before` is what comes before it, `start` what comes before
// each head. sum, start 10, before 3, rows [1 2 |head 5] -> [4 6 15], exclusive [3 4 10]
template <bool EXCLUSIVE, class Op, class T, class X, class Shape, class Store>
__device__ void scan_slice(const Rows<X, Shape>& rows, int mine, unsigned heads,
                           Run<T, Shape::ITEMS> before, const Start<T>& start, int64 column,
                           Store store) {
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
      // Behind the slice's own combination: one rounding at the size of the seed, not one per row.
      const T last = EXCLUSIVE ? own.value[i] : with;
      const bool some = EXCLUSIVE ? own.some : true;
      value[i] = !before.some ? last : some ? Op::combine(before.value[i], last) : before.value[i];
      own.value[i] = with;
    }
    own.some = true;
    store(r, value);
  }
}

// Launch: no more blocks than tiles or than fit at once; where STAGED, a tile of the wider type and
// 16 bytes more in dynamic shared memory. y may be x. An exclusive scan has a start.
template <class Op, class Shape, bool STAGED, bool EXCLUSIVE, class X, class T, class Y>
__device__ void columns(const X* x /* [rows][inner] */, Y* y /* [rows][inner] */,
                        const Matrix& matrix, const ColumnsWork& work, const Start<T>& start) {
  constexpr int ITEMS = Shape::ITEMS, ROWS = Shape::ROWS, THREADS = Shape::THREADS;
  constexpr int COLUMNS = MOST_COLUMNS<Shape, X, Y>;
  __shared__ Shared<T, Shape::WARPS, COLUMNS> shared;
  __shared__ Window<T, THREADS, COLUMNS> window;
  __shared__ Tile tiles[2];  // the present one, and the next
  const Spot<Shape> spot(matrix);
  const unsigned launch = static_cast<unsigned>(work.launch);
  // The counter is zero again when every block has drawn one tile too many.
  const auto draw = [&] {
    return atomicInc(work.drawn, static_cast<unsigned>(work.tiles + gridDim.x - 1));
  };

  if (threadIdx.x == 0) tiles[0] = Tile(matrix, spot.rows, draw());
  __syncthreads();
  for (int turn = 0;; turn = 1 - turn) {
    // ---- 1. where the tile is, and how much of it is there ------------------------------------
    const Tile& tile = tiles[turn];
    if (tile.number >= work.tiles) return;
    const int64 left = matrix.rows - tile.begin;
    const int count = left < spot.rows ? static_cast<int>(left) : spot.rows;
    const int64 column = tile.strip * spot.columns + spot.column;

    // ---- 2. load it ---------------------------------------------------------------------------
    const int mine = rows_of(matrix, tile, spot, count);
    const auto rows = load_tile<Shape, STAGED>(x, matrix, tile, spot, count, mine);

    // ---- 3. its total, and what the tiles above it bring --------------------------------------
    Run<T, ITEMS> before{};
    const T total = scan_slices<Op, T>(rows, spot, tile, count, mine, shared, before);
    look_above<Op>(tile, spot.rows, spot.columns, total, work.published, launch, window);
    unsigned next;
    if (threadIdx.x == 0) next = draw();  // is there when the results are
    __syncthreads();

    // ---- 4. what comes before each slice ------------------------------------------------------
    behind_warps<Op>(spot, tile, shared, before);
    if (tile.position > 0 && tile.position_of(spot.row, spot.rows) > spot.row) {
      T earlier[ITEMS];
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) earlier[i] = window.seed[spot.column + i];
      put_before<Op>(earlier, before);
    }
    if (start.some() && mine > 0) {
      T earlier[ITEMS];
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) earlier[i] = start.at(column + i);
      put_before<Op>(earlier, before);
    }
    const unsigned heads = distscan::heads<ROWS>(tile.position_of(spot.row, spot.rows), tile.n);

    // ---- 5. the results -----------------------------------------------------------------------
    if constexpr (STAGED) {
      const Piece piece(matrix, tile, count);
      using Staged = distscan::Staged<THREADS, Y>;
      Y* to = Staged::items(y + piece.corner);
      const bool aligned = is_aligned<ITEMS>(to);
      __syncthreads();  // every thread has read its rows, where results now go
      scan_slice<EXCLUSIVE, Op>(
          rows, mine, heads, before, start, column, [&](int r, T(&value)[ITEMS]) {
            store_vector(to + piece.matrix.place(spot.row + r) + column, pack<Y>(value), aligned);
          });
      Staged::store(y + piece.corner, piece.elements);
    } else {
      Y* to = y + matrix.place(tile.begin + spot.row) + column;
      const int64 pitch = matrix.reverse ? -matrix.inner : matrix.inner;
      const bool aligned = is_aligned<ITEMS>(y);
      scan_slice<EXCLUSIVE, Op>(
          rows, mine, heads, before, start, column,
          [&](int r, T(&value)[ITEMS]) { store_vector(to + r * pitch, pack<Y>(value), aligned); });
    }
    if (threadIdx.x == 0) tiles[1 - turn] = Tile(matrix, spot.rows, next);
    __syncthreads();  // every thread has read what the next tile overwrites
  }
}

}  // namespace distscan
