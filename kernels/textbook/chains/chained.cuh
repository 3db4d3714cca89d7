// Chained: each tile waits for the one before it, adds its total, and tips the next.
// Yan, Long and Zhang, "StreamScan: Fast Scan Algorithms for GPUs without Global Barrier
// Synchronization", 2013, who call it chained; they too number tiles as blocks start.
//
//   totals      3    4    2    5
//   prefixes    3 -> 7 -> 9 -> 14       one trip through L2 per tile
//
// The least traffic, and the longest wait: as many trips one after the other as there are tiles.
#pragma once

#include "peek.cuh"

namespace distscan {

template <class Op, class T>
struct Chained {
  Prefix<T> offset;  // of all earlier ranks

  // The combination of all tiles before `tile`, whose total is `total`; by a whole warp, in all
  // lanes.
  __device__ Prefix<T> before(int64 tile, T total, const Workspace& work) {
    const Totals up_to = prefixes<T>(work.totals);
    Prefix<T> prefix = offset;
    if (tile > 0) {
      Patience patience;
      while (!peek(up_to, tile - 1, work.epoch, prefix.value)) patience.once_more(0);
      prefix.some = true;
    }
    if (lane_index() == 0) publish(up_to, tile, join<Op>(prefix, total).value, work.epoch);
    return prefix;
  }
};

}  // namespace distscan
