// The fused scan of a shard: one kernel for the reduction, the exchange of totals between the GPUs
// of a node, and the scan seeded with the offset. What fits stays on the chip in between.
//
//   level   a part is                its total travels by   who combines
//   warp    one lane's vector        shuffles               the warp
//   block   one warp tile            shared memory          the block's loader
//   device  one block's run          global memory          the loader of every block, for itself
//   node    one GPU's shard          peer memory            a warp of every GPU (exchange.cuh)
//
// Each block owns a run of tiles, which lie one after the other; the runs are in the order of the
// scan. So a block has one total, and all totals are read at once.
//
// ---- One block over time ------------------------------------------------------------------------
//
// Stages hold 3 tiles, and the run is tiles 0 to 4. It is reduced from its end to its start: so the
// first tiles come last, and stay. Results are stored from the start on. Tiles 3 and 4 come again:
// from L2, if the run is not long.
//
//   time         0    1    2    3    4    5       6         7    8    9    10   11
//   loader       | f4 | f3 | f2 | f1 | f0 | combines totals | f3 | f4 |
//   scanners          | r4 | r3 | r2 | r1 | r0 |            | s0 | s1 | s2 | s3 | s4 |
//   offset warp  | finds the offset of this GPU             |
//   stage 0      [ tile 4  ]    [ tile 1                         ][ tile 4           ]
//   stage 1           [ tile 3  ]    [ tile 0               ][ tile 3           ]
//   stage 2                [ tile 2                                   ]
//
// A block fetches AT_ONCE tiles at once, not as many as it has stages for: then multiprocessors
// share the memory evenly, and end together.
//
// ---- In numbers ---------------------------------------------------------------------------------
//
// A sum, 2 scanners, tiles of 8 elements, a run of 2 tiles. The offset of this GPU is 100, and the
// blocks before this one sum to 40.
//
//   items of the run                     3 1 7 0 | 4 1 6 3    1 0 0 1 | 2 2 0 0
//   totals of the warp tiles             11        14         2         4
//   the run's total, for all blocks      31
//   before each warp tile, in the run    -         11         25        27
//   before the run                       100 + 40 = 140
//   results                              143 144 151 151 | 155 156 162 165    166 166 166 167 | ...
//
// ---- Why nothing deadlocks, and nothing is reset ------------------------------------------------
//
// All blocks wait for each other, so all must run at once: the launch is cooperative. Waits for
// other GPUs have limits (exchange.cuh). So fused scans of two plans on two streams, in another
// order on each GPU, end in a fault at worst. The number of the exchange is the epoch of all words.
// A block reads it before it publishes its total, and it changes when all totals are there.
#pragma once

#include "exchange.cuh"
#include "no_result.cuh"
#include "scan.cuh"

namespace distscan {

// How a fused scan is cut: the shape of a tile, the stages in shared memory, the tiles that are
// fetched at once, and the most tiles of a block.
template <class Shape_, int STAGES_, int AT_ONCE_, int TILES_>
struct FusedPolicy {
  using Shape = Shape_;
  static constexpr int STAGES = STAGES_, AT_ONCE = AT_ONCE_, TILES = TILES_;
};

// The shared memory of a block, beside the tiles.
template <class T, int WARPS, int STAGES, int TILES>
struct FusedMemory {
  StageBarriers<STAGES> full;  // arrivals of a fetch: its tile is there
  StageBarriers<STAGES> read;  // of all scanners: the stage is free
  Barrier reduced;             // of all scanners: the totals of all warp tiles are there
  T total[TILES * WARPS];      // of each warp tile; later, of all before it in the run
  Prefix<T> blocks;            // all earlier blocks
  TilePrefix<T> offset;        // all earlier GPUs
};

// The fused scan, as one thread of a block sees it. The block's run has `count` tiles, the first of
// which is number `begin` of the shard. Block 0 also has the unaligned head, which takes no stage.
//
// Every fetch has a number: fetch i goes to stage i % STAGES. Fetch i of the reduction brings tile
// count - 1 - i of the run. What comes again takes the stage of the tile STAGES before it.
template <class Policy, class Ops, class Source>
struct Fused {
  using Shape = typename Policy::Shape;
  using Op = typename Ops::Op;
  using T = typename Ops::T;
  using Y = typename Ops::Y;
  using PartialOp = typename Ops::PartialOp;
  using Partial = typename Ops::Partial;
  static constexpr bool EXCLUSIVE = Ops::EXCLUSIVE;
  static constexpr int STAGES = Policy::STAGES, AT_ONCE = Policy::AT_ONCE, WARPS = Shape::WARPS;
  static constexpr int WARP_TILE = Shape::SIZE / WARPS;
  static constexpr int LOADER = WARPS, OFFSET_WARP = WARPS + 1;  // behind the scanners
  using Memory = FusedMemory<T, WARPS, STAGES, Policy::TILES>;

