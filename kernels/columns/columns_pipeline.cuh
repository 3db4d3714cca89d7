// What the warps of a block share in a scan of columns, beside the tiles themselves.
#pragma once

#include "../pipeline.cuh"
#include "tile_order.cuh"

namespace distscan {

template <class BeforeCursor, class T, int WARPS, int STAGES_, int ITEMS, int COLUMNS, int BAND>
struct ColumnsPipeline : ScanBarriers<STAGES_> {
  static constexpr int STAGES = STAGES_;
  static constexpr int BLOCKS = (COLUMNS + LANES - 1) / LANES;  // of 32 columns
  using Row = T[COLUMNS];

  Draw draw[STAGES];
  Tile tile[STAGES];
  int64 next_cursor[BAND];  // of each strip, once all tiles that are drawn have passed
  int64 cursor[STAGES];     // of the tile's strip, before that
  int ends[STAGES];         // how many iterations found no tile left
  Vector<T, ITEMS> before_slice[STAGES][WARPS][LANES];  // of its warp tile
  alignas(128) Row before_warp[STAGES][WARPS];          // of the tile; first each warp's total
  alignas(128) Row prefix[STAGES];                      // of the tile, behind what scans begin with
  BeforeCursor before_cursor[BAND][BLOCKS];
};

}  // namespace distscan
