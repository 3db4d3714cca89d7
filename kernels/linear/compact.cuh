// The compaction of a shard in one pass over memory: the kept elements, in order, without gaps.
//
// It is a scan of counts. The total of a tile is the number of its elements that are kept, and the
// tile's prefix is the place of its first kept element in the result. Tiles of 4:
//
//   x        a b c d | e f g h | i j k l
//   keep     1 0 0 1 | 1 1 0 1 | 0 0 1 0
//   totals   2       | 3       | 1
//   prefixes 0       | 2       | 5
//   y        a d       e f h     k          6 elements, as the host is told
//
// pipeline.cuh explains how the warps of a block, and the blocks, work together. A block has one
// loader here. The first reducer joins the counts of the warp tiles to the tile's total.
//
// Billeter, Olsson and Assarsson, "Efficient Stream Compaction on Wide SIMD Many-Core
// Architectures", 2009: counts by warps, ranks by ballots and population counts. Merrill and
// Garland (pipeline.cuh): selection as one pass of a chained scan.
#pragma once

#include "../pipeline.cuh"
#include "kept_items.cuh"
#include "tile_total.cuh"

namespace distscan {

struct Count {
  static constexpr bool COMMUTATIVE = true;

  template <class Int>
  __device__ static Int combine(Int a, Int b) {
    return a + b;
  }
};

// The shared memory of a block, beside the tiles. Every array has one element for each stage.
template <int WARPS, int STAGES_>
struct CompactPipeline : ScanBarriers<STAGES_> {
  static constexpr int STAGES = STAGES_;
  static constexpr int64 END = -1;

  int64 tile[STAGES];                  // the tile's number; END: there are no more tiles
  int64 cursor[STAGES];                // the first tile whose total this iteration has to read
  int64 prefix[STAGES];                // kept elements of all earlier tiles
  Ticket first;                        // the ticket that the block drew first
  unsigned warp_total[STAGES][WARPS];  // kept elements of each warp tile
  unsigned up_to_warp[STAGES][WARPS];  // kept elements of the first warp tiles, up to this one
};

// Copy `count` elements from shared to global memory, by one warp. Each store but the first and the
// last covers whole cache lines, if elements have 4 bytes or more.
// 4-byte elements, `to` 8 bytes after a boundary of 128: lanes 2 to 31 store elements 0 to 29
template <class X>
__device__ void copy_by_lines(const X* from /* [count] */, X* to /* [count] */, int count) {
  const int skew = static_cast<int>(reinterpret_cast<unsigned long long>(to) / sizeof(X) % LANES);
  int i = lane_index() - skew;
  if (i < 0) i += LANES;  // these lanes have no element in the first line
#pragma unroll 4
  for (; i < count; i += LANES) to[i] = from[i];
}

// The compaction of one shard, as one thread of a block sees it.
template <class Shape, int STAGES, int REDUCERS, int LOOK_AHEAD_WARPS, class Source, class X>
struct Compaction {
  using Roles = distscan::Roles<Shape::WARPS, REDUCERS, LOOK_AHEAD_WARPS, 0, 1>;
  using Pipeline = CompactPipeline<Shape::WARPS, STAGES>;
  static constexpr int SCANNERS = Roles::SCANNERS;
  static constexpr int WORDS = KEPT_WORDS<Shape>;  // of bits, per warp tile
  static_assert(WORDS <= LANES, "a lane has one word of the bits of a warp tile");

  Source source;  // of n elements
  X* y;           // [n], of which the kept elements are written
  Shard shard;    // without an unaligned head: nothing is known of the alignment of results
  Workspace work;
  Pipeline& pipeline;  // in shared memory

  __device__ void run() const {
    if (warp_index() == Roles::FIRST_LOADER && lane_index() == 0) pipeline.first = draw_tile(work);
    pipeline.template init<Roles>(source);
    __syncthreads();
    Roles::run(*this);
  }

  // ---- The loader: draws tiles and fetches them ---------------------------------------------

  __device__ void loader(int) const {
    Ticket next = pipeline.first;
    int64 cursor = 0;
    for (int iteration = 0, ends = 0; ends < LOOK_AHEAD_WARPS; ++iteration) {
      const int stage = iteration % STAGES;
      pipeline.read.wait_for_reuse(iteration);
      const int64 tile = broadcast(next.tile(), 0);
      const bool some = tile < shard.tiles;
      if (lane_index() == 0) {
        pipeline.tile[stage] = some ? tile : pipeline.END;
        pipeline.cursor[stage] = cursor;
      }
      pipeline.numbered.arrive_by_warp(iteration);
      cursor = tile;
      if (some) {
        source.fetch(stage, shard, tile, pipeline.full[stage]);
        next = draw_tile(work);
      } else {
        end_draws(work, next, shard.tiles + gridDim.x);
        for (int i = 0; i < Source::FETCHES; ++i) fetch_nothing(pipeline.full[stage]);
        ++ends;
      }
    }
  }

  // ---- The reducers: each a part of every tile ------------------------------------------------

