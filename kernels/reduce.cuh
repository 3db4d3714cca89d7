// The reduction of a shard to one total per run and one of the shard: it reads, and hardly writes.
//
// Each warp of a block reduces its own contiguous stretch of the block's run, without a barrier;
// the warps' totals are then combined in order.
#pragma once

#include "runs.cuh"

namespace distscan {

// The ordered combination over the lanes, whole in lane 0.
// sum: [1 2 3 ... 32] -> [528 ...]; after the step of distance d, lane l holds lanes l to l+2d-1.
template <class Op, class T>
__device__ T warp_reduce(T x) {
#pragma unroll
  for (int distance = 1; distance < LANES; distance *= 2)
    x = Op::combine(x, shuffle_down(x, distance));
  return x;
}

// The combination of one lane's vector. sum: [1 2 3 4] -> 10
template <class Op, class T, class X, int ITEMS>
__device__ T reduce(const Vector<X, ITEMS>& vector) {
  T total = convert<T>(vector.item[0]);
#pragma unroll
  for (int i = 1; i < ITEMS; ++i) total = Op::combine(total, convert<T>(vector.item[i]));
  return total;
}

// Reduce x [count], a multiple of 32 elements but at the shard's end, by one warp, behind `seed`;
// whole in lane 0. Commutative operators keep a total per lane and row, others shuffle every row.
template <class Op, class Shape, class X, class T>
__device__ Seed<T> reduce_stretch(const X* x, int64 count, Seed<T> seed) {
  constexpr int ROWS = Shape::ROWS, ITEMS = Shape::ITEMS, STEP = ROWS * Shape::ROW;
  using Vec = Vector<X, ITEMS>;
  const bool aligned = is_aligned<ITEMS>(x);
  const int64 whole = aligned ? count - count % STEP : 0;
  const X* own = x + lane_index() * ITEMS;

  // ---- 1. whole steps, a row of vectors at a time -------------------------------------------
  T lane_total[ROWS];
#pragma unroll 1
  for (int64 at = 0; at < whole; at += STEP) {
    Vec vector[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
      vector[r] = *reinterpret_cast<const Vec*>(own + at + r * Shape::ROW);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const T total = reduce<Op, T>(vector[r]);
      if (!Op::COMMUTATIVE)
        seed = join<Op>(seed, warp_reduce<Op>(total));
      else
        lane_total[r] = at > 0 ? Op::combine(lane_total[r], total) : total;
    }
  }
  if (Op::COMMUTATIVE && whole > 0) {
#pragma unroll
    for (int r = 1; r < ROWS; ++r) lane_total[0] = Op::combine(lane_total[0], lane_total[r]);
    seed = join<Op>(seed, warp_reduce<Op>(lane_total[0]));
  }

  // ---- 2. the rest, an element per lane at a time -------------------------------------------
  for (int64 at = whole; at < count; at += LANES) {
    T value{};
    if (at + lane_index() < count) value = convert<T>(x[at + lane_index()]);
    if (count - at >= LANES) {
      seed = join<Op>(seed, warp_reduce<Op>(value));
    } else {
      for (int lane = 0; lane < count - at; ++lane) seed = join<Op>(seed, broadcast(value, lane));
    }
  }
  return seed;
}

// Launch: one block per run. prefixes and *total are as combine_runs leaves them.
template <class Op, class Shape, class X, class T>
__device__ void reduce(const X* x /* [n] */, Runs shard, T* totals /* [runs] */,
                       T* prefixes /* [runs] */, unsigned* arrived, T* total) {
  constexpr int64 STEP = Shape::ROWS * Shape::ROW;
  __shared__ T warp_totals[2][Shape::WARPS];
  const int64 run = blockIdx.x, end = shard.end(run);
  int64 begin = shard.begin(run);
  const int warp = warp_index();
  Seed<T> seed;

  // ---- 1. the unaligned head, then each warp's stretch --------------------------------------
  if (run == 0) {
    if (warp == 0)
      for (int64 i = 0; i < shard.head; ++i) seed = join<Op>(seed, convert<T>(x[i]));
    begin = shard.head;
  }
  const int64 steps = (end - begin + STEP - 1) / STEP;
  const int64 from = begin + steps * warp / Shape::WARPS * STEP;
  int64 to = begin + steps * (warp + 1) / Shape::WARPS * STEP;
  if (to > end) to = end;
  if (from < to) seed = reduce_stretch<Op, Shape>(x + from, to - from, seed);

  // ---- 2. the warps' totals, in order, by one thread ----------------------------------------
  __shared__ bool some[Shape::WARPS];
  if (lane_index() == 0) {
    warp_totals[0][warp] = seed.value;
    some[warp] = seed.some;
  }
  __syncthreads();
  Seed<T> own;
  if (threadIdx.x == 0)
    for (int w = 0; w < Shape::WARPS; ++w)
      if (some[w]) own = join<Op>(own, warp_totals[0][w]);
  __syncthreads();
  combine_runs<Op, Shape>(own, shard, totals, prefixes, arrived, total, warp_totals);
}

}  // namespace distscan
