// The scan of a shard in one pass, made of parts that textbooks describe: any block scan of
// block_scans/, any chain of chains/. It is for reading and for comparing. Scans run by
// linear/scan.cuh otherwise.
//
//   level   a part is             its total travels by   who combines
//   thread  one item              registers              the thread, one after the other
//   block   one thread's items    shared memory          block_scans/
//   device  one tile              global memory          chains/, by the block's first warp
//
// With 2 tiles of 2 threads of 2 items, sum:
//
//   items             3 1 | 7 0 || 4 1 | 6 3
//   1. threads        4   | 7   || 5   | 9        each thread's total
//   2. block scan     4   | 11  || 5   | 14       inclusive; the last is the tile's total
//   3. chain          .         || 11             what comes before the tile
//   4. threads        3 4 | 11 11 || 15 16 | 22 25
//
// Blocks draw the numbers of their tiles from a counter. So in any of the chains a block waits for
// tiles that running blocks have drawn. If tiles were numbered by blockIdx, a block could wait for
// another that never starts, since the waiting blocks take its place on the GPU.
#pragma once

#include "../linear/tile_total.cuh"
#include "tile_status.cuh"
#include "warp_tile.cuh"

namespace distscan {

// Launch: any number of blocks, BlockScan's THREADS each; THREADS * EACH items of the wider type
// in dynamic shared memory. y may be x. The last value goes to work.total unless that is null.
template <class Op, class Shape, class BlockScan, class Chain, class X, class T, class Y>
__device__ void textbook(const X* x /* [n] */, Y* y /* [n] */, const Shard& shard,
                         const Workspace& work, const Totals& prefixes /* of the tiles */,
                         Prefix<T> offset) {
  using Own = WarpTile<Shape, larger(sizeof(X), sizeof(Y))>;
  constexpr int EACH = Own::EACH, ITEMS = Shape::ITEMS;
  __shared__ Ticket ticket;
  __shared__ T inclusive[Shape::THREADS];  // over the threads' totals
  __shared__ T up_to_tile;
  __shared__ typename BlockScan::Shared scanning;
  const int thread = threadIdx.x;
  Chain chain{offset};

  for (;;) {
    // ---- 0. draw a tile; every block draws one too many ---------------------------------------
    if (thread == 0) {
      ticket = draw_tile(work);
      end_draws(work, ticket, shard.tiles + gridDim.x);
    }
    __syncthreads();
    const int64 tile = ticket.tile();
    const TileStatus<T> status{work.totals, prefixes, ticket.launch()};
    if (tile >= shard.tiles) return;
    const int64 begin = shard.begin<Shape>(tile);
    const int count = static_cast<int>(shard.end<Shape>(tile) - begin);
    const int mine = count - thread * EACH;  // how many of this thread's items exist

    // ---- 1. each thread's total ---------------------------------------------------------------
    Own::fetch(x + begin, count);
    Prefix<T> thread_total;
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r) {
      const auto vector = Own::template take<X>(r);
#pragma unroll
      for (int i = 0; i < ITEMS; ++i)
        if (r + i == 0 || r * ITEMS + i < mine)
          thread_total = join<Op>(thread_total, get<T>(vector, i));
    }

    // ---- 2. scanned over the block ------------------------------------------------------------
    inclusive[thread] = BlockScan::inclusive(thread_total.value, scanning);
    __syncthreads();

    // ---- 3. what comes before the tile, then before the thread --------------------------------
    if (warp_index() == 0) {
      const Prefix<T> prefix = chain.before(tile, inclusive[(count - 1) / EACH], status);
      if (thread == 0) up_to_tile = prefix.value;
    }
    __syncthreads();
    Prefix<T> before{up_to_tile, offset.some || tile > 0};
    if (thread > 0) before = join<Op>(before, inclusive[thread - 1]);

    // ---- 4. each thread's items behind that ---------------------------------------------------
    Vector<Y, ITEMS> scanned[Shape::ROWS];
    Prefix<T> own;
    T last;
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r) {
      const auto vector = Own::template take<X>(r);
      T value[ITEMS];
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        own = join<Op>(own, get<T>(vector, i));
        value[i] = join<Op>(before, own.value).value;
        if (r * ITEMS + i < mine) last = value[i];
      }
      scanned[r] = pack<Y>(value);
    }
    __syncwarp();  // every lane has read its items, where results now go
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r) Own::put(r, scanned[r]);
    Own::store(y + begin, count);
    if (work.total.words && tile == shard.tiles - 1 && thread == (count - 1) / EACH)
      publish(work.total, 0, last, work.epoch);
  }
}

}  // namespace distscan
