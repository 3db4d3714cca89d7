// The places of cuts in a shard of weights: a search in the tiles' totals, then in one tile.
#pragma once

#include "reduce.cuh"
#include "weights.cuh"

namespace distscan {

// The number of values below the target, by a whole block. Each round divides the range by THREADS.
// values [2 5 5 9], target 6: 3
template <int THREADS>
__device__ int64 count_below(const double* values /* [count], rising */, int64 count,
                             double target) {
  int64 low = 0, high = count;  // the number is from low to high
  while (low < high) {
    const int64 step = (high - low + THREADS - 1) / THREADS;
    const int64 probe = low + (threadIdx.x + 1) * step - 1;
    low += step * __syncthreads_count(probe < high && values[probe] < target);
    if (low + step - 1 < high) high = low + step - 1;
  }
  return low;
}

// The target of cut k of a shard that is cut into equal shares: the same double as of
// distscan/uses/positions.py, which goes by powers of 2, so that no product is out of range.
// total 12, cut 1, parts 3: 8
__device__ inline double share_of(double total, int64 k, int64 parts) {
  int exponent;
  const double fraction = frexp(total, &exponent);
  return ldexp((k + 1) * fraction / parts, exponent);
}

// Launch: block i takes the cuts i, i + blocks, ... The tiles and their ends are those of
// tile_totals.cuh. cuts[k] becomes the number of elements before the target: those whose sum of all
// earlier weights, and half of their own, is below it. Without targets, the shard is cut into
// count + 1 equal shares. x = [1 1 4], targets [1.5 5]: middles
// [0.5 1.5 4], cuts [1 3]
template <class Shape, class X>
__device__ void find_cuts(const X* x /* [n] */, int64 n, int64 lead, int64 length,
                          const double* ends /* [tiles] */, int64 tiles,
                          const double* targets /* [count], in pinned host memory, or null */,
                          int64* cuts /* [count], in pinned host memory */, int64 count) {
  constexpr int ITEMS = Shape::ITEMS, WARPS = Shape::WARPS;
#pragma unroll 1
  for (int64 cut = blockIdx.x; cut < count; cut += gridDim.x) {
    // ---- 1. the first tile that ends at the target or after it ---------------------------------
    const double target = targets ? targets[cut] : share_of(ends[tiles - 1], cut, count + 1);
    const int64 tile = count_below<Shape::THREADS>(ends, tiles, target);
    const int64 begin = tile * length - lead;
    const int64 end = tile == tiles ? begin : begin + length < n ? begin + length : n;

    // ---- 2. in the tile, the elements before the target, a vector per thread at a time ----------
    double before = tile > 0 ? ends[tile - 1] : 0;
    int64 found = 0;
#pragma unroll 1
    for (int64 at = begin; at < end && before < target; at += Shape::SIZE) {
      const int64 own = at + threadIdx.x * ITEMS;
      const Vector<X, ITEMS> vector = load_existing<ITEMS>(x, n, own);
      double earlier = sum_of_earlier<WARPS>(reduce<Plus, double>(vector), before);
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        const double weight = get<double>(vector, i);
        found += own + i >= 0 && own + i < n && earlier + weight / 2 < target;
        earlier += weight;
      }
    }

    // ---- 3. their number ------------------------------------------------------------------------
    const Prefix<int64> all =
        combine_warps<Plus, WARPS>(Prefix<int64>{warp_reduce<Plus>(found), true});
    if (threadIdx.x == 0) cuts[cut] = tile == tiles ? n : (begin > 0 ? begin : 0) + all.value;
  }
}

}  // namespace distscan
