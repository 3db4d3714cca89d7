// The scan of a shard in one pass over memory: 1 read and 1 write per element.
//
// Persistent blocks draw tiles from a counter, in order. In each block three kinds of warps hand
// tiles on through a ring of slots in shared memory:
//
//   courier    draws a tile, fetches it into a free slot;           publishes its total
//   gatherer   combines the totals of all earlier tiles, of whichever block: the tile's seed
//   scanners   reduce the tile as soon as it is there;   LAG tiles later scan it, store it
//
//   a tile's life:   fetched -> reduced -> published | ... other blocks ... | seeded -> scanned
//
// A tile's total is published before its block waits for any seed of it, and seeds depend on
// earlier tiles only, which running blocks hold: no wait can be for a block that has not started
// (Merrill and Garland, 2016). What differs from their look-back: nobody waits for a neighbour's
// prefix. Every block reads every total, once, and combines them in one fixed tree, so that one
// trip through L2 is all that a tile waits for, and floats come out the same on every run.
#pragma once

#include "fetch.cuh"
#include "stretch.cuh"

namespace distscan {

// How a shard of n elements is cut: tile 0 is the `head`, the elements before the first one that
// is aligned for vectors, if there are any; then tiles of SIZE elements.
// n = 100, head 3, SIZE 32: [0, 3) [3, 35) [35, 67) [67, 99) [99, 100)
struct Shard {
  int64 n;
  int64 head;
  int64 tiles;  // the head counted

  template <class Shape>
  __device__ int64 begin(int64 tile) const {
    if (head == 0) return tile * Shape::SIZE;
    return tile == 0 ? 0 : head + (tile - 1) * Shape::SIZE;
  }
};

// What a scan works with beside its input and output.
struct Workspace {
  Totals totals;    // of the tiles
  Totals total;     // [1], the last value, in pinned host memory; or words is null
  unsigned* drawn;  // [1], zero; zero again after the launch
  unsigned launch;  // a number that the words do not hold yet
};

// What the warps of a block share beside the tiles themselves.
template <class T, int WARPS, int SLOTS>
struct Ring {
  Barrier full[SLOTS];     // the tile is there, if there is one
  Barrier reduced[SLOTS];  // its warps' totals are
  Barrier seeded[SLOTS];   // its seed is
  Barrier read[SLOTS];     // every warp has read it for the last time
  int64 tile[SLOTS];       // END: there are no more
  T warp_total[SLOTS][WARPS];
  T seed[SLOTS];

  static constexpr int64 END = -1;

  __device__ void init() {
    if (threadIdx.x == 0) {
      for (int slot = 0; slot < SLOTS; ++slot) {
        full[slot].init(FETCH_ARRIVALS);
        reduced[slot].init(WARPS);
        seeded[slot].init(1);
        read[slot].init(WARPS);
      }
      barriers_are_ready();
    }
    __syncthreads();
  }
};

// The scan of one shard, as one thread of a block sees it.
template <class Op, class Shape, int SLOTS, int LAG, class X, class T, class Y>
struct Scan {
  const X* x;  // [n]
  Y* y;        // [n]
  Shard shard;
  Workspace work;
  Seed<T> offset;  // of all earlier ranks
  Ring<T, Shape::WARPS, SLOTS>& ring;
  unsigned char* slots;  // [SLOTS][SLOT_BYTES]

  static constexpr int SLOT_BYTES = Shape::SIZE * sizeof(X) + 16;

#ifndef KEEPIT
  static constexpr bool KEEP = sizeof(T) * Shape::ROWS <= 16;
#else
  static constexpr bool KEEP = KEEPIT;
#endif

  __device__ X* items(int slot, int64 begin) const {
    return reinterpret_cast<X*>(slots + slot * SLOT_BYTES + phase(x + begin));
  }
  __device__ static unsigned parity(int turn) { return turn / SLOTS & 1; }

  // ---- The courier: fetches tiles, publishes their totals ------------------------------------

  // Draw a tile, in lane 0. Its number is there when a later instruction needs it.
  __device__ int64 draw() const {
    if (lane_index() > 0) return 0;
    return gridDim.x +
           static_cast<int64>(atomicInc(work.drawn, static_cast<unsigned>(shard.tiles - 1)));
  }

  // Scan the head, less than 16 bytes, by one thread.
  __device__ void scan_head() const {
    Seed<T> own, all = offset;
    for (int64 i = 0; i < shard.head; ++i) {
      own = join<Op>(own, convert<T>(x[i]));
      all = offset.some ? join<Op>(offset, own.value) : own;
      y[i] = convert<Y>(all.value);
    }
    publish(work.totals, 0, own.value, work.launch);
    if (shard.tiles == 1 && work.total.words) publish(work.total, 0, all.value, work.launch);
  }

  // Fetch the tile that lane 0 has drawn, and draw the next; whether there was one.
  __device__ bool fetch_drawn(int turn, int64& drawn) const {
    const int slot = turn % SLOTS;
    const int64 tile = broadcast(drawn, 0);
    const bool some = tile < shard.tiles;
    if (lane_index() == 0) ring.tile[slot] = some ? tile : ring.END;
    __syncwarp();
    if (!some) {
      fetch_nothing(ring.full[slot]);
      return false;
    }
    const int64 begin = shard.begin<Shape>(tile), end = begin + Shape::SIZE;
    fetch(slots + slot * SLOT_BYTES, x, shard.n, begin, end < shard.n ? end : shard.n,
          ring.full[slot]);
    drawn = draw();
    return true;
  }

