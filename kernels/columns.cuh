// The scan down the columns of a matrix in one pass over memory: each element is read once and
// written once.
//
// As in scan.cuh, persistent blocks draw tiles in order, and their warps hand them on through a
// ring of slots in shared memory: loaders fetch, reducers reduce and publish, look-ahead warps
// combine what the tiles above have published, scanners scan and store. Here a tile is of one strip
// of columns, and every total is a row.
#pragma once

#include "bands.cuh"
#include "strip_totals.cuh"

namespace distscan {

// What the scan of columns works with beside its input and output.
struct ColumnsWork {
  Totals published;  // [strips][tiles, then groups][COLUMNS]
  unsigned* drawn;   // of Bands; so are blocks and side
  int64 blocks;
  int64 side;
  int64 launch;  // goes with every total: a number that none of an earlier scan had
};

// What the warps of a block share beside the tiles themselves.
template <class Known, class T, int WARPS, int SLOTS, int ITEMS, int COLUMNS, int BAND>
struct StripRing {
  static constexpr int BLOCKS = (COLUMNS + LANES - 1) / LANES;  // of 32 columns
  using Row = T[COLUMNS];

  Barrier drawn[SLOTS];    // the tile's number is there
  Barrier full[SLOTS];     // the tile is
  Barrier reduced[SLOTS];  // the totals of its stretches are
  Barrier seeded[SLOTS];   // its seed and what is before each stretch are
  Barrier passed[SLOTS];   // `known` of its strip reaches up to the tile
  Barrier read[SLOTS];     // every scanner has read it
  Draw draw[SLOTS];
  Tile tile[SLOTS];
  int64 reach[BAND];  // up to which tile each strip is `known`, once all drawn have passed
  int64 base[SLOTS];  // and its own strip, before that
  int ends[SLOTS];    // how many turns there was no tile any more
  Vector<T, ITEMS> before_slice[SLOTS][WARPS][LANES];  // of its stretch
  alignas(128) Row before_warp[SLOTS][WARPS];          // of the tile; first each warp's total
  alignas(128) Row seed[SLOTS];                        // of the tile, behind what scans begin with
  Known known[BAND][BLOCKS];
};

// Copy `count` elements from shared to global memory, by one warp: by vectors of 16 bytes, where
// both sides reach a boundary of vectors at the same element.
template <class E>
__device__ void copy_out(const E* from, E* to, int count) {
  constexpr int EACH = larger(16 / sizeof(E), 1);
  using Moved = Storage<E, EACH>;
  const int short_of = (16 - phase(from)) % 16;
  int before = 0, vectors = 0;
  if (phase(from) == phase(to) && short_of % sizeof(E) == 0 && sizeof(E) <= 16) {
    before = short_of / static_cast<int>(sizeof(E));
    if (before > count) before = count;
    vectors = (count - before) / EACH;
  }
#pragma unroll 4
  for (int i = lane_index(); i < vectors; i += LANES)
    reinterpret_cast<Moved*>(to + before)[i] = reinterpret_cast<const Moved*>(from + before)[i];
  if (lane_index() < before) to[lane_index()] = from[lane_index()];
#pragma unroll 4
  for (int i = before + vectors * EACH + lane_index(); i < count; i += LANES) to[i] = from[i];
}

// The scan of one matrix, as one thread of a block sees it.
template <class Op, class Shape, int SLOTS, int REDUCERS, int LOOK_AHEAD_WARPS, int LOADERS,
          int COLUMNS, int BAND, int GROUP, int READS, bool STAGED, bool EXCLUSIVE, class X,
          class T, class Y>
struct ColumnsScan {
  static constexpr int ITEMS = Shape::ITEMS, ROWS = Shape::ROWS;
  static constexpr int SCANNERS = Shape::WARPS;
  static_assert(SCANNERS % REDUCERS == 0, "reducers take as many stretches each");
  static_assert(!STAGED || sizeof(X) == sizeof(Y), "results take the elements' place");
  using LookAhead = StripLookAhead<Op, T, COLUMNS, GROUP, READS>;
  using Ring = StripRing<typename LookAhead::Known, T, SCANNERS, SLOTS, ITEMS, COLUMNS, BAND>;
  using Part = Vector<T, ITEMS>;

