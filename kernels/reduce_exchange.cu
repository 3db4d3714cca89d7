// The kernel that reduces a shard to its total, and exchanges it with the other GPUs of the node.
// If this GPU gets no offset, the kernel fills the results in place of the scan.
#include "linear/message.cuh"
#include "linear/no_result.cuh"
#include "linear/reduce.cuh"
#include "source.cuh"

namespace distscan {

DISTSCAN_KERNEL(DISTSCAN_THREADS, DISTSCAN_BLOCKS)
distscan_reduce_exchange(Input x, Output y, int64 n, int64 unaligned_head, int64 cached,
                         Total* totals, unsigned* arrived, Peers peers, T first, bool has_first,
                         Word* offset, unsigned epoch, const unsigned char* heads) {
  const Source source = pointer_of<Source>(x, heads, n);
  reduce<OperatorOf<Source, Op>, Total,
         Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, DISTSCAN_ITEMS, REVERSE>>(
      source, n, unaligned_head, cached, totals, arrived, [=](Total total) {
        using Message = distscan::Message<Source, Op, T>;
        __shared__ bool called_off;
        if (warp_index() == 0) {
          const auto own = Message::of(source, n, total);
          const Exchange<typename Message::Op, typename Message::Value> exchange(peers);
          const auto found = Message::offset(exchange.run(own), Prefix<T>{first, has_first}, own);
          if (lane_index() == 0) {
            pass_on(found, offset, epoch);
            called_off = found.called_off();
          }
        }
        __syncthreads();
        if (called_off) fill_without_result(y, n);
      });
}

}  // namespace distscan
