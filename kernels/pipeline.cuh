// The protocol between the warps of one block, for all kernels that fetch tiles ahead.
//
// Blocks are persistent: each draws tiles from one counter until there are none. In a block every
// warp has one role, and hands tiles on to the next role through stages in shared memory:
//
//   loader            draws a tile, and fetches it into a free stage
//   reducers          reduce the tile as soon as it is there, and publish its total to all blocks
//   look-ahead warps  combine the totals of all earlier tiles, of any block, to the tile's prefix
//   scanners          scan the tile, seeded with its prefix; store it; free its stage
//
// In iteration i a block handles the tile that it has drawn as number i, in stage i % STAGES.
//
// ---- Three tiles, over time -------------------------------------------------------------------
//
// A block with 3 stages and 2 look-ahead warps draws tiles 5, 9 and 14; other blocks have the tiles
// between them. Its next tile is 20, which waits until stage 0 is free.
//
//   time         0         1         2         3         4         5         6
//   loader       | fetch 5 | fetch 9 | fetch 14| fetch 20|
//   reducers               | total 5 | total 9 | total 14| total 20|
//   look-ahead A | before 5          | before 14         |
//   look-ahead B           | before 9          | before 20         |
//   scanners                         | scan 5  | scan 9  | scan 14 | scan 20 |
//   stage 0      [ tile 5                      ][ tile 20                    ]
//   stage 1                [ tile 9                      ]
//   stage 2                          [ tile 14                     ]
//
// Each look-ahead warp takes every second tile of the block. It does not read all totals again. The
// look-ahead warp of the previous iteration passes on its cursor, which is the number of a tile,
// and the combination of all totals before that tile. So this warp reads only the totals from the
// cursor on.
//
// ---- Barriers: one of each kind for each stage --------------------------------------------------
//
//   barrier    arrivals    who arrives, and with what              who waits
//   numbered   1           loader: the tile's number               look-ahead warps, next loader
//   full       of a fetch  loader, copy engine: the items          reducers, publisher, scanners
//   reduced    REDUCERS    reducers: the warp tiles' totals        the warp that joins them
//   prefixed   2           the warp that has joined them: what     scanners
//                          comes before each warp tile;
//                          look-ahead warp: the tile's prefix
//   passed_on  1           look-ahead warp: its cursor, and what   next look-ahead warp
//                          comes before the cursor
//   read       SCANNERS    scanners: the stage is free             loader
//
// In the scan of columns reducers arrive at `read`, too: columns/scan.cuh.
//
// One reducer joins the totals of the warp tiles in the scan of a shard; in the scan of columns a
// warp of its own does, the publisher. A warp's arrival counts once: one lane arrives when all have
// done their part.
//
// When there are no more tiles, the loader writes the end into the stage in place of a tile, and
// arrives as for a tile. It goes on until it has written one end for each look-ahead warp.
//
// ---- Why relaxed status words suffice -----------------------------------------------------------
//
// Totals travel between blocks in words of 8 bytes: 4 bytes of the value and the epoch, the number
// of the launch. Blocks draw it with their tiles (linear/tile_total.cuh); in the scan of columns it
// comes from the host. A word is written by one store and read by one load, so it is whole. A
// reader that finds the launch's epoch in a word has the value beside it. Nothing depends on the
// order in which two words appear. So loads and stores are relaxed, and there is no fence. Nothing
// is reset between launches, because no earlier launch on this memory had the same epoch.
//
// ---- Why nothing deadlocks ----------------------------------------------------------------------
//
// Blocks draw tiles from a counter, in order. So all tiles before a drawn tile belong to blocks
// that run or have ended. A tile's prefix depends only on the totals of earlier tiles, and a total
// only on the tile's own items. Now take the earliest tile whose total is missing. All totals
// before it are there. So the earlier tiles of its block get their prefixes, are scanned, and free
// their stages. Then the tile is fetched, reduced, and its total published, though its own scanners
// may have to wait. So no total stays missing. Nor does the total of a group of tiles
// (base/look_ahead.cuh): the warp that looks ahead of its last tile publishes it when all earlier
// iterations of that warp are done, which need totals of earlier tiles and groups alone, and the
// offset. Who looks for the offset needs the total of tile 0 at most. No block waits for a block
// that has not started: a cooperative launch is not needed. If a wait does not end, as after a
// fault elsewhere, base/deadline.cuh ends the kernel with an error.
//
// ---- What a call-off does -----------------------------------------------------------------------
//
// A kernel may be launched ahead of its offset. The host brings the offset later
// (linear/offset.cuh), and one warp of the grid looks for it. If a time limit passes first, that
// warp calls the launch off, and tells all blocks and the host. Each look-ahead warp passes the
// call-off to the scanners and to the next look-ahead warp, in place of a prefix. All roles go
// through all tiles as always, so that every barrier and the tile counter end as they should. Only
// the scanners store nothing. The host launches again.
//
// ---- Related work -------------------------------------------------------------------------------
//
// Chained scans: each tile waits for the prefix of the tile before it. Yan, Long and Zhang,
// "StreamScan: Fast Scan Algorithms for GPUs without Global Barrier Synchronization", 2013.
// Decoupled look-back: a tile publishes its total at once, later its prefix, and looks back over
// totals until it meets a prefix. Merrill and Garland, "Single-pass Parallel Prefix Scan with
// Decoupled Look-back", 2016. The argument against deadlock is theirs. textbook/chains/ has both.
// CUB's look-ahead scan (CCCL 3, kernel_scan_lookahead.cuh) gives warps roles as here: to load,
// reduce, look ahead, scan and store.
//
// The scan here differs from the first two: no prefix is published, and no tile waits for one.
// Every block reads every tile's total, and combines the totals in one fixed tree. So a tile waits
// for one trip through L2, and floats have the same bits on every run. Of few tiles, a block reads
// totals of groups: two trips, in the same tree.
#pragma once

