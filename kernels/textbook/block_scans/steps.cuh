// Common parts of the block scans: their measures, and the half that two of them begin with.
//
//   STEPS      combines that must wait for each other
//   BARRIERS   __syncthreads
//   WORK       combines of all threads together; one thread alone needs THREADS - 1
#pragma once

#include "../../base/warp_scan.cuh"

namespace distscan {

// log2_of(8) == 3
__device__ constexpr int log2_of(int n) { return n > 1 ? 1 + log2_of(n / 2) : 0; }

// Reduce in place, in log2(THREADS) steps: value[i] then combines the last 2^k values up to itself,
// where 2^k is the largest power of 2 that divides i + 1. The first threads work, side by side.
// sum: [3 1 7 0 4 1 6 3] -> [3 4 7 11 4 5 6 25]
template <class Op, int THREADS, class T>
__device__ void up_sweep(T* value /* [THREADS], shared */) {
  const int i = threadIdx.x;
#pragma unroll
  for (int d = 1; d < THREADS; d *= 2) {
    __syncthreads();
    const int at = (i + 1) * 2 * d - 1;
    if (at < THREADS) value[at] = Op::combine(value[at - d], value[at]);
  }
}

}  // namespace distscan
