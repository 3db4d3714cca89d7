// The scan down the columns of a matrix in one pass over memory: each element is read once and
// written once.
//
// pipeline.cuh explains how the warps of a block, and the blocks, work together. Here a tile has
// rows of one strip of columns, and every total is a row. Loaders take iterations in turn. A stage
// is free when its tile is in the registers of reducers and scanners: so both arrive at `read`. One
// warp more, the publisher, joins the totals of the warp tiles that reducers have found, and
// publishes the row of totals. Look-ahead warps combine the rows of totals of the tiles above in
// the strip.
#pragma once

#include "../base/copy_out.cuh"
#include "columns_pipeline.cuh"
#include "store.cuh"
#include "strip_look_ahead.cuh"

namespace distscan {

// The scan of one matrix, as one thread of a block sees it.
template <class Op, class Shape, int STAGES, int REDUCERS, int LOOK_AHEAD_WARPS, int LOADERS,
          int COLUMNS, int PANEL, int GROUP, int READS, bool STAGED, bool EXCLUSIVE, class X,
          class T, class Y>
struct ColumnsScan {
  static constexpr int ITEMS = Shape::ITEMS, ROWS = Shape::ROWS;
  using Roles = distscan::Roles<Shape::WARPS, REDUCERS, LOOK_AHEAD_WARPS, 1, LOADERS>;
  static constexpr int SCANNERS = Roles::SCANNERS;
  // Barriers, and what the warps tell each other of a tile, are in slots. A tile needs its slot for
  // one iteration more than its stage. STAGED results need the stage as long.
  static constexpr int SLOTS = STAGED ? STAGES : STAGES + 1;
  static_assert(!STAGED || (!is_fields<X> && sizeof(X) == sizeof(Y)),
                "results take the elements' place");
  using LookAhead = StripLookAhead<Op, T, COLUMNS, GROUP, READS>;
  using Pipeline =
      ColumnsPipeline<typename LookAhead::BeforeCursor, T, SCANNERS, SLOTS, ITEMS, COLUMNS, PANEL>;
  using Part = Vector<T, ITEMS>;

  typename PointerTo<Y>::Mutable y;  // [rows][inner]
  const Matrix& matrix;
  const ColumnsWork& work;
  const Start<T>& start;
  const Spot<Shape>& spot;
  Strip<Shape, X> source;
  Pipeline& pipeline;  // in shared memory

  __device__ void run() const {
    pipeline.template init<Roles>(source, SCANNERS + REDUCERS);
    __syncthreads();
    Roles::run(*this);
  }

  // ---- The loaders: each takes every LOADERS-th iteration ---------------------------------------

  // A tile is drawn when there is a stage for it. Other blocks wait for its totals from then on.
  __device__ void loader(int index) const {
    static_assert(LOOK_AHEAD_WARPS + LOADERS <= STAGES + 1,
                  "no iteration without a tile waits for a stage");
    for (int iteration = index;; iteration += LOADERS) {
      const int slot = iteration % SLOTS, before = pipeline.numbered.previous(iteration);
      if (iteration >= STAGES) pipeline.read.wait(iteration - STAGES);
      if (iteration > 0) pipeline.numbered.wait(before, iteration - 1);
      if (lane_index() == 0) draw(iteration, slot, before);
      pipeline.numbered.arrive_by_warp(iteration);
      if (pipeline.ends[slot] == 0) {
        source.fetch(iteration % STAGES, pipeline.tile[slot], pipeline.full[slot]);
      } else {
        source.fetch_nothing(pipeline.full[slot]);
        if (pipeline.ends[slot] >= LOOK_AHEAD_WARPS) return;
      }
    }
  }

