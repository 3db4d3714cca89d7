// The kernel that reduces a shard to its total, and exchanges it with the other GPUs of the node.
// If this GPU gets no offset, the kernel fills the results in place of the scan.
#include "config.cuh"
#include "linear/exchange.cuh"
#include "linear/no_result.cuh"
#include "linear/reduce.cuh"

namespace distscan {

DISTSCAN_KERNEL(DISTSCAN_THREADS, DISTSCAN_BLOCKS)
distscan_reduce_exchange(Input x, Output y, int64 n, int64 unaligned_head, int64 cached, T* totals,
                         unsigned* arrived, Peers peers, T first, bool has_first, Word* offset,
                         unsigned epoch) {
  reduce<Op, T, Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, DISTSCAN_ITEMS, REVERSE>>(
      x, n, unaligned_head, cached, totals, arrived, [=](T total) {
        __shared__ bool called_off;
        if (warp_index() == 0) {
          const auto found = Exchange<Op, T>(peers).run(total, false, Prefix<T>{first, has_first});
          if (lane_index() == 0) {
            Exchange<Op, T>::pass_on(found, offset, epoch);
            called_off = found.called_off();
          }
        }
        __syncthreads();
        if (called_off) fill_without_result(y, n);
      });
}

}  // namespace distscan
