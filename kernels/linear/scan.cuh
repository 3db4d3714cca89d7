// The scan of a shard in one pass over memory: each element is read once and written once.
//
// Warps have roles, as pipeline.cuh explains: there are the picture of three tiles over time, and
// why nothing deadlocks. A block has one loader here. The first reducer joins the totals of the
// warp tiles to the tile's total.
//
// ---- One tile over time, in numbers -------------------------------------------------------------
//
// A sum, 2 scanners, tiles of 8 elements. This block draws tile 36, after its tile 34. So it reads
// totals from tile 32 on, the last multiple of 32 up to 34: this is the cursor. All elements before
// tile 32 sum to 40, and tiles 32 to 35 to 1, 2, 9 and 3.
//
//   items of tile 36    3 1 7 0 | 4 1 6 3          a warp tile for each scanner
//
//   role                does                               hands on                     barrier
//   1. loader           draws tile 36                      the number 36, the cursor    numbered
//                       fetches the items                  3 1 7 0 4 1 6 3              full
//   2. reducers         reduce the warp tiles              totals 11 and 14             reduced
//      first reducer    joins them, publishes 25 to all    up to each warp: 11, 25      prefixed
//   3. look-ahead warp  adds 1, 2, 9 and 3 to 40           prefix of the tile: 55       prefixed
//                                                          before the cursor: 40        passed_on
//   4. scanners         scan, seeded with 55 and 55 + 11   the free stage               read
//
//   results             58 59 66 66 | 70 71 77 80
//
// ---- Barriers: one of each kind for each stage --------------------------------------------------
//
//   barrier    arrivals    of                                  waited for by
//   numbered   1           the loader                          look-ahead warps
//   full       of a fetch  the loader, the copy engine         reducers, scanners
//   reduced    REDUCERS    reducers                            the first reducer; scanners, if the
//                                                              source PACKS
//   prefixed   2           the first reducer, look-ahead warp  scanners
//   passed_on  1           a look-ahead warp                   the next look-ahead warp
//   read       SCANNERS    scanners                            the loader
//
// Sources (items.cuh and its like) hide how elements differ: flags, keys, rows, fields.
#pragma once

#include "../base/look_ahead.cuh"
#include "../base/warp_tile.cuh"
#include "items.cuh"
#include "large_tile.cuh"
#include "offset.cuh"
#include "scan_pipeline.cuh"
#include "store_total.cuh"
#include "tile_total.cuh"

namespace distscan {

// How a scan is cut: the shape of a tile, the stages in shared memory, the warps of two roles, the
// levels of totals (base/look_ahead.cuh).
template <class Shape_, int STAGES_, int REDUCERS_, int LOOK_AHEAD_WARPS_, int LEVELS_>
struct ScanPolicy {
  using Shape = Shape_;
  static constexpr int STAGES = STAGES_, REDUCERS = REDUCERS_, LOOK_AHEAD_WARPS = LOOK_AHEAD_WARPS_;
  static constexpr int LEVELS = LEVELS_;
};

// How elements are combined: the operator on running values T, with results of type Y; and on
// partials, a type that holds any total of one warp's elements.
template <class Op_, class T_, class Y_, class PartialOp_, class Partial_, bool EXCLUSIVE_>
struct ScanOps {
  using Op = Op_;
  using T = T_;
  using Y = Y_;
  using PartialOp = PartialOp_;
  using Partial = Partial_;
  static constexpr bool EXCLUSIVE = EXCLUSIVE_;
};

// The scan of one shard, as one thread of a block sees it.
template <class Policy, class Ops, class Source, class Segments>
struct Scan {
  using Shape = typename Policy::Shape;
  using Op = typename Ops::Op;
  using T = typename Ops::T;
  using Y = typename Ops::Y;
  using PartialOp = typename Ops::PartialOp;
  using Partial = typename Ops::Partial;
  static constexpr bool EXCLUSIVE = Ops::EXCLUSIVE;
  static constexpr int STAGES = Policy::STAGES, REDUCERS = Policy::REDUCERS;
  static constexpr int LOOK_AHEAD_WARPS = Policy::LOOK_AHEAD_WARPS;
  // Tiles of a block that are under way at once, until its stages have been full once. With more,
  // the first totals wait behind megabytes: 2^23 float32 take 0.6 us of 31.2 longer (H100). Types
  // of more than 2 words have no registers for this.
  static constexpr int AT_ONCE = WORDS<T> <= 2 ? 2 : STAGES;
  using Roles = distscan::Roles<Shape::WARPS, REDUCERS, LOOK_AHEAD_WARPS, 0, 1>;
  using Pipeline = ScanPipeline<T, Shape::WARPS, STAGES>;
  static constexpr int SCANNERS = Roles::SCANNERS;
  static_assert(LOOK_AHEAD_WARPS <= STAGES, "no scanner frees a stage that ends a look-ahead warp");
  // Whether the scan can write the shard's total. With segments, a reduction has found it before.
  // So it has for fields, of which a result may have fewer than the total.
  static constexpr bool WRITES_TOTAL = same<Segments, Unsegmented> && !is_fields<Y>;
  // Scanners wait for the prefix as late as possible. But with 16 items per vector they would hold
  // too many registers by then: int8 max took a ninth longer.
  static constexpr bool DEFER_PREFIX = Shape::ITEMS < 16;
  // Whether elements are large structures. Reducers then leave their combinations for the
  // scanners.
  static constexpr bool LARGE = is_fields<typename Source::Own> && is_large<T>;