  // Draw a tile into its slot; in lane 0.
  __device__ void draw(int iteration, int slot, int before) const {
    const TileOrder<PANEL> order{matrix, work.tile_counter, static_cast<int>(work.blocks),
                                 static_cast<int>(work.at_once)};
    const Draw earlier = iteration > 0 ? pipeline.draw[before] : order.first();
    const Draw draw = pipeline.draw[slot] = order.next(earlier);
    if (draw.number == Draw::NONE) {
      pipeline.tile[slot].index = Tile::END;
      pipeline.ends[slot] = iteration > 0 ? pipeline.ends[before] + 1 : 1;
      return;
    }
    if (iteration == 0 || draw.panel != earlier.panel)
      for (int k = 0; k < PANEL; ++k) pipeline.next_cursor[k] = 0;
    const int k = order.strip(draw);
    const int64 strip = static_cast<int64>(draw.panel) * PANEL + k;
    pipeline.tile[slot] = source.tile(strip, order.index(draw));
    pipeline.cursor[slot] = pipeline.next_cursor[k];
    pipeline.next_cursor[k] = pipeline.tile[slot].index;
    pipeline.ends[slot] = 0;
  }

  // ---- The reducers: each some warp tiles of every tile -----------------------------------------

  __device__ void reducer(int index) const {
    constexpr int EACH = SCANNERS / REDUCERS;
    for (int iteration = 0;; ++iteration) {
      const int stage = iteration % STAGES, slot = iteration % SLOTS;
      const Tile& tile = fetched_tile(pipeline, iteration);
      if (tile.index == Tile::END) return;
#pragma unroll 1
      for (int warp = index * EACH; warp < (index + 1) * EACH; ++warp) {
        const bool works = source.works(tile);
        Run<T, ITEMS> own, before;
        if (tile.whole)
          reduce_whole<Op>(source.template load<true>(stage, tile, warp), spot, works, own, before);
        else
          reduce_slices<Op>(source.template load<false>(stage, tile, warp), spot, tile, works, warp,
                            own, before);
        pipeline.before_slice[slot][warp][lane_index()] =
            reinterpret_cast<const Part&>(before.value);
        if (spot.slice == spot.slices - 1)
          part(pipeline.before_warp[slot][warp]) = reinterpret_cast<const Part&>(own.value);
      }
      pipeline.reduced.arrive_by_warp(iteration);
      pipeline.read.arrive_by_warp(iteration);
    }
  }

  // The totals of the strip of a tile.
  __device__ Totals published(const Tile& tile) const {
    const int64 rows = matrix.tiles + matrix.tiles / GROUP;
    return {work.published.words + tile.strip * rows * COLUMNS, work.published.stride};
  }

  // This lane's columns of a row of totals.
  __device__ Part& part(T* row) const { return reinterpret_cast<Part&>(row[spot.column]); }

  // ---- The publisher: joins the warp tiles of every tile ----------------------------------------

  __device__ void publisher() const {
    for (int iteration = 0;; ++iteration) {
      const int slot = iteration % SLOTS;
      const Tile& tile = fetched_tile(pipeline, iteration);
      if (tile.index == Tile::END) return;
      pipeline.reduced.wait(iteration);
      for (int column = lane_index(); exists(tile, column); column += LANES) {
        const T total = join_warps<Op>(pipeline.before_warp[slot], spot, tile, column);
        if (tile.index < matrix.tiles - 1)
          publish(published(tile), tile.index * COLUMNS + column, total,
                  static_cast<unsigned>(work.epoch));
      }
      pipeline.prefixed.arrive_by_warp(iteration);
    }
  }

  // ---- The look-ahead warps: each takes every LOOK_AHEAD_WARPS-th iteration ---------------------

