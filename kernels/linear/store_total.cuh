// The last value of a shard, for the host.
#pragma once

#include "shard.cuh"

namespace distscan {

// Write the inclusive value of the shard's last element to the host, by the thread that has it. The
// tile's first `count` elements exist. item() returns the shard's last element. An EXCLUSIVE scan
// needs it, and calls this before it stores: y may be x.
template <class Op, bool EXCLUSIVE, class T, class Y, class Shape, class Item>
__device__ void store_total(const Rows<Y, Shape>& scanned, int64 count, int warp,
                            const Shard& shard, const Workspace& work, const Item& item) {
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r)
#pragma unroll
    for (int i = 0; i < Shape::ITEMS; ++i)
      if (position<Shape>(warp, r) + i == count - 1) {
        T last = get<T>(scanned.row[r], i);
        if constexpr (EXCLUSIVE) last = join<Op>(Prefix<T>{last, shard.n > 1}, item()).value;
        publish(work.total, 0, last, work.epoch);
      }
}

}  // namespace distscan