  Source source;                     // of n items
  typename PointerTo<Y>::Mutable y;  // [n]
  Shard shard;
  Workspace work;
  const Offset<T>& offset;  // of all earlier ranks
  Segments segments;
  Pipeline& pipeline;  // in shared memory

  __device__ void run() const {
    if (warp_index() == Roles::FIRST_LOADER && lane_index() == 0) pipeline.first = draw_tile(work);
    pipeline.template init<Roles>(source);
    if (threadIdx.x == 0) pipeline.has_unaligned_head = false;
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
      int64 tile = broadcast(next.tile(), 0);
      if (tile == 0 && shard.unaligned_head > 0) {  // the unaligned head takes no stage
        if (lane_index() == 0) {
          publish(work.totals, 0, scan_unaligned_head<false>({}).value, next.launch());
          pipeline.has_unaligned_head = true;
        }
        next = draw_tile(work);
        tile = broadcast(next.tile(), 0);
      }
      const bool some = tile < shard.tiles;
      if (lane_index() == 0) {
        pipeline.tile[stage] = some ? tile : pipeline.END;
        pipeline.cursor[stage] = cursor;
      }
      pipeline.numbered.arrive_by_warp(iteration);
      cursor = tile / LANES * LANES;
      if (some) {
        if constexpr (AT_ONCE < STAGES)
          if (iteration >= AT_ONCE && iteration < STAGES) pipeline.full.wait(iteration - AT_ONCE);
        if (tile == shard.tiles - 1) source.pad_last_tile(stage, shard);
        source.fetch(stage, shard, tile, pipeline.full[stage]);
        next = draw_tile(work);
      } else {
        end_draws(work, next, shard.tiles + gridDim.x);
        for (int i = 0; i < Source::FETCHES; ++i) fetch_nothing(pipeline.full[stage]);
        ++ends;
      }
    }
  }

  // Scan the unaligned head, less than 16 bytes, by one thread; return its own total. The loader
  // needs the total at once, and a look-ahead warp stores the results when the offset is known.
  template <bool STORES>
  __device__ Prefix<T> scan_unaligned_head(Prefix<T> before) const {
    Prefix<T> own, all = before;
    for (int64 i = 0; i < shard.unaligned_head; ++i) {
      const int64 at = Shape::REVERSE ? shard.n - 1 - i : i;
      const T item = convert<T>(source.template item<Partial>(shard, i));
      if constexpr (STORES && EXCLUSIVE)
        put(y + at, convert<Y>(value_of(segments.before(all.value, item))));
      own = join<Op>(own, item);
      if constexpr (STORES) all = segments.template behind<Op>(before, own.value);
      if constexpr (STORES && !EXCLUSIVE) put(y + at, convert<Y>(value_of(all.value)));
    }
    if (STORES && WRITES_TOTAL && shard.tiles == 1 && work.total.words)
      publish(work.total, 0, all.value, work.epoch);
    return own;
  }

  // ---- The reducers: each a part of every tile ------------------------------------------------

