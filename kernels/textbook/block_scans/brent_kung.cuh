// Brent and Kung, "A Regular Layout for Parallel Adders", 1982.
//
// Twice the steps, least work: a tree of totals upwards, then the gaps between them downwards.
// Of 8 values: 5 steps, 6 barriers, 11 combinations.
//
//            3    1    7    0    4    1    6    3
//   up   1   3    4    7    7    4    5    6    9     every 2nd takes in the one before
//   up   2   3    4    7   11    4    5    6   14     every 4th, two before
//   up   4   3    4    7   11    4    5    6   25     the last has all
//   down 2   3    4    7   11    4   16    6   25     2 behind every 4th
//   down 1   3    4   11   11   15   16   22   25     1 behind every 2nd
#pragma once

#include "steps.cuh"

namespace distscan {

template <class Op, class T, int THREADS>
struct BrentKung {
  static constexpr int STEPS = 2 * log2_of(THREADS) - 1;
  static constexpr int BARRIERS = STEPS + 1;
  static constexpr int WORK = 2 * (THREADS - 1) - log2_of(THREADS);

  struct Shared {
    T value[THREADS];
  };

  static __device__ T inclusive(T mine, Shared& shared) {
    const int i = threadIdx.x;
    T* value = shared.value;
    value[i] = mine;
    up_sweep<Op, THREADS>(value);
#pragma unroll
    for (int d = THREADS / 4; d > 0; d /= 2) {
      __syncthreads();
      const int at = (i + 1) * 2 * d - 1 + d;
      if (at < THREADS) value[at] = Op::combine(value[at - d], value[at]);
    }
    __syncthreads();
    return value[i];
  }
};

}  // namespace distscan
