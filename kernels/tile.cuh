// A tile: the items that one block scans at a time, and how they lie over its threads.
//
// Each warp of the block owns a contiguous stretch of the tile, in rows of 32 vectors; lane l
// holds vector l of every row, so that each row moves in one coalesced access of up to 16 bytes
// per lane:
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
  static constexpr int THREADS = THREADS_;         // that scan
  static constexpr int ROWS = ROWS_;               // vectors per lane
  static constexpr int ITEMS = ITEMS_;             // elements per vector
  static constexpr int WARPS = THREADS / LANES;    // that scan
  static constexpr int ROW = LANES * ITEMS;        // elements per row
  static constexpr int SIZE = WARPS * ROWS * ROW;  // elements per tile
};

template <class T, int ITEMS>
struct alignas(sizeof(T) * ITEMS) Vector {
  T item[ITEMS];
};

// One lane's part of a tile.
template <class T, class Shape>
struct Rows {
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

// The vector at p in shared memory, which may begin at any element: each word of 4 bytes is joined
// from the two that it straddles.
template <int ITEMS, class T>
__device__ Vector<T, ITEMS> load_unaligned(const T* p /* [ITEMS] */) {
  constexpr int WORDS = sizeof(Vector<T, ITEMS>) / 4;
  union {
    Vector<T, ITEMS> vector;
    unsigned word[WORDS + 1];
  } joined;
  if constexpr (WORDS == 0) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) joined.vector.item[i] = p[i];
  } else {
    const unsigned long long address = reinterpret_cast<unsigned long long>(p);
    const unsigned* words = reinterpret_cast<const unsigned*>(address & ~3ull);
    const int shift = address % 4 * 8;  // 0 for elements of 4 bytes and more
    unsigned low = words[0];
#pragma unroll
    for (int w = 0; w < WORDS; ++w) {
      const unsigned high = words[w + 1];
      joined.word[w] = __funnelshift_r(low, high, shift);
      low = high;
    }
  }
  return joined.vector;
}

// Load one lane's vectors of a tile in shared memory, which reaches 16 bytes beyond the tile.
template <class Shape, class T>
__device__ Rows<T, Shape> load(const T* p /* [SIZE] */) {
  Rows<T, Shape> rows;
  if (is_aligned<Shape::ITEMS>(p)) {
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r)
      rows.row[r] = *reinterpret_cast<const Vector<T, Shape::ITEMS>*>(p + place<Shape>(r));
  } else {
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r)
      rows.row[r] = load_unaligned<Shape::ITEMS>(p + place<Shape>(r));
  }
  return rows;
}

// Store one lane's vectors to a tile at p, of which `count` elements exist.
template <class Shape, class T>
__device__ void store(T* p /* [count] */, int64 count, const Rows<T, Shape>& rows) {
  if (count >= Shape::SIZE && is_aligned<Shape::ITEMS>(p)) {
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r)
      *reinterpret_cast<Vector<T, Shape::ITEMS>*>(p + place<Shape>(r)) = rows.row[r];
    return;
  }
  const int left = count < Shape::SIZE ? static_cast<int>(count) : Shape::SIZE;
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) {
#pragma unroll
    for (int i = 0; i < Shape::ITEMS; ++i) {
      const int at = place<Shape>(r);
      if (at < left - i) p[at + i] = rows.row[r].item[i];
    }
  }
}

template <class To, class From, class Shape>
__device__ Rows<To, Shape> convert(const Rows<From, Shape>& from) {
  Rows<To, Shape> to;
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r)
#pragma unroll
    for (int i = 0; i < Shape::ITEMS; ++i) to.row[r].item[i] = convert<To>(from.row[r].item[i]);
  return to;
}

}  // namespace distscan
