// The protocol between the warps of one block, for all kernels that fetch tiles ahead.
//
// Blocks are persistent: each draws tiles from one counter until there are none. In a block every
// warp has one role, and hands tiles on to the next role through stages in shared memory:
//
//   loader            draws a tile and fetches it into a free stage
//   reducers          reduce the tile as soon as it is there; its total goes to all blocks
//   look-ahead warps  combine the totals of all earlier tiles, of any block: the tile's prefix
//   scanners          scan the tile behind its prefix, store it, free its stage
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
// Each look-ahead warp takes every second tile. It reads the totals since the block's last tile:
// the warp of the iteration before passes on what comes before these.
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
// One reducer joins the totals of the warp tiles in the scan of a shard; in the scan of columns a
// warp of its own does, the publisher. A warp's arrival counts once: one lane arrives when all have
// done their part.
//
// When there are no more tiles, a loader says so in the stage and arrives all the same. It goes on
// until every look-ahead warp has met the end.
//
// ---- Why relaxed status words suffice -----------------------------------------------------------
//
// Totals travel between blocks in words of 8 bytes: 4 bytes of the value and the epoch, the number
// of the launch. A word is written by one store and read by one load, so it is whole. Whoever finds
// the present epoch in a word has the value beside it. Nothing depends on the order in which two
// words appear: so loads and stores are relaxed, and there is no fence. Nothing is reset between
// launches: no earlier launch on this memory had the epoch.
//
// ---- Why nothing deadlocks ----------------------------------------------------------------------
//
// Blocks draw tiles from a counter, in order. So all tiles before a drawn tile are of blocks that
// run, or have ended. A tile's prefix depends on the totals of earlier tiles alone; a total depends
// on the tile's own items alone. Now take the earliest tile whose total is missing. All totals
// before it are there. So the earlier tiles of its block get their prefixes, are scanned, and free
// their stages. Then the tile is fetched, reduced, and its total published, though its own scanners
// may have to wait. So no total stays missing. No block waits for a block that has not started: a
// cooperative launch is not needed. If a wait lasts all the same, as after a fault elsewhere,
// base/patience.cuh ends the kernel in an error.
//
// ---- What a call-off does -----------------------------------------------------------------------
//
// A kernel may be launched ahead of its offset, which the host brings later (linear/offset.cuh).
// One warp of the grid looks for it. If a time limit passes first, that warp calls the launch off,
// and tells all blocks and the host. Each look-ahead warp hands the call-off to scanners and to the
// next look-ahead warp, in place of a prefix. All roles go through all tiles as always, so that
// every barrier and the tile counter end as they should; scanners store nothing. The host launches
// again.
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
// What differs here from the first two: nobody waits for a neighbour's prefix, and none is
// published. Every block reads every tile's total and combines them in one fixed tree. So a tile
// waits for one trip through L2, and floats come out the same on every run.
#pragma once

#include "base/barrier.cuh"

namespace distscan {

// Barriers of one kind, one for each stage. They are addressed by the iteration: iteration 0 is the
// first of stage 0, iteration STAGES its second.
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
  // Wait for the arrivals of the iteration before in the same stage, if there is one.
  template <class Int>
  __device__ void wait_for_reuse(Int iteration) const {
    if (iteration >= STAGES) of_stage[iteration % STAGES].wait(parity(iteration - STAGES));
  }
  // Arrive once for the whole warp, after all its lanes' accesses.
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

// What a scan's warps wait by: see the table.
template <int STAGES>
struct ScanBarriers {
  StageBarriers<STAGES> numbered, full, reduced, prefixed, passed_on, read;

  // By the whole block; __syncthreads() must follow.
  template <class Roles, class Source>
  __device__ void init(const Source& source) {
    if (threadIdx.x < STAGES) {
      const int stage = threadIdx.x;
      numbered[stage].init(ARRIVALS_PER_WARP);
      full[stage].init(source.arrivals());
      reduced[stage].init(Roles::REDUCERS * ARRIVALS_PER_WARP);
      prefixed[stage].init(2 * ARRIVALS_PER_WARP);
      passed_on[stage].init(ARRIVALS_PER_WARP);
      read[stage].init(Roles::SCANNERS * ARRIVALS_PER_WARP);
      barriers_are_ready();
    }
  }
};

// What a reduction's warps wait by. The first reducer alone reads what is reduced.
template <int STAGES>
struct ReduceBarriers {
  StageBarriers<STAGES> full, reduced, read;

  // By the whole block; __syncthreads() must follow.
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

// The tile of an iteration, once it is there, or the end.
template <class Pipeline>
__device__ const auto& fetched_tile(const Pipeline& pipeline, int iteration) {
  pipeline.full.wait(iteration);
  return pipeline.tile[iteration % Pipeline::STAGES];
}

}  // namespace distscan
