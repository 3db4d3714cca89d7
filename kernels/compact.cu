// The kernel that keeps some elements of a shard, in order. Its macros:
//   DISTSCAN_SOURCE   the elements that it keeps, one of
//       Masked            elements x, by a mask
//       Indices           their indices, by a mask
//       Selected          elements x, by a predicate
//   DISTSCAN_X        the type of the elements or indices
//   DISTSCAN_T        the type of x in the predicate
//   predicate.h       the predicate: whether an element x is kept
//   DISTSCAN_THREADS, and more, the policy (cuda/compaction.py)
#include "linear/compact.cuh"

namespace distscan {

using X = typename Choose<same<DISTSCAN_X, bool>, boolean, DISTSCAN_X>::type;
using T = DISTSCAN_T;

struct Predicate {
  __device__ static bool keeps(X item) { return is_kept(convert<T>(item)); }

 private:
  __device__ static bool is_kept(T x) {
#include "predicate.h"
  }
};

template <class Shape, class X>
using Selected = ByPredicate<Shape, X, Predicate>;

using CompactShape = Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, DISTSCAN_ITEMS>;
using Source = DISTSCAN_SOURCE<CompactShape, X>;

// `mask` is for Masked and Indices, `x` for Masked and Selected. The count goes to work.total.
extern "C" __global__ void __launch_bounds__(
    DISTSCAN_THREADS + (DISTSCAN_REDUCERS + DISTSCAN_LOOK_AHEAD_WARPS + 1) * LANES, 1)
    distscan_compact(const X* x, const unsigned char* mask, X* y, Shard shard, Workspace work) {
  compact<CompactShape, DISTSCAN_STAGES, DISTSCAN_REDUCERS, DISTSCAN_LOOK_AHEAD_WARPS>(
      Source::of(x, mask), y, shard, work);
}

}  // namespace distscan
