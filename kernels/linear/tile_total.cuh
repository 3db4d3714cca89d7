// The common parts of the scan and the compaction of a shard: drawn tiles, and their totals.
#pragma once

#include "../base/warp_scan.cuh"
#include "shard.cuh"

namespace distscan {

// Draw a tile, in lane 0. The atomic's latency passes while the warp does other work. Every block
// draws one tile too many; the last of these draws sets the counter to zero again. Blocks draw
// even if there is one tile for each: CUDA promises no order in which blocks start, but a block
// that draws runs. Draws cost 0.2 us of 7.2, compared to blockIdx (2^20 float32, H200).
__device__ inline int64 draw_tile(const Workspace& work, const Shard& shard) {
  if (lane_index() > 0) return 0;
  return atomicInc(work.tile_counter, static_cast<unsigned>(shard.tiles + gridDim.x - 1));
}

// Join the totals of the warp tiles to the tile's total, and publish it; by one warp, once all
// reducers have arrived. Scanners then find the total before each warp tile.
// sum, warp_total [3 1 4] -> up_to_warp [3 4 8], published: 8
template <class Op, int SCANNERS, class Pipeline>
__device__ void join_warp_tiles(Pipeline& pipeline, const Workspace& work, int iteration,
                                int64 tile) {
  const int stage = iteration % Pipeline::STAGES;
  pipeline.reduced.wait(iteration);
  const int lane = lane_index() < SCANNERS ? lane_index() : 0;
  auto own = pipeline.warp_total[stage][lane];
  // Large values take long to combine: only the steps that lanes with a total need.
  constexpr int WIDTH = !is_large<decltype(own)> || SCANNERS > 8 ? LANES : SCANNERS > 4 ? 8 : 4;
  const auto up_to = warp_scan<Op, WIDTH>(own);
  if (lane_index() == SCANNERS - 1) publish(work.totals, tile, up_to, work.epoch);
  if (lane_index() < SCANNERS) pipeline.up_to_warp[stage][lane] = up_to;
  pipeline.prefixed.arrive_by_warp(iteration);
}

}  // namespace distscan