  __device__ void look_ahead(int index) const {
    for (int iteration = index;; iteration += LOOK_AHEAD_WARPS) {
      const int slot = iteration % SLOTS, before = pipeline.numbered.previous(iteration);
      pipeline.numbered.wait(iteration);
      const Tile& tile = pipeline.tile[slot];
      if (tile.index == Tile::END) return;
      const LookAhead ahead{published(tile), matrix.tiles, static_cast<unsigned>(work.epoch)};
      if (tile.index % GROUP == GROUP - 1) end_group(ahead, tile);
      for (int block = 0; block * LANES < spot.columns; ++block) {
        const int column = column_of(block);
        const auto ready = [&] {
          if (iteration > 0) pipeline.passed_on.wait(before, iteration - 1);
        };
        T prefix = ahead.up_to(pipeline.cursor[slot], tile.earliest(spot.height), tile.index,
                               column, exists(tile, column), ready,
                               pipeline.before_cursor[tile.strip % PANEL][block]);
        if (lane_index() >= LookAhead::ACROSS) continue;  // whose prefix is not complete
        if (start.some() && exists(tile, column)) {
          const T first = start.at(tile.strip * spot.columns + column);
          prefix = tile.position > 0 ? Op::combine(first, prefix) : first;
        }
        pipeline.prefix[slot][column] = prefix;
      }
      pipeline.prefixed.arrive_by_warp(iteration);
      pipeline.passed_on.arrive_by_warp(iteration);
    }
  }

  // Publish the total of the group that a tile ends, if a scan goes on after it.
  __device__ void end_group(const LookAhead& ahead, const Tile& tile) const {
    if (tile.index == matrix.tiles - 1) return;
    const int64 from = source.tile(tile.strip, tile.index + 1).earliest(spot.height);
    if (from > tile.index) return;
    for (int block = 0; block * LANES < spot.columns; ++block) {
      const int column = column_of(block);
      ahead.publish_group(from, tile.index, column, exists(tile, column));
    }
  }

  // This lane's column of a block of columns of a strip, and whether there is one.
  __device__ static int column_of(int block) {
    return block * LANES + lane_index() % LookAhead::ACROSS;
  }
  __device__ bool exists(const Tile& tile, int column) const { return column < tile.columns; }

  // ---- The scanners: each its warp tile of every tile -------------------------------------------

  __device__ void scanner(int warp) const {
    for (int iteration = 0;; ++iteration) {
      const Tile& tile = fetched_tile(pipeline, iteration);
      if (tile.index == Tile::END) return;
      if (tile.whole && (tile.position > 0 || start.some()))
        scan_warp_tile<true>(iteration, tile, warp);
      else
        scan_warp_tile<false>(iteration, tile, warp);
    }
  }

  // Scan a warp tile: of a tile that is WHOLE and has a prefix, or of any.
  template <bool WHOLE>
  __device__ void scan_warp_tile(int iteration, const Tile& tile, int warp) const {
    const int stage = iteration % STAGES, slot = iteration % SLOTS;

    // ---- 1. the rows --------------------------------------------------------------------------
    const int row = spot.row(warp), count = source.mine(tile, row);
    const auto rows = source.template load<WHOLE>(stage, tile, warp);
    const int64 column = tile.strip * spot.columns + spot.column, pitch = matrix.pitch();
    const auto to = y + (tile.origin + row * pitch + spot.column);
    // Of the slice's rows that exist, the last row of the matrix has no next one.
    const int64 left = matrix.rows - 1 - tile.begin - row;
    const Store<Y, Shape, WHOLE> store(to, pitch, left < count ? static_cast<int>(left) : count,
                                       distscan::heads<ROWS>(tile.position_of(row + 1), tile.n));
    if (!STAGED) pipeline.read.arrive_by_warp(iteration);

    // ---- 2. the prefixes: of the tile, of the warp tile, of the slice ---------------------------
    pipeline.prefixed.wait(iteration);
    Run<T, ITEMS> before{};
    const auto behind = [&](const Part& next) {
#pragma unroll
      for (int i = 0; i < ITEMS; ++i)
        before.value[i] = before.some ? Op::combine(before.value[i], next.item[i]) : next.item[i];
      before.some = true;
    };
    const int64 position = WHOLE ? 0 : tile.position_of(row);
    if (count > 0) {  // for a lane without rows there may be nothing in their places
      if (WHOLE || position > row) {
        behind(part(pipeline.prefix[slot]));
      } else if (start.some()) {  // the tile has a head of the slice's scan
        before.some = true;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) before.value[i] = start.at(column + i);
      }
      if (warp > 0 && (WHOLE || position > spot.slice * ROWS))
        behind(part(pipeline.before_warp[slot][warp]));
      if (spot.slice > 0 && (WHOLE || position > 0))
        behind(pipeline.before_slice[slot][warp][lane_index()]);
    }

