// The common parts of the scan and the compaction of a shard: drawn tiles, and their totals.
#pragma once

#include "../base/warp_scan.cuh"
#include "shard.cuh"

namespace distscan {

// A tile that a block has drawn, and the launch: how many launches have used this memory, with this
// one. The launch is the epoch of the tiles' totals. So the host need not count launches, nothing
// is reset between them, and a CUDA graph may launch the kernel again with the same arguments. The
// second launch, tile 5: 0x00000001'00000005
struct Ticket {
  static constexpr unsigned MOST = 0xffffffff;
  Word word;

  __device__ int64 tile() const { return static_cast<unsigned>(word); }
  __device__ unsigned launch() const { return epoch_of(word) + 1; }  // never 0
  // The word from which the next launch draws.
  __device__ Word next_launch() const {
    return launch() == MOST ? 0 : static_cast<Word>(launch()) << 32;
  }
};

// Draw a tile, in lane 0. The atomic's latency passes while the warp does other work. Blocks draw
// even if there is one tile for each: CUDA promises no order in which blocks start, but a block
// that draws runs. Draws cost 0.2 us of 7.2, compared to blockIdx (2^20 float32, H200).
__device__ inline Ticket draw_tile(const Workspace& work) {
  return {lane_index() > 0 ? 0 : atomicAdd(work.draws, Word{1})};
}

// Let the next launch draw, in lane 0, if this ticket is the last of `draws` tickets.
__device__ inline void end_draws(const Workspace& work, Ticket ticket, int64 draws) {
  if (lane_index() == 0 && ticket.tile() == draws - 1) *work.draws = ticket.next_launch();
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
  if (lane_index() == SCANNERS - 1) publish(work.totals, tile, up_to, pipeline.first.launch());
  if (lane_index() < SCANNERS) pipeline.up_to_warp[stage][lane] = up_to;
  pipeline.prefixed.arrive_by_warp(iteration);
}

}  // namespace distscan
