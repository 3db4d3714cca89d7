// The kernel that reduces a shard to its total.
// The total of elements with flags or keys is that from the last head on, with a flag that says
// whether there is a head. The keys at both ends of the shard follow it.
#include "linear/reduce.cuh"
#include "source.cuh"

namespace distscan {

DISTSCAN_KERNEL(DISTSCAN_THREADS, DISTSCAN_BLOCKS)
distscan_reduce(Input x, int64 n, int64 unaligned_head, int64 cached, Total* totals,
                unsigned* arrived, Totals total, unsigned epoch, const unsigned char* heads,
                Unit unit) {
  set_units<T>(unit);
  const Source source = pointer_of<Source>(x, heads, n);
  publish_ends<Total>(source, n, total, epoch);
  reduce<OperatorOf<Source, OpIn<Found>>, ValueOf<Source, Found>,
         Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, DISTSCAN_ITEMS, REVERSE>>(
      source, n, unaligned_head, cached, totals, arrived, [=](Total found) {
        if (threadIdx.x == 0) publish(total, 0, found, epoch);  // total [1] in pinned host memory
      });
}

}  // namespace distscan
