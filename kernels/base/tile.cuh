// A tile: the items that one block scans at a time, and how they lie over its threads.
//
// Each warp of the block owns a contiguous part, its warp tile, in rows of 32 vectors. Lane l holds
// vector l of every row. So each row moves in one coalesced access of up to 16 bytes per lane:
//
//   warp w, row r:  | lane 0: i0 i1 i2 i3 | lane 1: i0 i1 i2 i3 | ... | lane 31: i0 i1 i2 i3 |
#pragma once

#include "vector.cuh"

namespace distscan {

constexpr int LANES = 32;
constexpr unsigned EVERY_LANE = 0xffffffff;

__device__ inline int lane_index() { return threadIdx.x % LANES; }
__device__ inline int warp_index() { return threadIdx.x / LANES; }

// The shape of a tile: WARPS x ROWS x LANES x ITEMS. A REVERSE tile lies mirrored in memory, from
// its end to its start; `load` returns its items in the order of the scan.
template <int THREADS_, int ROWS_, int ITEMS_, bool REVERSE_ = false>
struct Shape {
  static constexpr int THREADS = THREADS_;         // that scan
  static constexpr int ROWS = ROWS_;               // vectors per lane
  static constexpr int ITEMS = ITEMS_;             // elements per vector
  static constexpr int WARPS = THREADS / LANES;    // that scan
  static constexpr int ROW = LANES * ITEMS;        // elements per row
  static constexpr int SIZE = WARPS * ROWS * ROW;  // elements per tile
  static constexpr bool REVERSE = REVERSE_;
};

// ---- Tiles -----------------------------------------------------------------------------------

// One lane's part of a tile.
template <class T, class Shape>
struct Rows {
  Vector<T, Shape::ITEMS> row[Shape::ROWS];
};

// The number of items of the tile before this lane's vector in row `row` of the warp tile of warp
// `warp`. Shape<64, 2, 4>: lane 1 has warp 1's row 0 at 260 and its row 1 at 388.
template <class Shape>
__device__ int position(int warp, int row) {
  return ((warp * Shape::ROWS + row) * LANES + lane_index()) * Shape::ITEMS;
}

// The place of that vector in memory, counted from the begin of the tile.
template <class Shape>
__device__ int place(int warp, int row) {
  const int before = position<Shape>(warp, row);
  return Shape::REVERSE ? Shape::SIZE - Shape::ITEMS - before : before;
}

// Load rows that begin at any element: each vector is joined from the two aligned ones that it
// straddles, SHIFT words and `beyond` bytes after the first.
// SHIFT 1, beyond 2: [0 1 2 3 | 4 5 6 7 | 8 9 a b | ...] -> [6 7 8 9 | ...]
template <int SHIFT, class Shape, class T>
__device__ void load_joined(Rows<T, Shape>& rows, const T* p /* [SIZE] */, int warp, int beyond) {
  constexpr int WORDS = sizeof(Vector<T, Shape::ITEMS>) / 4;
  struct alignas(4 * WORDS) Aligned {
    unsigned word[WORDS];
  };
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) {
    const char* bytes = reinterpret_cast<const char*>(p + place<Shape>(warp, r));
    const auto* aligned = reinterpret_cast<const Aligned*>(bytes - 4 * SHIFT - beyond);
    const Aligned low = aligned[0], high = aligned[1];
    auto& row = reinterpret_cast<unsigned (&)[WORDS]>(rows.row[r]);
#pragma unroll
    for (int w = 0; w < WORDS; ++w) {
      const int a = SHIFT + w, b = a + 1;
      row[w] = __funnelshift_r(a < WORDS ? low.word[a] : high.word[a - WORDS],
                               b < WORDS ? low.word[b] : high.word[b - WORDS], beyond * 8);
    }
  }
}

