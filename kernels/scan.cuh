// The scan of a shard on one device: before the shard's offset is known, or seeded with it.
#pragma once

#include "runs.cuh"

namespace distscan {

// Launch: one block per run; y may be x. Each run is scanned from nothing; `add` then combines
// into it what comes before. prefixes and *total are as combine_runs leaves them.
template <class Op, class Shape, class X, class T>
__device__ void scan(const X* x /* [n] */, T* y /* [n] */, Runs shard, T* totals /* [runs] */,
                     T* prefixes /* [runs] */, unsigned* arrived, T* total) {
  __shared__ T warp_totals[2][Shape::WARPS];
  const Seed<T> last = scan_own_run<Op, Shape>(x, y, shard, Seed<T>{}, warp_totals);
  combine_runs<Op, Shape>(last, shard, totals, prefixes, arrived, total, warp_totals);
}

// Launch: one block per run, after `reduce` with the same runs; y may be x.
template <class Op, class Shape, class X, class T, class Y>
__device__ void seeded_scan(const X* x /* [n] */, Y* y /* [n] */, Runs shard,
                            const T* prefixes /* [runs] */, T offset, bool has_offset) {
  __shared__ T warp_totals[2][Shape::WARPS];
  const Seed<T> seed = run_seed<Op>(prefixes, offset, has_offset);
  scan_own_run<Op, Shape>(x, y, shard, seed, warp_totals);
}

}  // namespace distscan
