// The kernel that reduces a shard to its total, and exchanges it with the other GPUs of the node.
#include "config.cuh"
#include "linear/exchange.cuh"
#include "linear/reduce.cuh"

namespace distscan {

DISTSCAN_KERNEL(DISTSCAN_THREADS, DISTSCAN_BLOCKS)
distscan_reduce_exchange(Input x, int64 n, int64 unaligned_head, int64 cached, T* totals,
                         unsigned* arrived, Peers peers, T first, bool has_first, Word* offset,
                         unsigned epoch) {
  reduce<Op, T, Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, DISTSCAN_ITEMS, REVERSE>>(
      x, n, unaligned_head, cached, totals, arrived, [=](T total) {
        if (warp_index() == 0)
          Exchange<Op, T>(peers).run(total, false, Prefix<T>{first, has_first}, offset, epoch);
      });
}

}  // namespace distscan
