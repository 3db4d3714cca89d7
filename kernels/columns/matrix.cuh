// A matrix whose columns are scanned, and how a tile of it lies over the lanes of a block's warps.
//
// The matrix holds every row of every scan, one below the other: rows n, 2n, ... begin new scans. A
// tile is some rows of one strip, `width` vectors wide. Each warp that scans owns a warp tile of
// its rows, in slices of ROWS; `width` lanes go down a slice side by side:
//
//   warp w, width 8:  | lanes  0 to  7 |  slice 0: ROWS rows, one after the other
//                     | lanes  8 to 15 |  slice 1: the next ROWS rows
//                     | lanes 16 to 23 |  slice 2
//                     | lanes 24 to 31 |  slice 3
#pragma once

#include "../base/tile.cuh"

namespace distscan {

// Rows are numbered in the order of the scan. If `reverse`, row 0 is the last in memory.
struct Matrix {
  int64 rows;     // of all scans together
  int64 n;        // rows of one scan: a row whose number divides by n is a head
  int64 inner;    // elements of a row
  int64 width;    // vectors of a strip's row, 1 to 32
  int64 strips;   // side by side; the last may be narrower
  int64 tiles;    // of a strip
  int64 reverse;  // whether row 0 is the last in memory

  // The first element of row `row` in memory.
  __device__ int64 place(int64 row) const { return (reverse ? rows - 1 - row : row) * inner; }
  // From one row to the next.
  __device__ int64 pitch() const { return reverse ? -inner : inner; }
};

// One lane's place in the warp tile of any warp.
template <class Shape>
struct Spot {
  int width;    // lanes side by side
  int slices;   // of a warp tile
  int slice;    // this lane's own; `slices` where it has nothing to do
  int column;   // of the strip, its first
  int rows;     // of a warp tile
  int height;   // rows of a tile
  int columns;  // of a strip

  __device__ explicit Spot(const Matrix& matrix)
      : width(static_cast<int>(matrix.width)),
        slices(LANES / width),
        slice(lane_index() / width),
        column(lane_index() % width * Shape::ITEMS),
        rows(slices * Shape::ROWS),
        height(Shape::WARPS * rows),
        columns(width * Shape::ITEMS) {}

  // The first row of this lane's slice in the warp tile of warp `warp`.
  __device__ int row(int warp) const { return warp * rows + slice * Shape::ROWS; }
};

// One tile.
struct Tile {
  int64 index;  // in its strip; END: there are no more
  int64 strip;
  int columns;     // of the strip; the last strip may have fewer than others
  int64 begin;     // its first row
  int64 position;  // of that row in its scan: 0 if it is a head
  int64 n;         // rows of one scan
  int64 origin;    // where its first row begins in memory
  int64 corner;    // where it begins itself: there, or in reverse at its last row
  int64 row;       // of the corner, in memory
  int count;       // rows that exist
  bool whole;      // whether all do, and none but the first is a head

  static constexpr int64 END = -1;

  Tile() = default;
  __device__ Tile(const Matrix& matrix, int height, int columns, int64 strip, int64 index)
      : index(index),
        strip(strip),
        begin(index * height),
        position(begin < matrix.n ? begin : begin % matrix.n),
        n(matrix.n),
        count(matrix.rows - begin < height ? static_cast<int>(matrix.rows - begin) : height),
        whole(count == height && n - position >= height) {
    const int64 left = matrix.inner - strip * columns;
    this->columns = left < columns ? static_cast<int>(left) : columns;
    origin = matrix.place(begin) + strip * columns;
    corner = matrix.reverse ? origin - (count - 1) * matrix.inner : origin;
    row = matrix.reverse ? matrix.rows - begin - count : begin;
  }

  // The position in its scan of row `row` of the tile. n = 10, position 8:
  // rows 0, 1, 2, 3 -> 8, 9, 0, 1
  __device__ int64 position_of(int row) const {
    const int64 at = position + row;
    if (at < n) return at;
    return at < 2 * n ? at - n : at % n;
  }
  // The earliest tile that has rows of the scan which its first row goes on with; itself if none.
  __device__ int64 earliest(int height) const {
    return position == 0 ? index : position == begin ? 0 : (begin - position) / height;
  }
  // The rows of a slice that begins at row `row`.
  __device__ int rows_of(int row, int most) const {
    const int left = count - row;
    return left <= 0 ? 0 : left < most ? left : most;
  }
};

}  // namespace distscan
