// The final pass: combine into every element all that comes before its run.
#pragma once

#include "runs.cuh"

namespace distscan {

// Launch: gridDim.x = runs, gridDim.y blocks on each, which take its tiles in turns, from the
// run's end to its beginning: the end was written last and is still in L2. out may be y.
// offset is the combination of all earlier ranks' shards, if there is one.
template <class Op, class Shape, class T, class Out>
__device__ void add(const T* y /* [n] */, Out* out /* [n] */, Runs shard,
                    const T* prefixes /* [runs] */, T offset, bool has_offset) {
  const int64 run = blockIdx.x;
  int64 begin = shard.begin(run);
  const int64 end = shard.end(run);
  const Seed<T> seed = run_seed<Op>(prefixes, offset, has_offset);
  if (!seed.some && same<T, Out>) return;  // nothing comes before run 0 of rank 0

  // ---- 1. the unaligned head ----------------------------------------------------------------
  if (run == 0 && shard.head > 0) {
    const int64 i = threadIdx.x;
    if (blockIdx.y == 0 && i < shard.head) {
      Vector<T, 1> one{y[i]};
      add_seed<Op>(seed, one);
      out[i] = convert<Out>(one.item[0]);
    }
    begin = shard.head;
  }

  // ---- 2. the run, from its end -------------------------------------------------------------
  const int64 tiles = (end - begin + Shape::SIZE - 1) / Shape::SIZE;
  for (int64 t = tiles - 1 - blockIdx.y; t >= 0; t -= gridDim.y) {
    const int64 at = begin + t * Shape::SIZE;
    Tile<T, Shape> tile = load<Shape>(y + at, end - at);
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r) add_seed<Op>(seed, tile.row[r]);
    store(out + at, end - at, convert<Out>(tile));
  }
}

}  // namespace distscan