  Y* y;  // [rows][inner]
  const Matrix& matrix;
  const ColumnsWork& work;
  const Start<T>& start;
  const Spot<Shape>& spot;
  Strip<Shape, X> source;
  Ring& ring;  // in shared memory

  __device__ void run() const {
    if (threadIdx.x < SLOTS) {
      const int slot = threadIdx.x;
      ring.drawn[slot].init(ARRIVALS_PER_WARP);
      ring.full[slot].init(source.arrivals());
      ring.reduced[slot].init(REDUCERS * ARRIVALS_PER_WARP);
      ring.seeded[slot].init(2 * ARRIVALS_PER_WARP);
      ring.passed[slot].init(ARRIVALS_PER_WARP);
      ring.read[slot].init(SCANNERS * ARRIVALS_PER_WARP);
      barriers_are_ready();
    }
    __syncthreads();
    const int warp = warp_index();
    if (warp < SCANNERS)
      scanner(warp);
    else if (warp < SCANNERS + REDUCERS)
      reducer(warp - SCANNERS);
    else if (warp < SCANNERS + REDUCERS + LOOK_AHEAD_WARPS)
      look_ahead(warp - SCANNERS - REDUCERS);
    else if (warp == SCANNERS + REDUCERS + LOOK_AHEAD_WARPS)
      publisher();
    else
      loader(warp - SCANNERS - REDUCERS - LOOK_AHEAD_WARPS - 1);
  }

 private:
  __device__ static unsigned parity(int turn) { return turn / SLOTS & 1; }

  // ---- The loaders: take turns, draw a tile each and fetch it ----------------------------------

  // A tile is drawn when there is a slot for it: others wait for its totals from then on.
  __device__ void loader(int index) const {
    static_assert(LOOK_AHEAD_WARPS + LOADERS <= SLOTS + 1,
                  "no turn without a tile waits for a slot");
    for (int turn = index;; turn += LOADERS) {
      const int slot = turn % SLOTS, before = (turn + SLOTS - 1) % SLOTS;
      if (turn >= SLOTS) ring.read[slot].wait(parity(turn - SLOTS));
      if (turn > 0) ring.drawn[before].wait(parity(turn - 1));
      if (lane_index() == 0) draw(turn, slot, before);
      ring.drawn[slot].arrive_by_warp();
      if (ring.ends[slot] == 0) {
        source.fetch(slot, ring.tile[slot], ring.full[slot]);
      } else {
        source.fetch_nothing(ring.full[slot]);
        if (ring.ends[slot] >= LOOK_AHEAD_WARPS) return;
      }
    }
  }

  // Draw a tile into its slot; in lane 0.
  __device__ void draw(int turn, int slot, int before) const {
    const Bands<BAND> bands{matrix, work.drawn, static_cast<int>(work.blocks),
                            static_cast<int>(work.side)};
    const Draw earlier = turn > 0 ? ring.draw[before] : bands.first();
    const Draw draw = ring.draw[slot] = bands.next(earlier);
    if (draw.number == Draw::NONE) {
      ring.tile[slot].index = Tile::END;
      ring.ends[slot] = turn > 0 ? ring.ends[before] + 1 : 1;
      return;
    }
    if (turn == 0 || draw.band != earlier.band)
      for (int k = 0; k < BAND; ++k) ring.reach[k] = 0;
    const int k = bands.strip(draw);
    const int64 strip = static_cast<int64>(draw.band) * BAND + k;
    ring.tile[slot] = source.tile(strip, bands.index(draw));
    ring.base[slot] = ring.reach[k];
    ring.reach[k] = ring.tile[slot].index;
    ring.ends[slot] = 0;
  }

  // ---- The reducers: each some stretches of every tile ------------------------------------------

