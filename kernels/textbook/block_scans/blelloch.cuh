// Blelloch, "Prefix Sums and Their Applications", 1990; on GPUs: Harris, Sengupta and Owens,
// "Parallel Prefix Sum (Scan) with CUDA", 2007.
//
// An exclusive scan: totals go up a tree, and what comes before each part goes down it. A pair at
// distance d gets what comes before both at its right place; the left one takes that, and the right
// one that and the left one's total. The first pair has nothing before it, so no identity is
// needed. Of 8 values: 7 steps, 7 barriers, 18 combinations.
//
//            3    1    7    0    4    1    6    3
//   up   1   3    4    7    7    4    5    6    9
//   up   2   3    4    7   11    4    5    6   14
//   up   4   3    4    7   11    4    5    6   25
//   down 4   3    4    7    .    4    5    6   11     . nothing
//   down 2   3    .    7    4    4   11    6   16
//   down 1   .    3    4   11   11   15   16   22     exclusive
//   own      3    4   11   11   15   16   22   25     inclusive
#pragma once

#include "steps.cuh"

namespace distscan {

template <class Op, class T, int THREADS>
struct Blelloch {
  static constexpr int STEPS = 2 * log2_of(THREADS) + 1;
  static constexpr int BARRIERS = STEPS;
  static constexpr int WORK = 3 * (THREADS - 1) - log2_of(THREADS);

  struct Shared {
    T value[THREADS];
  };

  static __device__ T inclusive(T mine, Shared& shared) {
    const int i = threadIdx.x;
    T* value = shared.value;
    value[i] = mine;
    up_sweep<Op, THREADS>(value);
#pragma unroll
    for (int d = THREADS / 2; d > 0; d /= 2) {
      __syncthreads();
      const int at = (i + 1) * 2 * d - 1;
      if (at < THREADS) {
        const Prefix<T> before{value[at], i > 0};
        const T left = value[at - d];
        value[at - d] = before.value;
        value[at] = join<Op>(before, left).value;
      }
    }
    __syncthreads();
    return join<Op>(Prefix<T>{value[i], i > 0}, mine).value;
  }
};

}  // namespace distscan
