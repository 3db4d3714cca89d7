// The reduction of each column of a matrix to its total: of one scan, which has all rows.
//
//   level   a part is          its total travels by    who combines
//   block   one slice          slices.cuh
//   block   one tile           registers               a thread per column
//   device  one block's run    global memory           the strip's block that ends last
#pragma once

#include "slices.cuh"

namespace distscan {

// Whether this block is the last of `blocks` to arrive; what the others wrote before is then
// visible to it. `arrived` counts round to 0 again, ready for the next launch.
__device__ inline bool ends_last(unsigned* arrived, unsigned blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(arrived, blocks - 1) == blocks - 1;
  __syncthreads();
  __threadfence();
  return last;
}

// Launch: `runs` blocks for each strip, strips side by side; no more runs than tiles of a strip.
// Where STAGED, a tile and 16 bytes more in dynamic shared memory. matrix.n is above its rows.
template <class Op, class Shape, bool STAGED, class X, class T>
__device__ void columns_reduce(const X* x /* [rows][inner] */, const Matrix& matrix, int64 runs,
                               T* parts /* [runs][strips][columns] */,
                               unsigned* arrived /* [strips], zero */, T* total /* [inner] */) {
  constexpr int THREADS = Shape::THREADS, COLUMNS = MOST_COLUMNS<Shape, X>;
  __shared__ Shared<T, Shape::WARPS, COLUMNS> shared;
  __shared__ T part[THREADS];
  const Spot<Shape> spot(matrix);
  const int64 strip = blockIdx.x % matrix.strips, run = blockIdx.x / matrix.strips;
  const int64 tiles = (matrix.rows + spot.rows - 1) / spot.rows,
              pitch = matrix.strips * spot.columns;
  const int thread = threadIdx.x;

  // ---- 1. the tiles of the run, one after the other -------------------------------------------
  Seed<T> all;
  for (int64 index = tiles * run / runs; index < tiles * (run + 1) / runs; ++index) {
    const Tile tile(matrix, spot.rows, index * matrix.strips + strip);
    const int64 left = matrix.rows - tile.begin;
    const int count = left < spot.rows ? static_cast<int>(left) : spot.rows;
    const int mine = rows_of(matrix, tile, spot, count);
    const auto rows = load_tile<Shape, STAGED>(x, matrix, tile, spot, count, mine);
    Run<T, Shape::ITEMS> before{};
    all = join<Op>(all, scan_slices<Op, T>(rows, spot, tile, count, mine, shared, before));
    __syncthreads();
  }

  // ---- 2. the runs: as many threads for each column as there are ------------------------------
  const int64 column = strip * spot.columns;
  if (thread < spot.columns) parts[run * pitch + column + thread] = all.value;
  if (!ends_last(arrived + strip, static_cast<unsigned>(runs))) return;
  const int helpers = THREADS / spot.columns, helper = thread / spot.columns;
  const int used = runs < helpers ? static_cast<int>(runs) : helpers;
  if (helper < used) {
    const T* from = parts + column + thread % spot.columns;
    Seed<T> own;
    for (int64 r = runs * helper / used; r < runs * (helper + 1) / used; ++r)
      own = join<Op>(own, from[r * pitch]);
    part[thread] = own.value;
  }
  __syncthreads();
  if (thread < spot.columns && column + thread < matrix.inner) {
    T value = part[thread];
    for (int h = 1; h < used; ++h) value = Op::combine(value, part[h * spot.columns + thread]);
    total[column + thread] = value;
  }
}

}  // namespace distscan
