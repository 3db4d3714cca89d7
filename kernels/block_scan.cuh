// The scan of one tile by one block: lanes, then the warp, then the block.
//
//   level  a part is              its total travels by   who combines
//   lane   one vector             registers              the lane
//   warp   one lane's vector      shuffles               the warp
//   warp   one row                shuffle from lane 31   the warp
//   block  one warp               shared memory          every warp, each for itself
#pragma once

#include "warp_scan.cuh"

namespace distscan {

// The combination of all that comes earlier, which may be nothing: no operator needs an exact
// identity. Seed{} joined with x is x.
template <class T>
struct Seed {
  T value;
  bool some = false;
};

template <class Op, class T>
__device__ Seed<T> join(Seed<T> seed, T later) {
  return {seed.some ? Op::combine(seed.value, later) : later, true};
}

// Combine the seed into every element of a vector. sum, seed 5: [1 2 3 4] -> [6 7 8 9]
template <class Op, class T, int ITEMS>
__device__ void add_seed(Seed<T> seed, Vector<T, ITEMS>& vector) {
  if (!seed.some) return;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) vector.item[i] = Op::combine(seed.value, vector.item[i]);
}

// Scan the tile in place, seeded, and return the seed of the next tile, in every thread.
// totals [2][WARPS] is shared memory; `parity` alternates from tile to tile, so that one barrier
// a tile is enough: no warp can be two tiles ahead of another.
// sum, seed 10, tile [1 2 3 ...] -> [11 13 16 ...]
template <class Op, class Shape, class T>
__device__ Seed<T> block_scan(Seed<T> seed, Tile<T, Shape>& tile, T (*totals)[Shape::WARPS],
                              int parity) {
  constexpr int ROWS = Shape::ROWS, ITEMS = Shape::ITEMS, WARPS = Shape::WARPS;
  const int lane = lane_index(), warp = warp_index();

  // ---- 1. each lane scans its vectors, the warp the vectors' totals, row by row --------------
  T inclusive[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    auto& item = tile.row[r].item;
#pragma unroll
    for (int i = 1; i < ITEMS; ++i) item[i] = Op::combine(item[i - 1], item[i]);
    inclusive[r] = warp_scan<Op>(item[ITEMS - 1]);
  }

  // ---- 2. chain the rows: the warp's total --------------------------------------------------
  T row_total[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) row_total[r] = broadcast(inclusive[r], LANES - 1);
  T warp_total = row_total[0];
#pragma unroll
  for (int r = 1; r < ROWS; ++r) warp_total = Op::combine(warp_total, row_total[r]);

  // ---- 3. every warp scans the warps' totals ------------------------------------------------
  if (lane == 0) totals[parity][warp] = warp_total;
  __syncthreads();
  const T up_to = warp_scan<Op, WARPS>(totals[parity][lane % WARPS]);
  const T before = broadcast(up_to, warp > 0 ? warp - 1 : 0);
  const Seed<T> next = join<Op>(seed, broadcast(up_to, WARPS - 1));
  if (warp > 0) seed = join<Op>(seed, before);

  // ---- 4. seed every vector with all that comes before it -----------------------------------
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const T earlier_lanes = shuffle_up(inclusive[r], 1);
    add_seed<Op>(lane > 0 ? join<Op>(seed, earlier_lanes) : seed, tile.row[r]);
    seed = join<Op>(seed, row_total[r]);
  }
  return next;
}

}  // namespace distscan
