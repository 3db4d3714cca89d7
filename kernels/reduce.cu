// The kernel that reduces a shard to its total.
//   DISTSCAN_SOURCE   what it reads, one of
//       ItemPointer       elements of one segment
//       FlaggedPointer    elements with flags of heads. The total is that from the last head on,
//                         with a flag that says whether there is a head
#include "config.cuh"
#include "linear/flags.cuh"
#include "linear/reduce.cuh"

namespace distscan {

using Source = DISTSCAN_SOURCE<X>;
using Total = ValueOf<Source, T>;

DISTSCAN_KERNEL(DISTSCAN_THREADS, DISTSCAN_BLOCKS)
distscan_reduce(const X* x, int64 n, int64 peel, int64 cached, Total* totals, unsigned* arrived,
                Totals total, unsigned epoch, const unsigned char* heads) {
  reduce<OperatorOf<Source, Op>,
         Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, items_per_vector<X>(), REVERSE>>(
      pointer_of<Source>(x, heads), n, peel, cached, totals, arrived, total, epoch);
}

}  // namespace distscan
