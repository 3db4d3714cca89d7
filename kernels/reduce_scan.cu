// The kernels of strategy reduce-scan: reduce the shard, then scan it behind what comes before it.
#include "given.cuh"
#include "reduce.cuh"
#include "scan.cuh"

namespace distscan {

DISTSCAN_KERNEL distscan_total(const X* x, Runs shard, T* totals, T* prefixes, unsigned* arrived,
                               T* total) {
  reduce<Op, ReduceShape>(x, shard, totals, prefixes, arrived, total);
}

DISTSCAN_KERNEL distscan_seed(const X* x, Out* y, Runs shard, const T* prefixes, T offset,
                              bool has_offset) {
  seeded_scan<Op, ScanShape<X, T, Out>>(x, y, shard, prefixes, offset, has_offset);
}

}  // namespace distscan