  Source source;  // of n items
  Y* y;           // [n]
  Shard shard;
  Totals totals;    // of the blocks
  Prefix<T> first;  // what comes before the first GPU
  Word* offset;     // [Offset<T>::SIZE]
  const Exchange<Op, T>& exchange;
  unsigned number;  // of the exchange
  Memory& memory;   // shared
  int64 begin;
  int count;
  int parts;  // the warp tiles of the run that have elements
  bool has_head;

  __device__ void run() const {
    const int warp = warp_index();

    // ---- 1. all totals; meanwhile the offset ---------------------------------------------------
    if (warp == LOADER) {
      init();
      fetch_to_reduce(0, AT_ONCE);
    }
    __syncthreads();
    if (warp < WARPS)
      reduce(warp);
    else if (warp == OFFSET_WARP)
      find_offset();
    else {
      fetch_to_reduce(AT_ONCE, count);
      memory.reduced.wait(0);
      combine();
    }
    __syncthreads();

    // ---- 2. the scan ---------------------------------------------------------------------------
    if (warp < WARPS)
      scan(warp);
    else if (warp == OFFSET_WARP && has_head)
      store_head();
    else if (warp == LOADER)
      fetch_to_scan();
  }

  // ---- The loader -----------------------------------------------------------------------------

  __device__ void init() const {
    for (int stage = lane_index(); stage < STAGES; stage += LANES) {
      memory.full[stage].init(source.arrivals());
      memory.read[stage].init(WARPS * ARRIVALS_PER_WARP);
    }
    if (lane_index() == 0) memory.reduced.init(WARPS * ARRIVALS_PER_WARP);
    barriers_are_ready();
    __syncwarp();
  }

  // Fetches [low, high) of the reduction.
  __device__ void fetch_to_reduce(int low, int high) const {
    for (int i = low; i < high && i < count; ++i) {
      if (i >= AT_ONCE) memory.full.wait(i - AT_ONCE);
      fetch(i, count - 1 - i);
    }
  }

  // The tiles that have not stayed.
  __device__ void fetch_to_scan() const {
    for (int tile = STAGES; tile < count; ++tile) {
      if (tile >= STAGES + AT_ONCE) memory.full.wait(fetch_of(tile - AT_ONCE));
      fetch(fetch_of(tile), tile);
    }
  }

  __device__ void fetch(int number, int tile) const {
    memory.read.wait_for_reuse(number);
    if (begin + tile == shard.tiles - 1) {
      source.pad_last_tile(number % STAGES, shard);
      engine_may_write();
    }
    source.fetch(number % STAGES, shard, begin + tile, memory.full[number % STAGES]);
  }

  // The number of the fetch that has brought a tile when it is scanned.
  // STAGES 3, count 5: tile 0 -> 4, 1 -> 3, 2 -> 2, 3 -> 7, 4 -> 6
  __device__ int fetch_of(int tile) const { return count - 1 + tile - 2 * (tile % STAGES); }

