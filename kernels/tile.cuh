// A tile: the items that one block holds in registers at a time, and how they come and go.
//
// Each warp of the block owns a contiguous stretch of the tile, in rows of 32 vectors; lane l
// holds vector l of every row, so that each row moves in one coalesced 16-byte access per lane:
//
//   warp w, row r:  | lane 0: i0 i1 i2 i3 | lane 1: i0 i1 i2 i3 | ... | lane 31: i0 i1 i2 i3 |
#pragma once

#include "types.cuh"

namespace distscan {

constexpr int LANES = 32;

__device__ inline int lane_index() { return threadIdx.x % LANES; }
__device__ inline int warp_index() { return threadIdx.x / LANES; }

// The shape of a tile: WARPS x ROWS x LANES x ITEMS.
template <int THREADS_, int ROWS_, int ITEMS_>
struct Shape {
  static constexpr int THREADS = THREADS_;         // of a block
  static constexpr int ROWS = ROWS_;               // vectors per lane, all in flight at once
  static constexpr int ITEMS = ITEMS_;             // elements per vector
  static constexpr int WARPS = THREADS / LANES;    // of a block
  static constexpr int ROW = LANES * ITEMS;        // elements per row
  static constexpr int SIZE = WARPS * ROWS * ROW;  // elements per tile
};

template <class T, int ITEMS>
struct alignas(sizeof(T) * ITEMS) Vector {
  T item[ITEMS];
};

template <class T, class Shape>
struct Tile {
  Vector<T, Shape::ITEMS> row[Shape::ROWS];
};

// Where in its tile this thread's vector of row r begins.
// Shape<64, 2, 4>: thread 33 (warp 1, lane 1) has row 0 at 260 and row 1 at 388.
template <class Shape>
__device__ int place(int row) {
  return ((warp_index() * Shape::ROWS + row) * LANES + lane_index()) * Shape::ITEMS;
}

template <int ITEMS, class T>
__device__ bool is_aligned(const T* p) {
  return reinterpret_cast<unsigned long long>(p) % sizeof(Vector<T, ITEMS>) == 0;
}

// Load p[0, count) into the tile; what lies beyond count reads as zero and is never stored.
// Vectors where p allows, single elements otherwise.
template <class Shape, class T>
__device__ Tile<T, Shape> load(const T* p /* [count] */, int64 count) {
  using Vec = Vector<T, Shape::ITEMS>;
  Tile<T, Shape> tile;
  if (count >= Shape::SIZE && is_aligned<Shape::ITEMS>(p)) {
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r)
      tile.row[r] = *reinterpret_cast<const Vec*>(p + place<Shape>(r));
    return tile;
  }
  const int left = count < Shape::SIZE ? static_cast<int>(count) : Shape::SIZE;
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) {
#pragma unroll
    for (int i = 0; i < Shape::ITEMS; ++i) {
      const int at = place<Shape>(r);
      tile.row[r].item[i] = at < left - i ? p[at + i] : T{};
    }
  }
  return tile;
}

// Store the tile to p[0, count), by vectors where p allows.
template <class Shape, class T>
__device__ void store(T* p /* [count] */, int64 count, const Tile<T, Shape>& tile) {
  using Vec = Vector<T, Shape::ITEMS>;
  if (count >= Shape::SIZE && is_aligned<Shape::ITEMS>(p)) {
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r)
      *reinterpret_cast<Vec*>(p + place<Shape>(r)) = tile.row[r];
    return;
  }
  const int left = count < Shape::SIZE ? static_cast<int>(count) : Shape::SIZE;
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) {
#pragma unroll
    for (int i = 0; i < Shape::ITEMS; ++i) {
      const int at = place<Shape>(r);
      if (at < left - i) p[at + i] = tile.row[r].item[i];
    }
  }
}

template <class To, class From, class Shape>
__device__ Tile<To, Shape> convert(const Tile<From, Shape>& from) {
  Tile<To, Shape> to;
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r)
#pragma unroll
    for (int i = 0; i < Shape::ITEMS; ++i) to.row[r].item[i] = convert<To>(from.row[r].item[i]);
  return to;
}

}  // namespace distscan
