// The device level: how a shard is dealt out to blocks, and how one block scans its part.
//
//   level   a part is                   its total travels by   who combines
//   block   one tile of a run           registers              the block, tile after tile
//   device  one block's run of tiles    global memory          the block that ends last
#pragma once

#include "block_scan.cuh"

namespace distscan {

// How a shard of n elements is cut: `head` elements up to the first one that is aligned for
// vectors (they belong to run 0), then tiles of `tile` elements, dealt out to the runs evenly.
// n = 100, head 3, tile 32, runs 2: run 0 is [0, 67), run 1 is [67, 100).
struct Runs {
  int64 n;
  int64 head;
  int64 tile;
  int64 runs;

  __device__ int64 tile_of(int64 run) const {
    const int64 tiles = (n - head + tile - 1) / tile;
    return tiles / runs * run + tiles % runs * run / runs;
  }
  __device__ int64 begin(int64 run) const { return run == 0 ? 0 : head + tile_of(run) * tile; }
  __device__ int64 end(int64 run) const {
    return run == runs - 1 ? n : head + tile_of(run + 1) * tile;
  }
};

// Scan x [count] into y [count], tile after tile, and return the last value in the one thread that
// holds it. A tile is loaded before the one ahead of it is scanned, so that memory never waits for
// arithmetic; y may be x.
template <class Op, class Shape, class X, class T, class Y>
__device__ Seed<T> scan_run(const X* x, Y* y, int64 count, Seed<T> seed,
                            T (*totals)[Shape::WARPS]) {
  Seed<T> last;
  Tile<X, Shape> next = load<Shape>(x, count);
  int parity = 0;
  for (int64 at = 0; at < count; at += Shape::SIZE, parity ^= 1) {
    Tile<T, Shape> tile = convert<T>(next);
    const int64 left = count - at;
    if (left > Shape::SIZE) next = load<Shape>(x + at + Shape::SIZE, left - Shape::SIZE);
    seed = block_scan<Op>(seed, tile, totals, parity);
    store(y + at, left, convert<Y>(tile));
    if (left <= Shape::SIZE) {
#pragma unroll
      for (int r = 0; r < Shape::ROWS; ++r)
#pragma unroll
        for (int i = 0; i < Shape::ITEMS; ++i)
          if (place<Shape>(r) + i == left - 1) last = {tile.row[r].item[i], true};
    }
  }
  return last;
}

// Scan this block's run, the unaligned head of the shard included, behind `seed`.
template <class Op, class Shape, class X, class T, class Y>
__device__ Seed<T> scan_own_run(const X* x /* [n] */, Y* y /* [n] */, const Runs& shard,
                                Seed<T> seed, T (*warp_totals)[Shape::WARPS]) {
  __shared__ T head_total;
  Seed<T> last;
  const int64 run = blockIdx.x, end = shard.end(run);
  int64 begin = shard.begin(run);

  // ---- 1. the unaligned head: less than 16 bytes, by one thread -----------------------------
  if (run == 0 && shard.head > 0) {
    if (threadIdx.x == 0) {
      for (int64 i = 0; i < shard.head; ++i) {
        seed = join<Op>(seed, convert<T>(x[i]));
        y[i] = convert<Y>(seed.value);
      }
      head_total = seed.value;
      if (shard.head == shard.n) last = seed;
    }
    __syncthreads();
    seed = {head_total, true};
    begin = shard.head;
  }

  // ---- 2. the tiles -------------------------------------------------------------------------
  if (begin < end) last = scan_run<Op, Shape>(x + begin, y + begin, end - begin, seed, warp_totals);
  return last;
}

// Whether this block is the last of the grid to arrive; what the others wrote before is then
// visible to it. `arrived` counts round to 0 again, ready for the next launch.
__device__ inline bool arrives_last(unsigned* arrived) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  __threadfence();
  return last;
}

// Hand in a run's total, from the one thread that has it; the block that ends last scans them all.
// On return prefixes[r] is the combination of runs 0 to r, and *total, in pinned host memory, that
// of the shard.
template <class Op, class Shape, class T>
__device__ void combine_runs(Seed<T> own, const Runs& shard, T* totals /* [runs] */,
                             T* prefixes /* [runs] */, unsigned* arrived /* [1], zero */,
                             T* total /* [1] */, T (*warp_totals)[Shape::WARPS]) {
  if (own.some) totals[blockIdx.x] = own.value;
  if (!arrives_last(arrived)) return;
  using OnePerThread = distscan::Shape<Shape::THREADS, 1, 1>;
  const Seed<T> last =
      scan_run<Op, OnePerThread>(totals, prefixes, shard.runs, Seed<T>{}, warp_totals);
  if (last.some) *total = last.value;
}

// What comes before this block's run: all earlier ranks' shards, then the shard's earlier runs.
template <class Op, class T>
__device__ Seed<T> run_seed(const T* prefixes /* [runs] */, T offset, bool has_offset) {
  Seed<T> seed{offset, has_offset};
  if (blockIdx.x > 0) seed = join<Op>(seed, prefixes[blockIdx.x - 1]);
  return seed;
}

}  // namespace distscan
