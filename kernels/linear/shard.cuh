// The device level: the tiles of a shard, and the workspace of its kernels.
#pragma once

#include "../base/status_words.cuh"

namespace distscan {

// The tiles of a shard of n elements, in the order of the scan. The `unaligned_head` is the number
// of elements before the first boundary of vectors. If there are any, they are tile 0. Then come
// tiles of SIZE elements.
//
//     n = 100, unaligned_head 3, SIZE 32: [0, 3) [3, 35) [35, 67) [67, 99) [99, 100)
struct Shard {
  int64 n;
  int64 unaligned_head;
  int64 tiles;       // the unaligned head counted
  bool evict_first;  // whether elements leave the L2 cache before results do (cuda/policy.py)

  template <class Shape>
  __device__ int64 begin(int64 tile) const {
    if (unaligned_head == 0) return tile * Shape::SIZE;
    return tile == 0 ? 0 : unaligned_head + (tile - 1) * Shape::SIZE;
  }
  template <class Shape>
  __device__ int64 end(int64 tile) const {
    const int64 next = begin<Shape>(tile + 1);
    return next < n ? next : n;
  }
  // The elements of a tile that exist: x[from, to) in memory.
  template <class Shape>
  __device__ int64 from(int64 tile) const {
    return Shape::REVERSE ? n - end<Shape>(tile) : begin<Shape>(tile);
  }
  template <class Shape>
  __device__ int64 to(int64 tile) const {
    return Shape::REVERSE ? n - begin<Shape>(tile) : end<Shape>(tile);
  }
  // The place in memory of a tile after the unaligned head. The last tile of a reverse scan may
  // begin before element 0. The example in reverse: the tiles at 65, 33, 1, -31
  template <class Shape>
  __device__ int64 at(int64 tile) const {
    return Shape::REVERSE ? n - begin<Shape>(tile) - Shape::SIZE : begin<Shape>(tile);
  }
};

// The length of the rows in a shard, with numbers derived from it.
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

// The memory of a scan beside its input and output.
struct Workspace {
  Totals totals;   // of the tiles
  Totals total;    // [1], the last value, in pinned host memory; or words is null
  Word* draws;     // [1], of the next Ticket; zero before the first launch
  unsigned epoch;  // the number of this launch beside all words from and to the host
};

}  // namespace distscan
