// The kernel that reduces a shard of segments: whether it has a head, and the total from its last
// head on.
#include "config.cuh"
#include "linear/flags.cuh"
#include "linear/reduce.cuh"

namespace distscan {

DISTSCAN_KERNEL(DISTSCAN_THREADS, DISTSCAN_BLOCKS)
distscan_reduce_segments(const X* x, const unsigned char* heads, int64 n, int64 peel, int64 cached,
                         Flagged<T>* totals, unsigned* arrived, Totals total, unsigned epoch) {
  reduce<Segmented<Op>, Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, items_per_vector<X>(), REVERSE>>(
      FlaggedPointer<X>{x, heads}, n, peel, cached, totals, arrived, total, epoch);
}

}  // namespace distscan
