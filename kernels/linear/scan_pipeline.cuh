// The shared memory of a scan of a shard, and the shape in which its reducers read.
#pragma once

#include "../base/fields.cuh"
#include "../pipeline.cuh"
#include "offset.cuh"
#include "tile_total.cuh"

namespace distscan {

// The shape in which reducers read a warp tile: 16 bytes per lane, if these fill whole rows.
template <class Shape, class X>
using Reading = typename Choose<
    !is_fields<X> && Shape::ROWS * Shape::ITEMS % items_per_vector<X>() == 0,
    distscan::Shape<Shape::THREADS, Shape::ROWS * Shape::ITEMS / items_per_vector<X>(),
                    items_per_vector<X>(), Shape::REVERSE>,
    Shape>::type;

// The shared memory of a block, beside the tiles. Every array has one element for each stage.
template <class T, int WARPS, int STAGES_>
struct ScanPipeline : ScanBarriers<STAGES_> {
  static constexpr int STAGES = STAGES_;
  static constexpr int64 END = -1;

  int64 tile[STAGES];       // the tile's number; END: there are no more tiles
  int64 cursor[STAGES];     // the first tile whose total this iteration has to read
  Ticket first;             // the ticket that the block drew first
  bool has_unaligned_head;  // whether this block has drawn the unaligned head, and must store it
  T warp_total[STAGES][WARPS];  // the total of each warp tile
  T up_to_warp[STAGES][WARPS];  // the total of the tile's first warp tiles, up to this one
  TilePrefix<T> prefix[STAGES];
  TilePrefix<T> before_cursor[STAGES];  // the combination before the next iteration's cursor
};

}  // namespace distscan
