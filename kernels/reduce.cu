// The kernel that reduces a shard to its total.
#include "config.cuh"
#include "linear/reduce.cuh"

namespace distscan {

DISTSCAN_KERNEL(DISTSCAN_THREADS, DISTSCAN_BLOCKS)
distscan_reduce(const X* x, int64 n, int64 peel, int64 cached, T* totals, unsigned* arrived,
                Totals total, unsigned epoch) {
  reduce<Op, Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, items_per_vector<X>(), REVERSE>>(
      x, n, peel, cached, totals, arrived, total, epoch);
}

}  // namespace distscan
