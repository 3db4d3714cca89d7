// Weights in tiles: how they are loaded, and summed in double.
//
// All tiles have one length. Tile 0 begins `lead` elements before x, at an address that is aligned
// for vectors. Elements outside x count as 0.
// n = 10, lead 1, length 4: [-1, 3) [3, 7) [7, 11), of which -1 and 10 do not exist
#pragma once

#include "../base/operators.cuh"
#include "../base/warp_scan.cuh"

namespace distscan {

struct Plus {
  static constexpr bool COMMUTATIVE = true;
  template <class T>
  __device__ static T combine(T a, T b) {
    return plus(a, b);
  }
};

// The vector at x[at], which is aligned for it; elements outside x are 0.
// n = 3, at 2: x = [5 6 7] -> [7 0 0 0]
template <int ITEMS, class X>
__device__ Vector<X, ITEMS> load_existing(const X* x /* [n] */, int64 n, int64 at) {
  if (at >= 0 && at + ITEMS <= n) return load_packed<ITEMS>(x + at);
  Vector<X, ITEMS> vector{};
#pragma unroll
  for (int i = 0; i < ITEMS; ++i)
    if (at + i >= 0 && at + i < n) vector.item[i] = x[at + i];
  return vector;
}

// `before` plus the sum of `own` over the earlier threads of a block. `before` then becomes the sum
// over all threads. before 10: own [1 2 3 ...] -> [10 11 13 ...], and before = 10 + 1 + 2 + 3 ...
template <int WARPS>
__device__ double sum_of_earlier(double own, double& before) {
  __shared__ double totals[WARPS];
  const double scanned = warp_scan<Plus>(own), earlier_lanes = shuffle_up(scanned, 1);
  if (lane_index() == LANES - 1) totals[warp_index()] = scanned;
  __syncthreads();
  double earlier = before;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) {
    if (w == warp_index()) earlier = before;
    before += totals[w];
  }
  __syncthreads();  // the next call writes there
  return lane_index() > 0 ? earlier + earlier_lanes : earlier;
}

}  // namespace distscan
