// The coarsened form: Sengupta, Harris and Garland, "Efficient Parallel Scan Algorithms for GPUs",
// 2008; Merrill and Grimshaw, "Parallel Scan for Stream Architectures", 2009.
//
// A thread first scans its own items one after the other, before this is called. Then a warp scans
// by shuffles. Shared memory holds only one value per warp. 8 values with warps of 4 take 4 steps,
// 2 barriers and 15 combinations.
//
//            3    1    7    0    4    1    6    3
//   warps    3    4   11   11 |  4    5   11   14     Kogge and Stone's, by shuffles
//   totals                 11                  25     the same, by the first warp
//   all      3    4   11   11 | 15   16   22   25     plus the total of all earlier warps
#pragma once

#include "../../base/warp_scan.cuh"
#include "steps.cuh"

namespace distscan {

template <class Op, class T, int THREADS>
struct Coarsened {
  static constexpr int WARPS = THREADS / LANES;
  static constexpr int STEPS = log2_of(THREADS) + (WARPS > 1);
  static constexpr int BARRIERS = 2;
  static constexpr int WORK = WARPS * (LANES * log2_of(LANES) - (LANES - 1))  // warps
                              + WARPS * log2_of(WARPS) - (WARPS - 1)          // totals
                              + (THREADS - LANES);                            // all

  struct Shared {
    T total[WARPS];
  };

  static __device__ T inclusive(T mine, Shared& shared) {
    const int warp = warp_index(), lane = lane_index();
    mine = warp_scan<Op>(mine);
    if (lane == LANES - 1) shared.total[warp] = mine;
    __syncthreads();
    if (warp == 0) {
      const T up_to = warp_scan<Op, WARPS>(shared.total[lane < WARPS ? lane : 0]);
      __syncwarp();  // all lanes have read `total`: shuffles do not order memory
      if (lane < WARPS) shared.total[lane] = up_to;
    }
    __syncthreads();
    return warp > 0 ? Op::combine(shared.total[warp - 1], mine) : mine;
  }
};

}  // namespace distscan
