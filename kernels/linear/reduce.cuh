// The reduction of a shard to one total: it reads, and hardly writes.
//
//   level   a part is                        its total travels by   who combines
//   warp    one lane's vectors               shuffles               the warp
//   block   one warp tile of the run         shared memory          one warp
//   device  one block's run                  global memory          the block that ends last
#pragma once

#include "../base/fields.cuh"
#include "../base/status_words.cuh"

namespace distscan {

// Element bounds of part i of `parts` even ones of n elements, cut at multiples of `step`.
// n = 100, step 32, parts 2: [0, 64) [64, 100)
__device__ inline int64 cut(int64 n, int64 step, int64 parts, int64 i) {
  const int64 steps = (n + step - 1) / step;
  const int64 at = (steps / parts * i + steps % parts * i / parts) * step;
  return at < n ? at : n;
}

// Reduce x [count] by one warp, seeded with `prefix`; the total is complete in lane 0. Commutative
// operators keep a total per lane and row, and warp `index` of `warps` takes every warps-th step.
// Others shuffle every row. REVERSE goes from the end of x to its start.
template <class Op, class Shape, class Pointer, class T>
__device__ Prefix<T> reduce_by_warp(Pointer x, int64 count, Prefix<T> prefix, int index = 0,
                                    int warps = 1) {
  constexpr int ROWS = Shape::ROWS, ITEMS = Shape::ITEMS, STEP = ROWS * Shape::ROW;
  constexpr bool REVERSE = Shape::REVERSE;
  const int64 whole = is_aligned<ITEMS>(REVERSE ? x + count : x) ? count - count % STEP : 0;
  const Pointer own = REVERSE ? x + count - ITEMS - lane_index() * ITEMS : x + lane_index() * ITEMS;

  // ---- 1. full steps, a row of vectors at a time -------------------------------------------
  T lane_total[ROWS];
#pragma unroll 1
  for (int64 at = index * STEP; at < whole; at += warps * STEP) {
    decltype(load_aligned<ITEMS>(x)) vector[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
      vector[r] =
          load_aligned<ITEMS>(REVERSE ? own - at - r * Shape::ROW : own + at + r * Shape::ROW);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if constexpr (REVERSE) vector[r] = flip(vector[r]);
      const T total = reduce<Op, T>(vector[r]);
      if (!Op::COMMUTATIVE)
        prefix = join<Op>(prefix, warp_reduce<Op>(total));
      else
        lane_total[r] = at > index * STEP ? Op::combine(lane_total[r], total) : total;
    }
  }
  if (Op::COMMUTATIVE && whole > index * STEP) {
#pragma unroll
    for (int r = 1; r < ROWS; ++r) lane_total[0] = Op::combine(lane_total[0], lane_total[r]);
    prefix = join<Op>(prefix, warp_reduce<Op>(lane_total[0]));
  }

  // ---- 2. the rest, an element per lane at a time -------------------------------------------
  if (index > 0) return prefix;
  for (int64 at = whole; at < count; at += LANES) {
    T value{};
    if (at + lane_index() < count)
      value = convert<T>(element(x, REVERSE ? count - 1 - at - lane_index() : at + lane_index()));
    if (count - at >= LANES) {
      prefix = join<Op>(prefix, warp_reduce<Op>(value));
    } else {
      for (int lane = 0; lane < count - at; ++lane)
        prefix = join<Op>(prefix, broadcast(value, lane));
    }
  }
  return prefix;
}

// Combine the prefixes of a block's warps, in order. Each warp's is in its lane 0, the result in
// thread 0.
template <class Op, int WARPS, class T>
__device__ Prefix<T> combine_warps(Prefix<T> own) {
  __shared__ T value[WARPS];
  __shared__ bool some[WARPS];
  __syncthreads();
  if (lane_index() == 0) {
    value[warp_index()] = own.value;
    some[warp_index()] = own.some;
  }
  __syncthreads();
  if (threadIdx.x == 0)
    for (int w = 1; w < WARPS; ++w)
      if (some[w]) own = join<Op>(own, value[w]);
  return own;
}

// Whether this block is the last of the grid to arrive. It then sees all that the others wrote
// before they arrived. `arrived` counts round to 0 again, ready for the next launch.
__device__ inline bool arrives_last(unsigned* arrived) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  __threadfence();
  return last;
}

// Launch: no more blocks than there are steps of a warp in x [n], n > 0. Elements are counted in
// the order of the scan, REVERSE from the end of x. The unaligned head, less than a vector, comes
// first. After it x is aligned for vectors, unless x cannot be. The first `cached` elements are
// read last: the scan that follows finds them in L2. Totals are computed in the type Found. The
// last block calls deliver(total), by all its threads; the total is complete in thread 0.
template <class Op, class Found, class Shape, class Pointer, class T, class Deliver>
__device__ void reduce(Pointer x /* [n] */, int64 n, int64 unaligned_head, int64 cached,
                       T* totals /* [2][blocks] */, unsigned* arrived /* [1], zero */,
                       const Deliver& deliver) {
  constexpr int64 STEP = Shape::ROWS * Shape::ROW;
  const int64 blocks = gridDim.x, block = blockIdx.x, size = n - unaligned_head;
  const Pointer body = Shape::REVERSE ? x : x + unaligned_head;

  // ---- 1. the later part, then the cached one; of each a run; of that, where operands may not be
  // exchanged, a warp tile to each warp ---------------------------------------------------------
  const int64 middle = size > 2 * cached ? cached / STEP * STEP : 0;
  const int parts = middle > 0 ? 2 : 1;
  for (int part = parts - 1; part >= 0; --part) {
    const int64 low = part == 0 ? 0 : middle, high = part == parts - 1 ? size : middle;
    const int64 from = low + cut(high - low, STEP, blocks, block);
    const int64 to = low + cut(high - low, STEP, blocks, block + 1);
    const int shares = Op::COMMUTATIVE ? 1 : Shape::WARPS;
    const int share = Op::COMMUTATIVE ? 0 : warp_index();
    const int64 begin = from + cut(to - from, STEP, shares, share);
    const int64 end = from + cut(to - from, STEP, shares, share + 1);
    Prefix<Found> prefix;
    if (part == 0 && block == 0 && warp_index() == 0)
      for (int64 i = 0; i < unaligned_head; ++i)
        prefix = join<Op>(prefix, convert<Found>(element(x, Shape::REVERSE ? n - 1 - i : i)));
    if (begin < end)
      prefix = reduce_by_warp<Op, Shape>(body + (Shape::REVERSE ? size - end : begin), end - begin,
                                         prefix, Op::COMMUTATIVE ? warp_index() : 0,
                                         Op::COMMUTATIVE ? Shape::WARPS : 1);
    prefix = combine_warps<Op, Shape::WARPS>(prefix);
    if (threadIdx.x == 0) totals[part * blocks + block] = convert<T>(prefix.value);
  }

  // ---- 2. the runs' totals, a warp tile to each warp ------------------------------------------
  if (!arrives_last(arrived)) return;
  using OneItem = distscan::Shape<Shape::THREADS, 1, 1>;
  const int64 low = cut(parts * blocks, LANES, Shape::WARPS, warp_index());
  const int64 high = cut(parts * blocks, LANES, Shape::WARPS, warp_index() + 1);
  Prefix<Found> prefix;
  if (low < high) prefix = reduce_by_warp<Op, OneItem>(totals + low, high - low, prefix);
  prefix = combine_warps<Op, Shape::WARPS>(prefix);
  deliver(convert<T>(prefix.value));
}

}  // namespace distscan
