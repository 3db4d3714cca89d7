// Decoupled look-back: Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled
// Look-back", 2016.
//
// A tile publishes its total at once, and the combination of all tiles up to its own once it knows
// it. A warp looks back, 32 tiles at a time, until it meets such a prefix:
//
//   tile        0    1    2    3    4    5
//   total       .    4    2    5    1
//   prefix      3    7                         tile 5: prefix 7 of tile 1, totals 2, 5, 1: 15
//
// How far it looks depends on who is ahead: floats may round differently from run to run.
#pragma once

#include "peek.cuh"

namespace distscan {

template <class Op, class T>
struct LookBack {
  Prefix<T> offset;  // of all earlier ranks

  // The combination of all tiles before `tile`, whose total is `total`; by a whole warp, in all
  // lanes.
  __device__ Prefix<T> before(int64 tile, T total, const Workspace& work) {
    // Tile 0 has a prefix only, so every look back ends there at last.
    if (tile > 0 && lane_index() == 0) publish(work.totals, tile, total, work.epoch);
    const Prefix<T> prefix = tile > 0 ? look_back(tile, work) : offset;
    if (lane_index() == 0)
      publish(prefixes<T>(work.totals), tile, join<Op>(prefix, total).value, work.epoch);
    return prefix;
  }

 private:
  __device__ Prefix<T> look_back(int64 tile, const Workspace& work) const {
    Prefix<T> prefix;  // of tiles [end, tile)
    for (int64 end = tile;; end -= LANES) {
      // ---- 1. lane l sees tile end - 32 + l, until all behind the last prefix are there -------
      const int64 seen = end - LANES + lane_index();
      T value;
      bool has_total = false, has_prefix = false;
      unsigned with_prefix;
      int first;
      for (Patience patience;; patience.once_more(0)) {
        if (seen >= 0 && !has_prefix) {
          has_prefix = peek(prefixes<T>(work.totals), seen, work.epoch, value);
          if (!has_prefix && !has_total) has_total = peek(work.totals, seen, work.epoch, value);
        }
        with_prefix = __ballot_sync(EVERY_LANE, has_prefix);
        first = with_prefix ? LANES - 1 - __clz(with_prefix) : 0;
        if (__all_sync(EVERY_LANE, has_prefix || has_total || lane_index() < first)) break;
      }

      // ---- 2. those, in order, before what has been seen --------------------------------------
      const T found = broadcast(warp_reduce<Op>(shuffle_down(value, first), LANES - first), 0);
      prefix = {prefix.some ? Op::combine(found, prefix.value) : found, true};
      if (with_prefix) return prefix;
    }
  }
};

}  // namespace distscan
