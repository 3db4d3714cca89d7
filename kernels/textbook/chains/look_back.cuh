// Decoupled look-back: Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled
// Look-back", 2016.
//
// A tile publishes its total at once, and its prefix as soon as it knows that. A warp looks back,
// 32 tiles at a time, until it meets a prefix:
//
//   tile        0    1    2    3    4    5
//   total       .    4    2    5    1
//   prefix      3    7                         before tile 5: 7 of tile 1, then 2, 5, 1: 15
//
// The distance depends on which tiles are ahead: floats may round differently from run to run.
#pragma once

#include "../../base/warp_scan.cuh"
#include "../tile_status.cuh"

namespace distscan {

template <class Op, class T>
struct LookBack {
  Prefix<T> offset;  // what comes before tile 0

  // The combination of all before `tile`, which has this total. By a whole warp, in all lanes.
  __device__ Prefix<T> before(int64 tile, T total, const TileStatus<T>& status) {
    // Tile 0 has a prefix alone, so each look back ends there at the latest.
    if (tile > 0 && lane_index() == 0) status.publish_total(tile, total);
    const Prefix<T> prefix = tile > 0 ? look_back(tile, status) : offset;
    if (lane_index() == 0) status.publish_prefix(tile, join<Op>(prefix, total).value);
    return prefix;
  }

 private:
  __device__ Prefix<T> look_back(int64 tile, const TileStatus<T>& status) const {
    Prefix<T> prefix;  // of tiles [end, tile)
    for (int64 end = tile;; end -= LANES) {
      // ---- 1. lane l looks at tile end - 32 + l, until all from the last prefix on are there ----
      const int64 mine = end - LANES + lane_index();
      T value;
      bool has_total = false, has_prefix = false;
      unsigned with_prefix;  // a bit for each lane
      int first;             // the last lane that has found a prefix
      for (Deadline deadline;; deadline.check(0)) {
        if (mine >= 0 && !has_prefix) {
          has_prefix = status.find_prefix(mine, value);
          if (!has_prefix && !has_total) has_total = status.find_total(mine, value);
        }
        with_prefix = __ballot_sync(EVERY_LANE, has_prefix);
        first = with_prefix ? LANES - 1 - __clz(with_prefix) : 0;
        if (__all_sync(EVERY_LANE, has_prefix || has_total || lane_index() < first)) break;
      }

      // ---- 2. these values, in order, come before what was found in the iterations before ------
      const T found = broadcast(warp_reduce<Op>(shuffle_down(value, first), LANES - first), 0);
      prefix = {prefix.some ? Op::combine(found, prefix.value) : found, true};
      if (with_prefix) return prefix;
    }
  }
};

}  // namespace distscan