#include "base/barrier.cuh"

namespace distscan {

// Barriers of one kind, one for each stage. Iteration i uses the barrier of stage i % STAGES.
template <int STAGES>
struct StageBarriers {
  Barrier of_stage[STAGES];

  __device__ Barrier& operator[](int stage) { return of_stage[stage]; }

  // Wait for the arrivals of an iteration.
  template <class Int>
  __device__ void wait(Int iteration) const {
    of_stage[iteration % STAGES].wait(parity(iteration));
  }
  // The same, where the iteration's stage is known.
  template <class Int>
  __device__ void wait(int stage, Int iteration) const {
    of_stage[stage].wait(parity(iteration));
  }
  // Wait for the arrivals of iteration - STAGES, which used the same stage, if there was one.
  template <class Int>
  __device__ void wait_for_reuse(Int iteration) const {
    if (iteration >= STAGES) of_stage[iteration % STAGES].wait(parity(iteration - STAGES));
  }
  // Arrive once for the whole warp, after the accesses of all its lanes.
  template <class Int>
  __device__ void arrive_by_warp(Int iteration) {
    of_stage[iteration % STAGES].arrive_by_warp();
  }

  // The stage of the iteration before.
  __device__ static int previous(int iteration) { return (iteration + STAGES - 1) % STAGES; }

 private:
  // 3 stages: iterations 0 to 2 -> 0, 3 to 5 -> 1, 6 to 8 -> 0
  template <class Int>
  __device__ static unsigned parity(Int iteration) {
    return static_cast<unsigned>(iteration / STAGES & 1);
  }
};

// The barriers of a scan: see the table.
template <int STAGES>
struct ScanBarriers {
  StageBarriers<STAGES> numbered, full, reduced, prefixed, passed_on, read;

  // Called by the whole block; __syncthreads() must follow. A warp has some stages: the lanes of
  // one warp would take turns. `readers` warps free a stage.
  template <class Roles, class Source>
  __device__ void init(const Source& source, int readers = Roles::SCANNERS) {
    for (int stage = warp_index(); stage < STAGES; stage += Roles::WARPS)
      if (lane_index() == 0) {
        numbered[stage].init(ARRIVALS_PER_WARP);
        full[stage].init(source.arrivals());
        reduced[stage].init(Roles::REDUCERS * ARRIVALS_PER_WARP);
        prefixed[stage].init(2 * ARRIVALS_PER_WARP);
        passed_on[stage].init(ARRIVALS_PER_WARP);
        read[stage].init(readers * ARRIVALS_PER_WARP);
        barriers_are_ready();
      }
  }
};

// The barriers of a reduction. Only the first reducer reads the totals of the warp tiles.
template <int STAGES>
struct ReduceBarriers {
  StageBarriers<STAGES> full, reduced, read;

  // Called by the whole block; __syncthreads() must follow.
  template <class Source>
  __device__ void init(const Source& source, int reducers) {
    if (threadIdx.x < STAGES) {
      const int stage = threadIdx.x;
      full[stage].init(source.arrivals());
      reduced[stage].init(reducers * ARRIVALS_PER_WARP);
      read[stage].init(ARRIVALS_PER_WARP);
      barriers_are_ready();
    }
  }
};

// The roles of a block's warps, in this order.
// Roles<8, 4, 2, 0, 1>: warps 0 to 7 scan, 8 to 11 reduce, 12 and 13 look ahead, 14 loads
template <int SCANNERS_, int REDUCERS_, int LOOK_AHEAD_WARPS_, int PUBLISHERS_, int LOADERS_>
struct Roles {
  static constexpr int SCANNERS = SCANNERS_;
  static constexpr int REDUCERS = REDUCERS_;
  static constexpr int LOOK_AHEAD_WARPS = LOOK_AHEAD_WARPS_;
  static constexpr int PUBLISHERS = PUBLISHERS_;
  static constexpr int LOADERS = LOADERS_;
  static constexpr int FIRST_LOADER = SCANNERS + REDUCERS + LOOK_AHEAD_WARPS + PUBLISHERS;
  static constexpr int WARPS = FIRST_LOADER + LOADERS;
  static_assert(SCANNERS % REDUCERS == 0, "reducers take as many warp tiles each");

  // Do this warp's part of a scan.
  template <class Scan>
  __device__ static void run(const Scan& scan) {
    const int warp = warp_index();
    if (warp < SCANNERS)
      scan.scanner(warp);
    else if (warp < SCANNERS + REDUCERS)
      scan.reducer(warp - SCANNERS);
    else if (warp < SCANNERS + REDUCERS + LOOK_AHEAD_WARPS)
      scan.look_ahead(warp - SCANNERS - REDUCERS);
    else if (PUBLISHERS > 0 && warp == FIRST_LOADER - 1)
      publish(scan);
    else
      scan.loader(warp - FIRST_LOADER);
  }

 private:
  template <class Scan>
  __device__ static void publish(const Scan& scan) {
    if constexpr (PUBLISHERS > 0) scan.publisher();
  }
};

// Wait for the tile of an iteration, and return it; or the end, if there are no more tiles.
template <class Pipeline>
__device__ const auto& fetched_tile(const Pipeline& pipeline, int iteration) {
  pipeline.full.wait(iteration);
  return pipeline.tile[iteration % Pipeline::STAGES];
}

}  // namespace distscan
