// A matrix whose columns are scanned, and how a tile of it lies over the threads of a block.
//
// The matrix holds every row of every scan, one below the other: rows n, 2n, ... begin new scans. A
// tile is some rows of one strip, `width` vectors wide. Each warp owns some of its rows, in slices
// of ROWS; `width` lanes walk down a slice side by side, so that each row moves in one access:
//
//   warp w, width 8:  | lanes  0 to  7 |  slice 0: ROWS rows, one after the other
//                     | lanes  8 to 15 |  slice 1: the next ROWS rows
//                     | lanes 16 to 23 |  slice 2
//                     | lanes 24 to 31 |  slice 3
#pragma once

#include "fetch.cuh"

namespace distscan {

// Rows are numbered in the order of the scan; `reverse` turns that round in memory.
struct Matrix {
  int64 rows;     // of all scans together
  int64 n;        // rows of one scan: a row whose number divides by n is a head
  int64 inner;    // elements of a row
  int64 width;    // vectors of a strip's row, 1 to 32
  int64 slices;   // of a warp: 32 / width
  int64 strips;   // side by side; all of them together as wide as a row, or a little wider
  int64 reverse;  // whether row 0 is the last in memory

  // Where row `row` begins in memory.
  __device__ int64 place(int64 row) const { return (reverse ? rows - 1 - row : row) * inner; }
};

// A strip is less than twice as wide as a cache line, or has as many columns as a block threads.
template <class Shape, class... Types>
constexpr int MOST_COLUMNS = 256 / larger(16 / items_per_vector<Types...>(), 1);

// One thread's place in any tile of a matrix.
template <class Shape>
struct Spot {
  int per_warp;   // slices of a warp
  int slice;      // of its warp, this thread's own; per_warp where the thread has nothing to do
  int column;     // of the strip, its first
  int row;        // of the tile, its first
  int warp_rows;  // rows of a warp
  int rows;       // of a tile
  int columns;    // of a strip

  __device__ explicit Spot(const Matrix& matrix)
      : per_warp(static_cast<int>(matrix.slices)),
        slice(lane_index() / static_cast<int>(matrix.width)),
        column(lane_index() % static_cast<int>(matrix.width) * Shape::ITEMS),
        row((warp_index() * per_warp + slice) * Shape::ROWS),
        warp_rows(per_warp * Shape::ROWS),
        rows(Shape::WARPS * warp_rows),
        columns(static_cast<int>(matrix.width) * Shape::ITEMS) {}
};

// One tile.
struct Tile {
  int64 number;  // as drawn: tiles of the same rows follow each other
  int64 index;   // in its strip
  int64 strip;
  int64 begin;     // its first row
  int64 position;  // of that row in its scan: 0 if it is a head
  int64 n;         // rows of one scan

  Tile() = default;
  __device__ Tile(const Matrix& matrix, int rows, int64 number)
      : number(number),
        index(number / matrix.strips),
        strip(number % matrix.strips),
        begin(index * rows),
        position(begin % matrix.n),
        n(matrix.n) {}

  // The position in its scan of row `row` of the tile, which has `rows`. n = 10, position 8:
  // rows 0, 1, 2, 3 -> 8, 9, 0, 1
  __device__ int64 position_of(int row, int rows) const {
    const int64 at = position + row;
    if (at < n) return at;
    return n > rows ? at - n : static_cast<int>(at) % static_cast<int>(n);
  }
};

// ---- Moving a tile -----------------------------------------------------------------------------

// One lane's vectors of a slice, straight from memory; of those that do not exist, nothing.
template <class Shape, class X>
__device__ Rows<X, Shape> load_slice(const X* x, const Matrix& matrix, int64 row, int64 column,
                                     int count) {
  using Moved = Storage<X, Shape::ITEMS>;
  Rows<X, Shape> rows{};
  const X* from = x + matrix.place(row) + column;
  const int64 pitch = matrix.reverse ? -matrix.inner : matrix.inner;
  if (is_aligned<Shape::ITEMS>(x)) {
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r)
      if (r < count)
        reinterpret_cast<Moved&>(rows.row[r]) = *reinterpret_cast<const Moved*>(from + r * pitch);
  } else {
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r)
#pragma unroll
      for (int i = 0; i < Shape::ITEMS; ++i)
        if (r < count) rows.row[r].item[i] = from[r * pitch + i];
  }
  return rows;
}