  __device__ void reducer(int index) const {
    constexpr int EACH = SCANNERS / REDUCERS;
    for (int turn = 0;; ++turn) {
      const int slot = turn % SLOTS;
      ring.full[slot].wait(parity(turn));
      const Tile& tile = ring.tile[slot];
      if (tile.index == Tile::END) return;
#pragma unroll 1
      for (int warp = index * EACH; warp < (index + 1) * EACH; ++warp) {
        const bool works = source.works(tile);
        Run<T, ITEMS> own, before;
        if (tile.whole)
          reduce_whole<Op>(source.template load<true>(slot, tile, warp), spot, works, own, before);
        else
          reduce_slices<Op>(source.template load<false>(slot, tile, warp), spot, tile, works, warp,
                            own, before);
        ring.before_slice[slot][warp][lane_index()] = reinterpret_cast<const Part&>(before.value);
        if (spot.slice == spot.slices - 1)
          part(ring.before_warp[slot][warp]) = reinterpret_cast<const Part&>(own.value);
      }
      ring.reduced[slot].arrive_by_warp();
    }
  }

  // The totals of the strip of a tile.
  __device__ Totals published(const Tile& tile) const {
    const int64 rows = matrix.tiles + matrix.tiles / GROUP;
    return {work.published.words + tile.strip * rows * COLUMNS, work.published.stride};
  }

  // This lane's columns of a row of totals.
  __device__ Part& part(T* row) const { return reinterpret_cast<Part&>(row[spot.column]); }

  // ---- The publisher: joins the stretches of every tile -----------------------------------------

  __device__ void publisher() const {
    for (int turn = 0;; ++turn) {
      const int slot = turn % SLOTS;
      ring.full[slot].wait(parity(turn));
      const Tile& tile = ring.tile[slot];
      if (tile.index == Tile::END) return;
      ring.reduced[slot].wait(parity(turn));
      for (int column = lane_index(); exists(tile, column); column += LANES) {
        const T total = join_warps<Op>(ring.before_warp[slot], spot, tile, column);
        if (tile.index < matrix.tiles - 1)
          publish(published(tile), tile.index * COLUMNS + column, total,
                  static_cast<unsigned>(work.launch));
      }
      ring.seeded[slot].arrive_by_warp();
    }
  }

  // ---- The look-ahead warps: take tiles by turns, and pass on what they know
  // ---------------------------

  __device__ void look_ahead(int index) const {
    for (int turn = index;; turn += LOOK_AHEAD_WARPS) {
      const int slot = turn % SLOTS, earlier = (turn + SLOTS - 1) % SLOTS;
      ring.drawn[slot].wait(parity(turn));
      const Tile& tile = ring.tile[slot];
      if (tile.index == Tile::END) return;
      const LookAhead ahead{published(tile), matrix.tiles, static_cast<unsigned>(work.launch)};
      if (tile.index % GROUP == GROUP - 1) end_group(ahead, tile);
      for (int block = 0; block * LANES < spot.columns; ++block) {
        const int column = column_of(block);
        const auto ready = [&] {
          if (turn > 0) ring.passed[earlier].wait(parity(turn - 1));
        };
        T seed = ahead.up_to(ring.base[slot], tile.earliest(spot.height), tile.index, column,
                             exists(tile, column), ready, ring.known[tile.strip % BAND][block]);
        if (lane_index() >= LookAhead::ACROSS) continue;  // whose seed is not whole
        if (start.some() && exists(tile, column)) {
          const T first = start.at(tile.strip * spot.columns + column);
          seed = tile.position > 0 ? Op::combine(first, seed) : first;
        }
        ring.seed[slot][column] = seed;
      }
      ring.seeded[slot].arrive_by_warp();
      ring.passed[slot].arrive_by_warp();
    }
  }

  // Publish the total of the group that a tile ends, if a scan goes on behind it.
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
  __device__ bool exists(const Tile& tile, int column) const {
    return column < source.columns(tile.strip);
  }

  // ---- The scanners: each its stretch of every tile ---------------------------------------------

  __device__ void scanner(int warp) const {
    for (int turn = 0;; ++turn) {
      const int slot = turn % SLOTS;
      ring.full[slot].wait(parity(turn));
      const Tile& tile = ring.tile[slot];
      if (tile.index == Tile::END) return;
      if (tile.whole && (tile.position > 0 || start.some()))
        scan_stretch<true>(slot, parity(turn), tile, warp);
      else
        scan_stretch<false>(slot, parity(turn), tile, warp);
    }
  }