  // Combine the totals of the run's warp tiles, a part of them by each lane, and publish the run's.
  // Then combine those of all earlier blocks. So the last block has the total of this GPU.
  __device__ void combine() const {
    // ---- 1. the run's total, for all blocks -----------------------------------------------------
    const int each = (parts + LANES - 1) / LANES | 1;  // odd: no bank conflicts
    const int from = lane_index() * each, to = from + each < parts ? from + each : parts;
    Prefix<T> own{};
    for (int i = from; i < to; ++i) own = join<Op>(own, memory.total[i]);
    const T inclusive = warp_scan<Op>(own.value), exclusive = shuffle_up(inclusive, 1);
    Prefix<T> head{};
    if (has_head) head = {broadcast(scan_head(), shard.unaligned_head - 1), true};
    const T run =
        count == 0 ? head.value : join<Op>(head, broadcast(inclusive, (parts - 1) / each)).value;
    const int64 block = blockIdx.x;
    if (lane_index() == 0) publish(totals, block, run, number);

    // ---- 2. what comes before each warp tile, in the run; before the first one, only a head -----
    Prefix<T> before = lane_index() > 0 ? join<Op>(head, exclusive) : head;
    for (int i = from; i < to; ++i) {
      const T next = memory.total[i];
      memory.total[i] = before.value;
      before = join<Op>(before, next);
    }

    // ---- 3. what comes before the run, on this GPU ----------------------------------------------
    LookAhead<Op, T, 5> ahead;  // 160 multiprocessors: at once; of more, in two trips
    const Prefix<T> blocks = ahead.up_to(block, totals, number, [] { return Prefix<T>{}; });
    if (block == gridDim.x - 1) exchange.send(join<Op>(blocks, run).value);
    if (lane_index() == 0) memory.blocks = blocks;
  }

  // ---- The offset warp --------------------------------------------------------------------------

  // Find the offset: by block 0 on behalf of all.
  __device__ void find_offset() const {
    TilePrefix<T> found;
    if (blockIdx.x == 0) {
      found = seed<Op>(exchange.receive(), first);
      if (lane_index() == 0) pass_on(found, offset, number);
    } else {
      const Offset<T> passed_on{{}, {nullptr, offset, nullptr}};
      found = passed_on.heard(number, exchange.inboxes.peers.limit + Deadline::LIMIT);
    }
    if (lane_index() == 0) memory.offset = found;
  }

  // The inclusive scan of the unaligned head, less than 16 bytes, an item to each lane.
  __device__ T scan_head() const {
    const int64 i = lane_index() < shard.unaligned_head ? lane_index() : 0;
    return warp_scan<Op>(convert<T>(source.template item<Partial>(shard, i)));
  }

  __device__ void store_head() const {
    const Prefix<T> before = memory.offset.prefix();
    const T inclusive = scan_head(), exclusive = shuffle_up(inclusive, 1);
    T value = join<Op>(before, EXCLUSIVE ? exclusive : inclusive).value;
    if (EXCLUSIVE && lane_index() == 0) value = before.value;
    const int64 i = lane_index();
    if (i < shard.unaligned_head)
      y[Shape::REVERSE ? shard.n - 1 - i : i] =
          memory.offset.called_off() ? NoResult<Y>::value() : convert<Y>(value);
  }

  // ---- The scanners: each its warp tile of every tile -------------------------------------------

  __device__ void reduce(int warp) const {
    for (int i = 0; i < count; ++i) {
      const int tile = count - 1 - i, index = tile * WARPS + warp;
      memory.full.wait(i);
      if (index < parts) {
        const T total = total_of(i % STAGES, shard.at<Shape>(begin + tile), warp);
        if (lane_index() == 0) memory.total[index] = total;
      }
      if (tile >= STAGES) memory.read.arrive_by_warp(i);
    }
    memory.reduced.arrive_by_warp();
  }