// Store one vector of one row.
template <int ITEMS, class Y>
__device__ void store_vector(Y* to, const Vector<Y, ITEMS>& vector, bool aligned) {
  using Moved = Storage<Y, ITEMS>;
  if (aligned) {
    *reinterpret_cast<Moved*>(to) = reinterpret_cast<const Moved&>(vector);
  } else {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) to[i] = item(vector, i);
  }
}

// A tile that is narrower than a cache line lies in one piece in memory. It moves through shared
// memory, [from, to) elements of the matrix, as they lie in memory; byte `phase` is its first.
template <int THREADS, class E>
struct Staged {
  __device__ static unsigned char* bytes() {
    extern __shared__ __align__(128) unsigned char staged[];
    return staged;
  }
  __device__ static E* items(const E* p) { return reinterpret_cast<E*>(bytes() + phase(p)); }

  // How many of the `count` elements at p lie before its first whole vector of 16 bytes, and how
  // many such vectors there are.
  __device__ static void cut(const E* p, int count, int& before, int& vectors) {
    constexpr int EACH = larger(16 / sizeof(E), 1);
    const int short_of = (16 - phase(p)) % 16;
    const bool reached = short_of % sizeof(E) == 0;
    before = reached && short_of / int(sizeof(E)) < count ? short_of / int(sizeof(E)) : count;
    vectors = (count - before) / EACH;
  }

  // Bring p[0, count) to shared memory, by the whole block.
  __device__ static void load(const E* p, int count) {
    constexpr int EACH = larger(16 / sizeof(E), 1);
    int before, vectors;
    cut(p, count, before, vectors);
    E* here = items(p);
    for (int i = threadIdx.x; i < vectors; i += THREADS)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                       shared_address(here + before + i * EACH)),
                   "l"(p + before + i * EACH)
                   : "memory");
    for (int i = threadIdx.x; i < before; i += THREADS) here[i] = p[i];
    for (int i = before + vectors * EACH + threadIdx.x; i < count; i += THREADS) here[i] = p[i];
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
  }

  // Store shared memory to p[0, count), by the whole block; to be followed by a barrier.
  __device__ static void store(E* p, int count) {
    constexpr int EACH = larger(16 / sizeof(E), 1);
    using Moved = Storage<E, EACH>;
    int before, vectors;
    cut(p, count, before, vectors);
    const E* here = items(p);
    __syncthreads();
    for (int i = threadIdx.x; i < vectors; i += THREADS)
      *reinterpret_cast<Moved*>(p + before + i * EACH) =
          *reinterpret_cast<const Moved*>(here + before + i * EACH);
    for (int i = threadIdx.x; i < before; i += THREADS) p[i] = here[i];
    for (int i = before + vectors * EACH + threadIdx.x; i < count; i += THREADS) p[i] = here[i];
  }
};

// The part of a tile in memory that moves through shared memory: a matrix of its own.
struct Piece {
  Matrix matrix;
  int64 corner;  // its first element in memory, counted from the whole matrix's
  int elements;

  __device__ Piece(const Matrix& whole, const Tile& tile, int count)
      : matrix{count, whole.n, whole.inner, whole.width, whole.slices, 1, whole.reverse},
        corner(whole.place(whole.reverse ? tile.begin + count - 1 : tile.begin)),
        elements(count * static_cast<int>(whole.inner)) {}
};

// How many rows of a thread's slice exist, in a tile of `count` rows.
template <class Shape>
__device__ int rows_of(const Matrix& matrix, const Tile& tile, const Spot<Shape>& spot, int count) {
  const bool works =
      spot.slice < spot.per_warp && tile.strip * spot.columns + spot.column < matrix.inner;
  const int left = count - spot.row < Shape::ROWS ? count - spot.row : Shape::ROWS;
  return works && left > 0 ? left : 0;
}

// Load a tile of `count` rows; of a thread's slice `mine` rows exist.
template <class Shape, bool STAGED, class X>
__device__ Rows<X, Shape> load_tile(const X* x, const Matrix& matrix, const Tile& tile,
                                    const Spot<Shape>& spot, int count, int mine) {
  const int64 column = tile.strip * spot.columns + spot.column;
  if constexpr (STAGED) {
    const Piece piece(matrix, tile, count);
    using Staged = distscan::Staged<Shape::THREADS, X>;
    Staged::load(x + piece.corner, piece.elements);
    const X* here = Staged::items(x + piece.corner);
    return load_slice<Shape>(here, piece.matrix, spot.row, column, mine);
  } else {
    return load_slice<Shape>(x, matrix, tile.begin + spot.row, column, mine);
  }
}

}  // namespace distscan
