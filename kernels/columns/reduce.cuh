// The reduction of each column of a matrix to its total: of one scan, which has all rows.
//
//   level   a part is          its total travels by    who combines
//   block   one slice          slices.cuh
//   block   one tile           registers               a lane per column
//   device  one block's run    global memory           the strip's block that ends last
#pragma once

#include "../pipeline.cuh"
#include "slices.cuh"

namespace distscan {

// Whether this block is the last of `blocks` to arrive. It then sees all that the others wrote
// before they arrived. `arrived` counts round to 0 again, ready for the next launch.
__device__ inline bool ends_last(unsigned* arrived, unsigned blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(arrived, blocks - 1) == blocks - 1;
  __syncthreads();
  __threadfence();
  return last;
}

// The shared memory of a block's warps, beside the tiles.
template <class T, int WARPS, int STAGES, int COLUMNS>
struct ReducePipeline : ReduceBarriers<STAGES> {
  T warp_total[STAGES][WARPS][COLUMNS];
  T total[COLUMNS];  // of the run
};

// The run of tiles [from, to) of a strip that has so many `columns`, by the whole block; its totals
// go to pipeline.total.
template <class Op, class Shape, int STAGES, int LOADERS, int COLUMNS, class X, class T>
__device__ void reduce_run(const Strip<Shape, X>& source, const Spot<Shape>& spot, int64 strip,
                           int columns, int64 from, int64 to,
                           ReducePipeline<T, Shape::WARPS, STAGES, COLUMNS>& pipeline) {
  const int warp = warp_index();
  pipeline.init(source, Shape::WARPS);
  __syncthreads();

  // ---- The loaders ----------------------------------------------------------------------------
  if (warp >= Shape::WARPS) {
    for (int64 iteration = warp - Shape::WARPS; iteration < to - from; iteration += LOADERS) {
      const int stage = static_cast<int>(iteration % STAGES);
      pipeline.read.wait_for_reuse(iteration);
      source.fetch(stage, source.tile(strip, from + iteration), pipeline.full[stage]);
    }
    return;
  }

  // ---- The others: a warp tile each; the first joins their totals ----------------------------
  constexpr int BLOCKS = (COLUMNS + LANES - 1) / LANES;  // of columns
  Prefix<T> all[BLOCKS];
  for (int64 iteration = 0; iteration < to - from; ++iteration) {
    const int stage = static_cast<int>(iteration % STAGES);
    const Tile tile = source.tile(strip, from + iteration);
    pipeline.full.wait(iteration);
    const bool works = source.works(tile);
    Run<T, Shape::ITEMS> own, before;
    if (tile.whole)
      reduce_whole<Op>(source.template load<true>(stage, tile, warp), spot, works, own, before);
    else
      reduce_slices<Op>(source.template load<false>(stage, tile, warp), spot, tile, works, warp,
                        own, before);
    if (spot.slice == spot.slices - 1) {
#pragma unroll
      for (int i = 0; i < Shape::ITEMS; ++i)
        pipeline.warp_total[stage][warp][spot.column + i] = own.value[i];
    }
    pipeline.reduced.arrive_by_warp(iteration);
    if (warp > 0) continue;
    pipeline.reduced.wait(iteration);
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
      const int column = b * LANES + lane_index();
      if (column < columns)
        all[b] = join<Op>(all[b], join_warps<Op>(pipeline.warp_total[stage], spot, tile, column));
    }
    pipeline.read.arrive_by_warp(iteration);
  }
  if (warp > 0) return;
#pragma unroll
  for (int b = 0; b < BLOCKS; ++b)
    if (b * LANES + lane_index() < columns) pipeline.total[b * LANES + lane_index()] = all[b].value;
}

// Launch: `runs` blocks for each strip, strips side by side; no more runs than tiles of a strip.
// STAGES stages of dynamic shared memory. matrix.n is above its rows.
template <class Op, class Shape, int STAGES, int LOADERS, int COLUMNS, class X, class T>
__device__ void columns_reduce(const typename PointerTo<X>::Const& x /* [rows][inner] */,
                               const Matrix& matrix, const Boxes& boxes, int stage_bytes,
                               int64 runs, T* parts /* [runs][strips][columns] */,
                               unsigned* arrived /* [strips], zero */, T* total /* [inner] */) {
  constexpr int THREADS = Shape::THREADS;
  __shared__ ReducePipeline<T, Shape::WARPS, STAGES, COLUMNS> pipeline;
  __shared__ T part[THREADS];
  const Spot<Shape> spot(matrix);
  const int64 strip = blockIdx.x % matrix.strips, run = blockIdx.x / matrix.strips;
  const int thread = threadIdx.x;

  // ---- 1. the tiles of the run, one after the other -------------------------------------------
  const Strip<Shape, X> source{x, matrix, spot, boxes, stage_bytes};
  const int columns = source.tile(strip, 0).columns;
  reduce_run<Op, Shape, STAGES, LOADERS>(source, spot, strip, columns, matrix.tiles * run / runs,
                                         matrix.tiles * (run + 1) / runs, pipeline);
  __syncthreads();

  // ---- 2. the runs: as many threads for each column as there are ------------------------------
  const int64 column = strip * spot.columns, all = matrix.strips * spot.columns;
  if (thread < columns) parts[run * all + column + thread] = pipeline.total[thread];
  if (!ends_last(arrived + strip, static_cast<unsigned>(runs))) return;
  const int helpers = THREADS / columns, helper = thread / columns;
  const int used = runs < helpers ? static_cast<int>(runs) : helpers;
  if (helper < used) {
    const T* from = parts + column + thread % columns;
    Prefix<T> own;
    for (int64 r = runs * helper / used; r < runs * (helper + 1) / used; ++r)
      own = join<Op>(own, from[r * all]);
    part[thread] = own.value;
  }
  __syncthreads();
  if (thread < columns) {
    T value = part[thread];
    for (int h = 1; h < used; ++h) value = Op::combine(value, part[h * columns + thread]);
    total[column + thread] = value;
  }
}

}  // namespace distscan