  __device__ void reducer(int index) const {
    constexpr int EACH = SCANNERS / REDUCERS;
    for (int iteration = 0;; ++iteration) {
      const int stage = iteration % STAGES;
      const int64 tile = fetched_tile(pipeline, iteration);
      if (tile == pipeline.END) return;
      const int64 at = shard.at<Shape>(tile);
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        const int warp = index * EACH + i;
        const unsigned own = source.leave(stage, shard, at, warp);
        const unsigned total = __reduce_add_sync(EVERY_LANE, own);
        if (lane_index() == 0) pipeline.warp_total[stage][warp] = total;
      }
      pipeline.reduced.arrive_by_warp(iteration);
      if (index == 0) join_warp_tiles<Count, SCANNERS>(pipeline, work, iteration, tile);
    }
  }

  // ---- The look-ahead warps: each takes every LOOK_AHEAD_WARPS-th iteration ---------------------

  // The prefix of one iteration is the count before the cursor of the next.
  __device__ void look_ahead(int index) const {
    for (int iteration = index;; iteration += LOOK_AHEAD_WARPS) {
      const int stage = iteration % STAGES;
      pipeline.numbered.wait(iteration);
      const int64 tile = pipeline.tile[stage];
      if (tile == pipeline.END) return;
      int64 prefix = count(pipeline.cursor[stage], tile);
      if (iteration > 0) {
        pipeline.passed_on.wait(iteration - 1);
        prefix += pipeline.prefix[(iteration - 1) % STAGES];
      }
      if (lane_index() == 0) pipeline.prefix[stage] = prefix;
      pipeline.prefixed.arrive_by_warp(iteration);
      pipeline.passed_on.arrive_by_warp(iteration);
    }
  }

  // The kept elements of tiles [from, to), by a whole warp, in lane 0. Sums of counts are exact, so
  // lanes add up in any order.
  __device__ int64 count(int64 from, int64 to) const {
    constexpr int ROWS = 8;  // of 32 totals that are read at once
    int64 own = 0;
    for (; from < to; from += ROWS * LANES) {
      unsigned total[ROWS];  // 0 where no total is read
      read(
          total, work.totals, pipeline.first.launch(),
          [=](int r) { return from + r * LANES + lane_index(); },
          [=](int r) { return from + r * LANES + lane_index() < to; });
#pragma unroll
      for (int r = 0; r < ROWS; ++r) own += total[r];
    }
    return warp_reduce<Count>(own);
  }

  // ---- The scanners: each its warp tile of every tile -------------------------------------------

  __device__ void scanner(int warp) const {
    for (int iteration = 0;; ++iteration) {
      const int stage = iteration % STAGES;
      // ---- 1. the bits, a word per lane; the count before each word -----------------------------
      const int64 tile = fetched_tile(pipeline, iteration);
      if (tile == pipeline.END) return;
      const int64 at = shard.at<Shape>(tile);
      X item[WORDS];
#pragma unroll
      for (int k = 0; k < WORDS; ++k)
        item[k] = source.item(stage, at, (warp * WORDS + k) * LANES + lane_index());
      pipeline.reduced.wait(iteration);
      const unsigned* words = source.words(stage) + warp * WORDS;
      const unsigned bits = lane_index() < WORDS ? words[lane_index()] : 0;
      const unsigned up_to = warp_scan<Count>(static_cast<unsigned>(__popc(bits)));
      const unsigned before = up_to - __popc(bits);
      const int count = static_cast<int>(broadcast(up_to, LANES - 1));

      // ---- 2. the kept elements move together, in the place of the warp tile --------------------
      X* kept = source.room(stage, at) + warp * WORDS * LANES;
      const unsigned earlier = (1u << lane_index()) - 1;  // lanes
      __syncwarp();                                       // all lanes have their items
#pragma unroll
      for (int k = 0; k < WORDS; ++k) {
        const unsigned word = broadcast(bits, k);
        const unsigned rank = broadcast(before, k) + __popc(word & earlier);
        if (word >> lane_index() & 1) kept[rank] = item[k];
      }
      __syncwarp();

      // ---- 3. they are stored where the prefix says ---------------------------------------------
      pipeline.prefixed.wait(iteration);
      const unsigned earlier_warps = warp > 0 ? pipeline.up_to_warp[stage][warp - 1] : 0;
      const int64 place = pipeline.prefix[stage] + earlier_warps;
      copy_by_lines(kept, y + place, count);
      free_stage(iteration);
      if (work.total.words && tile == shard.tiles - 1 && warp == SCANNERS - 1 && lane_index() == 0)
        publish(work.total, 0, place + count, work.epoch);
    }
  }

  // Let the loader have the stage, which this warp has written: see fetch.
  __device__ void free_stage(int iteration) const {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    pipeline.read.arrive_by_warp(iteration);
  }
};

// Launch: at most one block per tile, and no more blocks than fit on the GPU at once. A block has
// Roles::WARPS warps, and dynamic shared memory for STAGES stages of the Source. y may be the array
// that the source reads, in the same place: all earlier tiles are fetched before a tile is stored,
// and no element moves to a later place.
template <class Shape, int STAGES, int REDUCERS, int LOOK_AHEAD_WARPS, class Source, class X>
__device__ void compact(const Source& source, X* y /* [n] */, const Shard& shard,
                        const Workspace& work) {
  using Compaction = distscan::Compaction<Shape, STAGES, REDUCERS, LOOK_AHEAD_WARPS, Source, X>;
  __shared__ typename Compaction::Pipeline pipeline;
  const Compaction compaction{source, y, shard, work, pipeline};
  compaction.run();
}

}  // namespace distscan
