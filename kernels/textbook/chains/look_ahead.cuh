// Look-ahead: a block publishes its tile's total. Then it reads the totals of all tiles from its
// previous tile on, all at once. In linear/scan.cuh special warps do this.
//
//   tile        0    1    2    3    4    5
//   of block    A    B    C    A    B    C
//   total       3    4    2    5    1    6
//   before tile 1:  B reads 3: 3
//   before tile 4:  B reads 4, 2, 5, and has 3: 14
//
// Each tile waits for one trip through L2, whatever the other blocks do. The tree is fixed, so
// floats have the same bits on every run. The price is traffic: a word from each tile to each
// block.
#pragma once

#include "../../base/look_ahead.cuh"
#include "../tile_status.cuh"

namespace distscan {

template <class Op, class T>
struct LooksAhead {
  LookAhead<Op, T> ahead;

  // `offset` is what comes before tile 0.
  __device__ explicit LooksAhead(Prefix<T> offset) { ahead.before = offset; }

  // Publish this `total` of `tile`, and return the combination of all earlier tiles; by a whole
  // warp, in all lanes. `tile` grows from call to call.
  __device__ Prefix<T> before(int64 tile, T total, const TileStatus<T>& status) {
    if (lane_index() == 0) status.publish_total(tile, total);
    return ahead.up_to(tile, status.totals, status.epoch, [this] { return ahead.before; });
  }
};

}  // namespace distscan
