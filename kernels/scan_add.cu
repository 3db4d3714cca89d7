// The kernels of strategy scan-add: scan the shard, then add what comes before it.
#include "add.cuh"
#include "given.cuh"
#include "scan.cuh"

namespace distscan {

DISTSCAN_KERNEL distscan_total(const X* x, T* y, Runs shard, T* totals, T* prefixes,
                               unsigned* arrived, T* total) {
  scan<Op, ScanShape<X, T>>(x, y, shard, totals, prefixes, arrived, total);
}

DISTSCAN_KERNEL distscan_seed(const T* y, Out* out, Runs shard, const T* prefixes, T offset,
                              bool has_offset) {
  add<Op, ScanShape<T, Out>>(y, out, shard, prefixes, offset, has_offset);
}

}  // namespace distscan
