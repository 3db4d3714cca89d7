// The kernel that finds where the sum of a shard's weights reaches given targets.
#include "config.cuh"
#include "linear/find_cuts.cuh"

namespace distscan {

DISTSCAN_KERNEL(DISTSCAN_THREADS, 1)
distscan_find_cuts(const X* x, int64 n, int64 lead, int64 length, const double* ends, int64 tiles,
                   const double* targets, int64* cuts, int64 count) {
  find_cuts<Shape<DISTSCAN_THREADS, 1, items_per_vector<X>()>>(x, n, lead, length, ends, tiles,
                                                               targets, cuts, count);
}

}  // namespace distscan