  __device__ void reducer(int index) const {
    constexpr int EACH = SCANNERS / REDUCERS;
    using Cut = Reading<Shape, typename Source::Own>;
    for (int iteration = 0;; ++iteration) {
      const int stage = iteration % STAGES;
      const int64 tile = fetched_tile(pipeline, iteration);
      if (tile == pipeline.END) return;
      const auto items = source.tile(stage, shard, shard.at<Shape>(tile));
      // The total of a warp tile. The order of exact sums does not matter. A source that PACKS
      // leaves its bits in the stage, for the scanners.
      const auto total_of = [&](int warp) {
        if constexpr (in_any_order<PartialOp, Partial, typename Source::Own, Cut::ITEMS>)
          return reduce_anywhere<PartialOp, Partial, Cut>(items.p, warp);
        else if constexpr (LARGE)
          return reduce_large_tile<Op>(items, warp, up_to_vectors(stage, warp));
        else if constexpr (Source::PACKS) {
          const auto rows = items.template load<Shape>(warp);
          items.leave(rows, warp);
          return reduce_warp_tile<PartialOp, Partial>(rows);
        } else
          return reduce_warp_tile<PartialOp, Partial>(items.template load<Cut>(warp));
      };
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        const int warp = index * EACH + i;
        const T total = convert<T>(total_of(warp));
        if (lane_index() == (LARGE ? LANES - 1 : 0)) pipeline.warp_total[stage][warp] = total;
      }
      pipeline.reduced.arrive_by_warp(iteration);
      if (index > 0) continue;  // a condition on the join would compile to other code
      join_warp_tiles<Op, SCANNERS>(pipeline, work, iteration, tile);
    }
  }

  // The combinations that reducers leave of a warp tile, after all stages.
  __device__ UpToVectors<T, Shape>& up_to_vectors(int stage, int warp) const {
    using Behind = Stages<Shape, unsigned char, Source::STRIDE, 0>;
    auto* up_to = reinterpret_cast<UpToVectors<T, Shape>*>(Behind::bytes(STAGES));
    return up_to[stage * Shape::WARPS + warp];
  }

  // ---- The look-ahead warps: each takes every LOOK_AHEAD_WARPS-th iteration ---------------------

  __device__ void look_ahead(int index) const {
    const unsigned launch = pipeline.first.launch();
    for (int iteration = index;; iteration += LOOK_AHEAD_WARPS) {
      const int stage = iteration % STAGES;
      pipeline.numbered.wait(iteration);
      const int64 tile = pipeline.tile[stage];
      if (tile == pipeline.END && iteration > 0) return;
      bool called_off = false;
      const auto before_cursor = [&] {
        const TilePrefix<T> before = iteration > 0 ? passed_on(iteration - 1) : before_shard(tile);
        called_off = before.called_off();
        return before.prefix();
      };
      typename Choose<Policy::LEVELS == 2, GroupLookAhead<Op, T>, LookAhead<Op, T>>::type ahead{
          pipeline.cursor[stage]};
      if constexpr (Policy::LEVELS == 2) ahead.groups = shard.tiles;
      const Prefix<T> prefix = ahead.up_to(tile, work.totals, launch, before_cursor);
      if (tile == pipeline.END) return;
      if (lane_index() == 0) {
        const T value = segments.template close_segment<Op>(prefix.value);
        pipeline.before_cursor[stage] = TilePrefix<T>::of(ahead.before, called_off);
        pipeline.prefix[stage] = TilePrefix<T>::of({value, prefix.some}, called_off);
      }
      pipeline.prefixed.arrive_by_warp(iteration);
      pipeline.passed_on.arrive_by_warp(iteration);
    }
  }

  // Wait for the combination that the look-ahead warp of an earlier iteration passes on.
  __device__ TilePrefix<T> passed_on(int iteration) const {
    pipeline.passed_on.wait(iteration);
    return pipeline.before_cursor[iteration % STAGES];
  }

  // Wait for the offset, in the block's first iteration; then store the unaligned head, if this
  // block has it. The block with the first tile looks for the offset on behalf of all: it certainly
  // runs. With totals of groups, this is the first tile after the unaligned head: the total of a
  // group may come from a warp that waits for the offset.
  __device__ TilePrefix<T> before_shard(int64 tile) const {
    const bool looks = Policy::LEVELS == 1
                           ? tile == 0 || pipeline.has_unaligned_head
                           : tile == (shard.unaligned_head > 0 ? 1 : 0) || shard.tiles == 1;
    const TilePrefix<T> before = offset.wait(looks, work.epoch);
    if (pipeline.has_unaligned_head && !before.called_off() && lane_index() == 0)
      scan_unaligned_head<true>(before.prefix());
    return before;
  }

  // ---- The scanners: each its warp tile of every tile -------------------------------------------

  __device__ void scanner(int warp) const {
    for (int iteration = 0;; ++iteration) {
      const int64 tile = fetched_tile(pipeline, iteration), at = shard.at<Shape>(tile);
      if (tile == pipeline.END) return;
      if constexpr (LARGE)
        scan_large(iteration, at, warp);
      else
        scan_tile(iteration, tile, at, warp);
    }
  }

  __device__ void scan_tile(int iteration, int64 tile, int64 at, int warp) const {
    // ---- 1. the items -------------------------------------------------------------------------
    const int stage = iteration % STAGES;
    if constexpr (Source::PACKS) pipeline.reduced.wait(iteration);
    const auto rows = [&] {
      const auto items = source.tile(stage, shard, at);
      if constexpr (Source::PACKS)
        return items.load_left(warp);
      else
        return items.template load<Shape>(warp);
    }();

    // ---- 2. the scan, seeded with the prefix of the tile and of the warp tile -------------------
    bool called_off = false;
    const auto prefixed = [&] {
      const Prefix<T> prefix = prefix_of(iteration, warp, called_off);
      pipeline.read.arrive_by_warp(iteration);
      return prefix;
    };
    Prefix<T> prefix;
    if constexpr (!DEFER_PREFIX) prefix = prefixed();
    const auto scanned = scan_warp_tile<Op, PartialOp, Partial, T, Y, EXCLUSIVE>(
        rows, segments, [&] { return DEFER_PREFIX ? prefixed() : prefix; });
    if (called_off) return;
    const int64 count = count_of(at);
    const auto store_last_total = [&] {
      if constexpr (WRITES_TOTAL)
        if (work.total.words && tile == shard.tiles - 1)
          store_total<Op, EXCLUSIVE, T>(scanned, count, warp, shard, work, [&] {
            return source.template item<T>(shard, shard.n - 1);
          });
    };
    if constexpr (EXCLUSIVE) store_last_total();
    store(y + at, count, warp, scanned);
    if constexpr (!EXCLUSIVE) store_last_total();
  }

  // The same for large structures, from the combinations that reducers have left.
  __device__ void scan_large(int iteration, int64 at, int warp) const {
    const int stage = iteration % STAGES;
    bool called_off = false;
    const Prefix<T> prefix = prefix_of(iteration, warp, called_off);
    if (!called_off)
      scan_large_tile<Op, Y, EXCLUSIVE>(source.tile(stage, shard, at), warp,
                                        up_to_vectors(stage, warp), prefix, segments, y + at,
                                        count_of(at));
    pipeline.read.arrive_by_warp(iteration);
  }

  // How many elements of a tile exist, and more where all do.
  __device__ int64 count_of(int64 at) const {
    return Shape::REVERSE ? at + Shape::SIZE : shard.n - at;
  }

  // Wait for all that comes before a warp tile; or for the call-off.
  __device__ Prefix<T> prefix_of(int iteration, int warp, bool& called_off) const {
    const int stage = iteration % STAGES;
    pipeline.prefixed.wait(iteration);
    const TilePrefix<T> before = pipeline.prefix[stage];
    called_off = before.called_off();
    Prefix<T> prefix = before.prefix();
    if (warp > 0)
      prefix = segments.template behind<Op>(prefix, pipeline.up_to_warp[stage][warp - 1]);
    return prefix;
  }
};

// Launch: at most one block per tile, and no more blocks than fit on the GPU at once. A block has
// Roles::WARPS warps, and dynamic shared memory for STAGES stages of the Source. y may be the array
// that the source reads.
template <class Policy, class Ops, class Source, class Segments = Unsegmented>
__device__ void scan(const Source& source,
                     const typename PointerTo<typename Ops::Y>::Mutable& y /* [n] */,
                     const Shard& shard, const Workspace& work,
                     const Offset<typename Ops::T>& offset, const Segments& segments = {}) {
  using Scan = distscan::Scan<Policy, Ops, Source, Segments>;
  __shared__ typename Scan::Pipeline pipeline;
  const Scan scan{source, y, shard, work, offset, segments, pipeline};
  scan.run();
}

}  // namespace distscan