    // ---- 3. the results -------------------------------------------------------------------------
    if constexpr (STAGED) {
      const RowView<X> from =
          source.row_view(stage, tile, row);  // which this lane alone has loaded
      const RowView<Y> staged{reinterpret_cast<Y*>(from.first), from.pitch};
      scan_to<WHOLE>([=](int r) { return staged.row(r); }, tile, rows, store, row, count, before,
                     column);
      __syncwarp();
      store_warp_tile(stage, tile, warp);
#if __CUDA_ARCH__ >= 900
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the stage is fetched to next
#endif
    } else {
      scan_to<WHOLE>([=](int r) { return to + r * pitch; }, tile, rows, store, row, count, before,
                     column);
    }
    if (STAGED) pipeline.read.arrive_by_warp(iteration);
  }

  // Scan `count` rows from row `row` of a tile on, and store row r of them to row_at(r).
  template <bool WHOLE, class RowAt>
  __device__ void scan_to(const RowAt& row_at, const Tile& tile, const Rows<X, Shape>& rows,
                          const Store<Y, Shape, WHOLE>& store, int row, int count,
                          const Run<T, ITEMS>& before, int64 column) const {
    const bool aligned = is_aligned<ITEMS>(row_at(0));
    const auto store_row = [&](int r, const T(&value)[ITEMS]) {
      store.row(r, row_at(r), aligned, value, rows.row[r]);
    };
    if constexpr (WHOLE) {
      if (count > 0) scan_whole<EXCLUSIVE, Op>(rows, before.value, store_row);
    } else {
      const auto heads = distscan::heads<ROWS>(tile.position_of(row), tile.n);
      scan_slice<EXCLUSIVE, Op>(rows, count, heads, before, start, column, store_row);
    }
  }

  // Store a warp tile whose results lie in its stage: one piece of memory.
  __device__ void store_warp_tile(int stage, const Tile& tile, int warp) const {
    const int first = warp * spot.rows, count = tile.rows_of(first, spot.rows);
    const int above = matrix.reverse ? tile.count - first - count : first;  // rows in memory
    const auto* from = reinterpret_cast<const Y*>(source.bytes(stage, tile));
    copy_out(from + above * spot.columns, y + tile.corner + above * spot.columns,
             count * spot.columns);
  }
};

// Launch: work.blocks * work.at_once blocks, at most as many as fit at once, of Roles::WARPS warps;
// STAGES stages of dynamic shared memory. y may be x. An exclusive scan has a start.
template <class Op, class Shape, int STAGES, int REDUCERS, int LOOK_AHEAD_WARPS, int LOADERS,
          int COLUMNS, int PANEL, int GROUP, int READS, bool STAGED, bool EXCLUSIVE, class X,
          class Y, class T>
__device__ void columns(const typename PointerTo<X>::Const& x /* [rows][inner] */,
                        const typename PointerTo<Y>::Mutable& y /* [rows][inner] */,
                        const Matrix& matrix, const ColumnsWork& work, const Boxes& boxes,
                        int stage_bytes, const Start<T>& start) {
  using Scan = ColumnsScan<Op, Shape, STAGES, REDUCERS, LOOK_AHEAD_WARPS, LOADERS, COLUMNS, PANEL,
                           GROUP, READS, STAGED, EXCLUSIVE, X, T, Y>;
  __shared__ typename Scan::Pipeline pipeline;
  const Spot<Shape> spot(matrix);
  const Scan scan{y, matrix, work, start, spot, {x, matrix, spot, boxes, stage_bytes}, pipeline};
  scan.run();
}

}  // namespace distscan
