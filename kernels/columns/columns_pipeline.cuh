// The memory of a scan of columns: global memory, and the shared memory of a block.
#pragma once

#include "../base/status_words.cuh"
#include "../pipeline.cuh"
#include "tile_order.cuh"

namespace distscan {

// The global memory of a scan of columns, beside its input and output.
struct ColumnsWork {
  Totals published;        // [strips][tiles, then groups][COLUMNS]
  unsigned* tile_counter;  // of TileOrder; so are blocks and at_once
  int64 blocks;
  int64 at_once;
  int64 epoch;  // goes with every total: a number that none of an earlier scan had
};

// The shared memory of a block's warps, beside the tiles.
template <class BeforeCursor, class T, int WARPS, int SLOTS, int ITEMS, int COLUMNS, int PANEL>
struct ColumnsPipeline : ScanBarriers<SLOTS> {
  static constexpr int STAGES = SLOTS;  // of barriers, and of what goes with them
  static constexpr int BLOCKS = (COLUMNS + LANES - 1) / LANES;  // of 32 columns
  using Row = T[COLUMNS];

  Draw draw[SLOTS];
  Tile tile[SLOTS];
  int64 next_cursor[PANEL];  // of each strip, once all tiles that are drawn have passed
  int64 cursor[SLOTS];       // of the tile's strip, before that
  int ends[SLOTS];           // how many iterations found no tile left
  Vector<T, ITEMS> before_slice[SLOTS][WARPS][LANES];  // of its warp tile
  alignas(128) Row before_warp[SLOTS][WARPS];          // of the tile; first each warp's total
  alignas(128) Row prefix[SLOTS];                      // of the tile, with the seed of scans
  BeforeCursor before_cursor[PANEL][BLOCKS];
};

}  // namespace distscan