  // Scan a stretch: of a tile that is WHOLE and comes behind something, or of any.
  template <bool WHOLE>
  __device__ void scan_stretch(int slot, unsigned parity, const Tile& tile, int warp) const {
    // ---- 1. the rows --------------------------------------------------------------------------
    const int row = spot.row(warp), count = source.mine(tile, row);
    const auto rows = source.template load<WHOLE>(slot, tile, warp);
    const int64 column = tile.strip * spot.columns + spot.column;

    // ---- 2. what comes before: the tile, the stretch, the slice --------------------------------
    ring.seeded[slot].wait(parity);
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
        behind(part(ring.seed[slot]));
      } else if (start.some()) {  // the tile has a head of the slice's scan
        before.some = true;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) before.value[i] = start.at(column + i);
      }
      if (warp > 0 && (WHOLE || position > spot.slice * ROWS))
        behind(part(ring.before_warp[slot][warp]));
      if (spot.slice > 0 && (WHOLE || position > 0))
        behind(ring.before_slice[slot][warp][lane_index()]);
    }

    // ---- 3. the results -------------------------------------------------------------------------
    if constexpr (STAGED) {
      const Lines<X> from = source.lines(slot, tile, row);  // which this lane alone has loaded
      scan_to<WHOLE>({reinterpret_cast<Y*>(from.first), from.pitch}, tile, rows, row, count, before,
                     column);
      __syncwarp();
      store_stretch(slot, tile, warp);
#if __CUDA_ARCH__ >= 900
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the slot is fetched to next
#endif
    } else {
      Y* to = y + tile.origin + row * matrix.pitch() + spot.column;
      const int64 pitch = matrix.pitch() * static_cast<int64>(sizeof(Y));
      scan_to<WHOLE>({to, pitch}, tile, rows, row, count, before, column);
    }
    ring.read[slot].arrive_by_warp();
  }

  // Scan `count` rows from row `row` of a tile on, and store them to `lines`.
  template <bool WHOLE>
  __device__ void scan_to(const Lines<Y>& lines, const Tile& tile, const Rows<X, Shape>& rows,
                          int row, int count, const Run<T, ITEMS>& before, int64 column) const {
    const bool aligned = is_aligned<ITEMS>(lines.first);
    const auto store = [&](int r, const T(&value)[ITEMS]) {
      store_vector(lines.row(r), pack<Y>(value), aligned);
    };
    if constexpr (WHOLE) {
      if (count > 0) scan_whole<EXCLUSIVE, Op>(rows, before.value, store);
    } else {
      const auto heads = distscan::heads<ROWS>(tile.position_of(row), tile.n);
      scan_slice<EXCLUSIVE, Op>(rows, count, heads, before, start, column, store);
    }
  }

  // Store a stretch whose results lie in its slot: one piece of memory.
  __device__ void store_stretch(int slot, const Tile& tile, int warp) const {
    const int first = warp * spot.rows, count = tile.rows_of(first, spot.rows);
    const int above = matrix.reverse ? tile.count - first - count : first;  // rows in memory
    const auto* from = reinterpret_cast<const Y*>(source.bytes(slot, tile));
    copy_out(from + above * spot.columns, y + tile.corner + above * spot.columns,
             count * spot.columns);
  }
};

// Launch: work.blocks * work.side blocks, at most as many as fit at once, of the warps of the four
// kinds; SLOTS slots of dynamic shared memory. y may be x. An exclusive scan has a start.
template <class Op, class Shape, int SLOTS, int REDUCERS, int LOOK_AHEAD_WARPS, int LOADERS,
          int COLUMNS, int BAND, int GROUP, int READS, bool STAGED, bool EXCLUSIVE, class X,
          class T, class Y>
__device__ void columns(const X* x /* [rows][inner] */, Y* y /* [rows][inner] */,
                        const Matrix& matrix, const ColumnsWork& work, int slot_bytes, int pitch,
                        const Start<T>& start) {
  using Scan = ColumnsScan<Op, Shape, SLOTS, REDUCERS, LOOK_AHEAD_WARPS, LOADERS, COLUMNS, BAND,
                           GROUP, READS, STAGED, EXCLUSIVE, X, T, Y>;
  __shared__ typename Scan::Ring ring;
  const Spot<Shape> spot(matrix);
  const Scan scan{y, matrix, work, start, spot, {x, matrix, spot, slot_bytes, pitch}, ring};
  scan.run();
}

}  // namespace distscan
