// The scan of a short shard: a tile for each block, in registers, and all blocks run at once.
//
// The same as scan.cuh for long ones, without its pipeline: nothing is fetched ahead, and warps
// have no roles but two. Time is latency here: one load, one trip of the totals through L2, one
// store.
//
//   scanners         each load a warp tile, reduce it, scan it seeded with its prefix, store it
//   look-ahead warp  publishes the tile's total, and combines the totals of all earlier tiles
#pragma once

#include "../base/barrier.cuh"
#include "../base/fields.cuh"
#include "../base/look_ahead.cuh"
#include "../base/warp_tile.cuh"
#include "offset.cuh"
#include "store_total.cuh"
#include "tile_total.cuh"

namespace distscan {

// Load one lane's vectors of a warp tile at p in global memory, of which the first
// `count` elements in the order of the scan exist; the last of these stands in for all after it.
template <class Shape, class X>
__device__ Rows<X, Shape> load_existing(const X* p /* [SIZE] */, int64 count, int warp) {
  if (count >= Shape::SIZE && is_aligned<Shape::ITEMS>(p)) return load<Shape>(p, warp);
  const int left = count < Shape::SIZE ? static_cast<int>(count) : Shape::SIZE;
  Rows<X, Shape> rows;
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r)
#pragma unroll
    for (int i = 0; i < Shape::ITEMS; ++i) {
      const int at = position<Shape>(warp, r) + i < left ? position<Shape>(warp, r) + i : left - 1;
      rows.row[r].item[i] = p[Shape::REVERSE ? Shape::SIZE - 1 - at : at];
    }
  return rows;
}

template <class Shape, class X0>
__device__ Rows<Fields<X0>, Shape> load_existing(const Pointers<const X0>& p, int64 count,
                                                 int warp) {
  return together(load_existing<Shape>(p.first, count, warp));
}
template <class Shape, class X0, class X1, class... More>
__device__ Rows<Fields<X0, X1, More...>, Shape> load_existing(
    const Pointers<const X0, const X1, const More...>& p, int64 count, int warp) {
  return together(load_existing<Shape>(p.first, count, warp),
                  load_existing<Shape>(p.rest, count, warp));
}

// Launch: a block for each tile, WARPS + 1 warps each; shard.unaligned_head is 0. y may be x.
template <class Op, class PartialOp, class Partial, class Shape, bool EXCLUSIVE, class X, class Y,
          class T>
__device__ void scan_short(const typename PointerTo<X>::Const& x /* [n] */,
                           const typename PointerTo<Y>::Mutable& y /* [n] */, const Shard& shard,
                           const Workspace& work, const Offset<T>& offset) {
  constexpr int WARPS = Shape::WARPS, THREADS = (WARPS + 1) * LANES;
  __shared__ T warp_total[WARPS];
  __shared__ T up_to_warp[WARPS];  // inclusive
  __shared__ TilePrefix<T> tile_prefix;
  __shared__ Ticket ticket;
  const int warp = warp_index();
  // One block alone need not draw: it publishes for no other.
  if (threadIdx.x == 0) {
    ticket = gridDim.x > 1 ? draw_tile(work) : Ticket{};
    if (gridDim.x > 1) end_draws(work, ticket, gridDim.x);
  }
  __syncthreads();
  const int64 tile = ticket.tile();

  // ---- 1. the tile's total --------------------------------------------------------------------
  if (warp == WARPS) {
    wait_for_block<THREADS>();
    const int lane = lane_index() < WARPS ? lane_index() : 0;
    const T up_to = warp_scan<Op, WARPS>(warp_total[lane]);
    if (lane_index() == WARPS - 1) publish(work.totals, tile, up_to, ticket.launch());
    if (lane_index() < WARPS) up_to_warp[lane] = up_to;

    // ---- 2. the prefix of the tile ------------------------------------------------------------
    bool called_off = false;
    const auto before_cursor = [&] {
      const TilePrefix<T> before = offset.wait(tile == 0, work.epoch);
      called_off = before.called_off();
      return before.prefix();
    };
    LookAhead<Op, T, 5> ahead;  // 160 multiprocessors: at once; of more, in two trips
    const Prefix<T> prefix = ahead.up_to(tile, work.totals, ticket.launch(), before_cursor);
    if (lane_index() == 0) tile_prefix = TilePrefix<T>::of(prefix, called_off);
    wait_for_block<THREADS>();
    return;
  }
  const int64 at = shard.at<Shape>(tile), count = shard.end<Shape>(tile) - tile * Shape::SIZE;
  const auto rows = load_existing<Shape>(x + at, count, warp);
  const T total = convert<T>(reduce_warp_tile<PartialOp, Partial>(rows));
  if (lane_index() == 0) warp_total[warp] = total;
  wait_for_block<THREADS>();

  // ---- 3. each warp tile, seeded with it --------------------------------------------------------
  bool called_off = false;
  const auto prefixed = [&] {
    wait_for_block<THREADS>();
    called_off = tile_prefix.called_off();
    const Prefix<T> prefix = tile_prefix.prefix();
    return warp > 0 ? join<Op>(prefix, up_to_warp[warp - 1]) : prefix;
  };
  const auto scanned =
      scan_warp_tile<Op, PartialOp, Partial, T, Y, EXCLUSIVE>(rows, Unsegmented{}, prefixed);
  if (called_off) return;
  const auto store_last_total = [&] {
    if constexpr (!is_fields<Y>)
      if (work.total.words && tile == shard.tiles - 1)
        store_total<Op, EXCLUSIVE, T>(scanned, count, warp, shard, work, [&] {
          return convert<T>(element(x, Shape::REVERSE ? 0 : shard.n - 1));
        });
  };
  if constexpr (EXCLUSIVE) store_last_total();
  store(y + at, count, warp, scanned);
  if constexpr (!EXCLUSIVE) store_last_total();
}

}  // namespace distscan