  // The total of a warp tile, complete in lane 0.
  __device__ T total_of(int stage, int64 at, int warp) const {
    using Cut = Reading<Shape, typename Source::Own>;
    const auto items = source.tile(stage, shard, at);
    const int64 left = count_of(at) - warp * WARP_TILE;
    if (left < WARP_TILE)
      return reduce_first_items<Op, T>(items.template load<Shape>(warp), static_cast<int>(left));
    // The order of exact sums does not matter.
    if constexpr (in_any_order<PartialOp, Partial, typename Source::Own, Cut::ITEMS>)
      return convert<T>(reduce_anywhere<PartialOp, Partial, Cut>(items.p, warp));
    else
      return convert<T>(reduce_warp_tile<PartialOp, Partial>(items.template load<Cut>(warp)));
  }

  // How many elements of a tile exist, and more where all do.
  __device__ int64 count_of(int64 at) const {
    return Shape::REVERSE ? at + Shape::SIZE : shard.n - at;
  }

  __device__ void scan(int warp) const {
    Prefix<T> before = memory.offset.prefix();  // all before the run
    if (memory.blocks.some) before = join<Op>(before, memory.blocks.value);
    const bool called_off = memory.offset.called_off();
    for (int tile = 0; tile < count; ++tile) {
      const int number = fetch_of(tile), index = tile * WARPS + warp;
      const int64 at = shard.at<Shape>(begin + tile);
      memory.full.wait(number);
      if (index >= parts) {
        memory.read.arrive_by_warp(number);
        continue;
      }
      const auto rows = source.tile(number % STAGES, shard, at).template load<Shape>(warp);
      const auto prefixed = [&] {
        memory.read.arrive_by_warp(number);
        return index > 0 || has_head ? join<Op>(before, memory.total[index]) : before;
      };
      auto scanned =
          scan_warp_tile<Op, PartialOp, Partial, T, Y, EXCLUSIVE>(rows, Unsegmented{}, prefixed);
      if (called_off) fill_without_result(scanned);
      store(y + at, count_of(at), warp, scanned);
    }
  }
};

// Launch: cooperative, as all blocks wait for each other; no more blocks than there are tiles after
// the unaligned head, but at least one. A block has WARPS + 2 warps, at most TILES tiles, and
// dynamic shared memory for STAGES stages, or for all its tiles. y may be x.
template <class Policy, class Ops, class Source>
__device__ void fused(const Source& source, typename Ops::Y* y /* [n] */, const Shard& shard,
                      const Totals& totals /* [blocks] */, const Peers& peers,
                      Prefix<typename Ops::T> first, Word* offset /* [Offset<T>::SIZE] */) {
  using Fused = distscan::Fused<Policy, Ops, Source>;
  __shared__ typename Fused::Memory memory;
  using Shape = typename Policy::Shape;
  const Exchange<typename Ops::Op, typename Ops::T> exchange(peers);
  // The tiles after the unaligned head, dealt out evenly; the first `rest` blocks have one more.
  const unsigned heads = shard.unaligned_head > 0,
                 tiles = static_cast<unsigned>(shard.tiles) - heads;
  const unsigned each = tiles / gridDim.x, rest = tiles % gridDim.x, block = blockIdx.x;
  const int count = each + (block < rest);
  const int64 begin = heads + each * block + (block < rest ? block : rest);
  const int64 items =
      count > 0 ? shard.end<Shape>(begin + count - 1) - shard.begin<Shape>(begin) : 0;
  const int parts = static_cast<int>((items + Fused::WARP_TILE - 1) / Fused::WARP_TILE);
  const Fused fused{source,
                    y,
                    shard,
                    totals,
                    first,
                    offset,
                    exchange,
                    exchange.inboxes.number,
                    memory,
                    begin,
                    count,
                    parts,
                    heads > 0 && block == 0};
  fused.run();
}

}  // namespace distscan
