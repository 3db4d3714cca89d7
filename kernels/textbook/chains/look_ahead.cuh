// Look-ahead: every block publishes its tile's total, and reads those of all tiles since its last
// one, its own among them, all at once. What linear/scan.cuh does too, with warps of their own for
// it.
//
//   blocks      A    B    C    A    B    C
//   totals      3    4    2    5    1    6
//   B, tile 1:  3 = 3.  B, tile 4: 3 + (4 + 2 + 5) = 14
//
// One trip through L2 per tile whatever the others do, and one fixed tree: the same bits on every
// run. The most traffic: a word from each tile to each block.
#pragma once

#include "../../base/look_ahead.cuh"
#include "peek.cuh"

namespace distscan {

template <class Op, class T>
struct LooksAhead {
  LookAhead<Op, T> ahead;

  __device__ explicit LooksAhead(Prefix<T> offset) { ahead.before = offset; }

  // The combination of all tiles before `tile`, whose total is `total`; by a whole warp, in all
  // lanes. `tile` grows from call to call.
  __device__ Prefix<T> before(int64 tile, T total, const Workspace& work) {
    if (lane_index() == 0) publish(work.totals, tile, total, work.epoch);
    return ahead.up_to(tile, work.totals, work.epoch, [this] { return ahead.before; });
  }
};

}  // namespace distscan
