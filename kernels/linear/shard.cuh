// The device level: how a shard is cut into tiles, and what its kernels work with.
#pragma once

#include "../base/status_words.cuh"

namespace distscan {

// How a shard of n elements is cut, in the order of the scan: tile 0 is the `peel`, the elements
// before the first boundary of vectors, if there are any; then tiles of SIZE elements.
// n = 100, peel 3, SIZE 32: [0, 3) [3, 35) [35, 67) [67, 99) [99, 100)
struct Shard {
  int64 n;
  int64 peel;
  int64 tiles;  // the peel counted

  template <class Shape>
  __device__ int64 begin(int64 tile) const {
    if (peel == 0) return tile * Shape::SIZE;
    return tile == 0 ? 0 : peel + (tile - 1) * Shape::SIZE;
  }
  template <class Shape>
  __device__ int64 end(int64 tile) const {
    const int64 next = begin<Shape>(tile + 1);
    return next < n ? next : n;
  }
  // What exists of a tile, in memory.
  template <class Shape>
  __device__ int64 from(int64 tile) const {
    return Shape::REVERSE ? n - end<Shape>(tile) : begin<Shape>(tile);
  }
  template <class Shape>
  __device__ int64 to(int64 tile) const {
    return Shape::REVERSE ? n - begin<Shape>(tile) : end<Shape>(tile);
  }
  // Where in memory a tile behind the peel lies; the last one of a reverse scan sticks out before
  // element 0. The example in reverse: the tiles at 65, 33, 1, -31
  template <class Shape>
  __device__ int64 at(int64 tile) const {
    return Shape::REVERSE ? n - begin<Shape>(tile) - Shape::SIZE : begin<Shape>(tile);
  }
};

// How the elements of a shard fall into rows.
struct RowLength {
  int64 length;
  unsigned long long reciprocal;  // 2^64 / length, rounded down; 2^64 - 1 of 1
  unsigned starts;                // bit i is set where i is a multiple of length

  // i % length, of i >= 0; the quotient may come out one too small.
  __device__ int64 rest(int64 i) const {
    const int64 rest = i - static_cast<int64>(__umul64hi(i, reciprocal)) * length;
    return rest < length ? rest : rest - length;
  }
};

// What a scan works with beside its input and output.
struct Workspace {
  Totals totals;           // of the tiles
  Totals total;            // [1], the last value, in pinned host memory; or words is null
  unsigned* tile_counter;  // [1], zero; zero again after the launch
  unsigned epoch;          // goes with every total: a number that none of an earlier scan had
};

}  // namespace distscan
