// The chained scan: each tile waits for the prefix of the tile before it, and adds its own total.
// Yan, Long and Zhang, "StreamScan: Fast Scan Algorithms for GPUs without Global Barrier
// Synchronization", 2013. They number tiles in the order in which blocks start, as here.
//
//   tile        0    1    2    3
//   total       3    4    2    5
//   prefix      3 -> 7 -> 9 -> 14       each arrow is one trip through L2
//
// The least traffic, and the longest wait: as many trips, one after the other, as there are tiles.
#pragma once

#include "../../base/warp_scan.cuh"
#include "../tile_status.cuh"

namespace distscan {

template <class Op, class T>
struct Chained {
  Prefix<T> offset;  // what comes before tile 0

  // The combination of all before `tile`, which has this total. By a whole warp, in all lanes.
  __device__ Prefix<T> before(int64 tile, T total, const TileStatus<T>& status) {
    Prefix<T> prefix = offset;
    if (tile > 0) {
      Deadline deadline;
      while (!status.find_prefix(tile - 1, prefix.value)) deadline.check(0);
      prefix.some = true;
    }
    if (lane_index() == 0) status.publish_prefix(tile, join<Op>(prefix, total).value);
    return prefix;
  }
};

}  // namespace distscan