  __device__ void courier() const {
    int64 drawn = blockIdx.x;  // blocks start in this order
    if (blockIdx.x == 0 && shard.head > 0) {
      if (lane_index() == 0) scan_head();
      drawn = draw();
    }
    bool more = true;
    int fetched = 0;
    while (more && fetched < SLOTS) more = fetch_drawn(fetched++, drawn);
    for (int turn = 0;; ++turn) {
      const int slot = turn % SLOTS;
      if (ring.tile[slot] == ring.END) return;
      ring.reduced[slot].wait(parity(turn));
      const T total =
          warp_scan<Op, 16>(ring.warp_total[slot][lane_index() < Shape::WARPS ? lane_index() : 0]);
      if (lane_index() == Shape::WARPS - 1)
        publish(work.totals, ring.tile[slot], total, work.launch);
      if (more && turn >= LAG) {
        ring.read[(turn - LAG) % SLOTS].wait(parity(turn - LAG));
        more = fetch_drawn(fetched++, drawn);
      }
    }
  }

  // ---- The gatherer: combines the totals of all earlier tiles --------------------------------

  __device__ void gatherer() const {
    Gathered<Op, T> gathered;
    gathered.before = offset;
    for (int turn = 0;; ++turn) {
      const int slot = turn % SLOTS;
      ring.full[slot].wait(parity(turn));
      const int64 tile = ring.tile[slot];
      if (tile == ring.END) return;
      const Seed<T> seed = gathered.up_to(tile, work.totals, work.launch);
      if (lane_index() == 0) {
        ring.seed[slot] = seed.value;
        ring.seeded[slot].arrive();
      }
    }
  }

  // ---- The scanners: each warp reduces and scans its stretch of every tile -------------------

  // Add up this warp's stretch of a tile.
  __device__ LaneTotals<T, Shape> reduce_tile(int turn) const {
    const int slot = turn % SLOTS;
    const auto rows = load<Shape>(items(slot, shard.begin<Shape>(ring.tile[slot])));
    LaneTotals<T, Shape> lanes;
    T total;
    if constexpr (KEEP) {
      lanes = scan_lanes<Op, T>(rows);
      total = total_of<Op>(lanes);
    } else {
      total = reduce_stretch<Op, T>(rows);
    }
    if (lane_index() == 0) {
      ring.warp_total[slot][warp_index()] = total;
      ring.reduced[slot].arrive();
    }
    return lanes;
  }

  __device__ void scan_tile(int turn, LaneTotals<T, Shape> lanes) const {
    const int slot = turn % SLOTS, warp = warp_index();

    // ---- 1. the seed of the tile, then of the warp -------------------------------------------
    ring.seeded[slot].wait(parity(turn));
    const int64 tile = ring.tile[slot], begin = shard.begin<Shape>(tile), count = shard.n - begin;
    Seed<T> seed{ring.seed[slot], offset.some || tile > 0};
    const T up_to =
        warp_scan<Op, 16>(ring.warp_total[slot][lane_index() < Shape::WARPS ? lane_index() : 0]);
    const T earlier_warps = broadcast(up_to, warp > 0 ? warp - 1 : 0);
    if (warp > 0) seed = join<Op>(seed, earlier_warps);

    // ---- 2. the items ------------------------------------------------------------------------
    const auto rows = load<Shape>(items(slot, begin));
    __syncwarp();
    if (lane_index() == 0) ring.read[slot].arrive();
    if constexpr (!KEEP) lanes = scan_lanes<Op, T>(rows);
    const auto scanned = scan_stretch<Op, Y>(rows, lanes, seed);
    store(y + begin, count, scanned);

    // ---- 3. the last value, by the thread that has it ----------------------------------------
    if (work.total.words && tile == shard.tiles - 1) {
#pragma unroll
      for (int r = 0; r < Shape::ROWS; ++r)
#pragma unroll
        for (int i = 0; i < Shape::ITEMS; ++i)
          if (place<Shape>(r) + i == count - 1)
            publish(work.total, 0, convert<T>(scanned.row[r].item[i]), work.launch);
    }
  }

  __device__ void scanners() const {
    LaneTotals<T, Shape> waiting[LAG + 1];  // the latest tile's first
    int turn = 0;
    for (;; ++turn) {
      ring.full[turn % SLOTS].wait(parity(turn));
      if (ring.tile[turn % SLOTS] == ring.END) break;
#pragma unroll
      for (int w = LAG; w > 0; --w) waiting[w] = waiting[w - 1];
      waiting[0] = reduce_tile(turn);
      if (turn >= LAG) scan_tile(turn - LAG, waiting[LAG]);
    }
#pragma unroll
    for (int w = LAG - 1; w >= 0; --w)
      if (turn > w) scan_tile(turn - 1 - w, waiting[w]);
  }
};

// Launch: no more blocks than tiles or than fit at once, Shape::THREADS + 2 * LANES threads each;
// SLOTS * SLOT_BYTES of dynamic shared memory. y may be x.
template <class Op, class Shape, int SLOTS, int LAG, class X, class T, class Y>
__device__ void scan(const X* x /* [n] */, Y* y /* [n] */, const Shard& shard,
                     const Workspace& work, Seed<T> offset) {
  static_assert(SLOTS > LAG + 1, "a tile must come in while LAG others wait");
  extern __shared__ __align__(128) unsigned char slots[];
  __shared__ Ring<T, Shape::WARPS, SLOTS> ring;
  ring.init();
  const Scan<Op, Shape, SLOTS, LAG, X, T, Y> scan{x, y, shard, work, offset, ring, slots};
  if (warp_index() < Shape::WARPS)
    scan.scanners();
  else if (warp_index() == Shape::WARPS)
    scan.courier();
  else
    scan.gatherer();
}

}  // namespace distscan
