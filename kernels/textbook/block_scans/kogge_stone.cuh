// Kogge and Stone, "A Parallel Algorithm for the Efficient Solution of a General Class of
// Recurrence Equations", 1973; Hillis and Steele, "Data Parallel Algorithms", 1986.
//
// Fewest steps, most work. In the step of distance d every thread takes in the value d before it.
// Of 8 values: 3 steps, 3 barriers, 17 combinations.
//
//          3    1    7    0    4    1    6    3
//   d = 1  3    4    8    7    4    5    7    9     thread i has the last 2 up to i
//   d = 2  3    4   11   11   12   12   11   14     ... the last 4
//   d = 4  3    4   11   11   15   16   22   25     ... all 8
#pragma once

#include "steps.cuh"

namespace distscan {

template <class Op, class T, int THREADS>
struct KoggeStone {
  static constexpr int STEPS = log2_of(THREADS);
  static constexpr int BARRIERS = STEPS;
  static constexpr int WORK = THREADS * STEPS - (THREADS - 1);

  struct Shared {
    T value[2][THREADS];  // read one, write the other: one barrier a step instead of two
  };

  static __device__ T inclusive(T mine, Shared& shared) {
    const int i = threadIdx.x;
    int now = 0;
    shared.value[now][i] = mine;
#pragma unroll
    for (int d = 1; d < THREADS; d *= 2) {
      __syncthreads();
      if (i >= d) mine = Op::combine(shared.value[now][i - d], mine);
      now = 1 - now;
      shared.value[now][i] = mine;
    }
    return mine;
  }
};

}  // namespace distscan
