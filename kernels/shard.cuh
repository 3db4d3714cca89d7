// The device level: how a shard is cut into tiles, and what its kernels work with.
#pragma once

#include "totals.cuh"

namespace distscan {

// How a shard of n elements is cut: tile 0 is the `head`, the elements before the first one that
// is aligned for vectors, if there are any; then tiles of SIZE elements.
// n = 100, head 3, SIZE 32: [0, 3) [3, 35) [35, 67) [67, 99) [99, 100)
struct Shard {
  int64 n;
  int64 head;
  int64 tiles;  // the head counted

  template <class Shape>
  __device__ int64 begin(int64 tile) const {
    if (head == 0) return tile * Shape::SIZE;
    return tile == 0 ? 0 : head + (tile - 1) * Shape::SIZE;
  }
  template <class Shape>
  __device__ int64 end(int64 tile) const {
    const int64 next = begin<Shape>(tile + 1);
    return next < n ? next : n;
  }
};

// What a scan works with beside its input and output.
struct Workspace {
  Totals totals;    // of the tiles
  Totals total;     // [1], the last value, in pinned host memory; or words is null
  unsigned* drawn;  // [1], zero; zero again after the launch
  unsigned launch;  // goes with every total: a number that none of an earlier scan had
};

}  // namespace distscan
