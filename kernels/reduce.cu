// The kernel that reduces a shard to its total.
//   DISTSCAN_SOURCE   the elements that it reads, one of
//       ItemPointer       elements of one segment
//       FlaggedPointer    elements with flags of heads. The total is that from the last head on,
//                         with a flag that says whether there is a head
//       KeyedBy<K>::Pointer   the same with keys of type K, a head being where the key changes. The
//                         keys at both ends of the shard follow the total
#include "config.cuh"
#include "linear/keys.cuh"
#include "linear/reduce.cuh"

namespace distscan {

template <class K>
struct KeyedBy {
  template <class X>
  using Pointer = KeyedPointer<X, K, REVERSE>;
};

using Source = DISTSCAN_SOURCE<X>;
using Total = ValueOf<Source, T>;

// `heads` has the flags or the keys.
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