// Load rows whose vectors are ALIGNED, or item by item.
template <bool ALIGNED, class Shape, class T>
__device__ Rows<T, Shape> load_rows(const T* p /* [SIZE] */, int warp) {
  using Moved = Storage<T, Shape::ITEMS>;
  Rows<T, Shape> rows;
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) {
    const T* from = p + place<Shape>(warp, r);
    if constexpr (ALIGNED) {
      reinterpret_cast<Moved&>(rows.row[r]) = *reinterpret_cast<const Moved*>(from);
    } else {
#pragma unroll
      for (int i = 0; i < Shape::ITEMS; ++i) rows.row[r].item[i] = from[i];
    }
    if constexpr (Shape::REVERSE) rows.row[r] = flip(rows.row[r]);
  }
  return rows;
}

template <class Shape, class T>
__device__ void load_unaligned(Rows<T, Shape>& rows, const T* p /* [SIZE] */, int warp) {
  constexpr int BYTES = sizeof(Vector<T, Shape::ITEMS>), WORDS = BYTES / 4;
  if constexpr (BYTES % 4 != 0 || BYTES > 16) {
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r)
#pragma unroll
      for (int i = 0; i < Shape::ITEMS; ++i) rows.row[r].item[i] = p[place<Shape>(warp, r) + i];
  } else {
    const int behind = static_cast<int>(reinterpret_cast<unsigned long long>(p) % BYTES);
    switch (behind / 4) {
      case 0:
        load_joined<0>(rows, p, warp, behind % 4);
        break;
      case 1:
        load_joined<1 % WORDS>(rows, p, warp, behind % 4);
        break;
      case 2:
        load_joined<2 % WORDS>(rows, p, warp, behind % 4);
        break;
      default:
        load_joined<3 % WORDS>(rows, p, warp, behind % 4);
    }
  }
}

// Load one lane's vectors of a warp tile; the tile at p is in shared memory, which reaches 16
// bytes beyond it.
template <class Shape, class T>
__device__ Rows<T, Shape> load(const T* p /* [SIZE] */, int warp) {
  using Moved = Storage<T, Shape::ITEMS>;
  Rows<T, Shape> rows;
  if (is_aligned<Shape::ITEMS>(p)) {
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r) {
      const T* from = p + place<Shape>(warp, r);
      reinterpret_cast<Moved&>(rows.row[r]) = *reinterpret_cast<const Moved*>(from);
    }
  } else {
    load_unaligned(rows, p, warp);
  }
  if constexpr (Shape::REVERSE) {
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r) rows.row[r] = flip(rows.row[r]);
  }
  return rows;
}

// Store vectors, as they lie in memory, to the tile at p, of which `count` elements exist. WHOLE:
// all do, and the vectors are aligned.
template <bool WHOLE, class Shape, class T>
__device__ void store_flat(T* p /* [SIZE] */, int64 count, int warp, const Rows<T, Shape>& rows) {
  using Moved = Storage<T, Shape::ITEMS>;
  if (WHOLE || (count >= Shape::SIZE && is_aligned<Shape::ITEMS>(p))) {
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r)
      *reinterpret_cast<Moved*>(p + place<Shape>(warp, r)) =
          reinterpret_cast<const Moved&>(rows.row[r]);
    return;
  }
  const int left = count < Shape::SIZE ? static_cast<int>(count) : Shape::SIZE;
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) {
#pragma unroll
    for (int i = 0; i < Shape::ITEMS; ++i) {
      const int at = place<Shape>(warp, r);
      const bool exists = Shape::REVERSE ? at >= Shape::SIZE - left - i : at < left - i;
      if (exists) p[at + i] = item(rows.row[r], i);
    }
  }
}

// Store rows, in the layout of `load`, to the tile at p, of which the first `count` elements in the
// order of the scan exist.
template <bool WHOLE = false, class Shape, class T>
__device__ void store(T* p /* [SIZE] */, int64 count, int warp, const Rows<T, Shape>& rows) {
  if constexpr (Shape::REVERSE) {
    Rows<T, Shape> flipped;
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r) flipped.row[r] = flip(rows.row[r]);
    store_flat<WHOLE>(p, count, warp, flipped);
  } else {
    store_flat<WHOLE>(p, count, warp, rows);
  }
}

}  // namespace distscan
