// The kernel that scans a shard, and exchanges totals with the other GPUs of the node meanwhile.
#include "config.cuh"
#include "linear/fused.cuh"

namespace distscan {

using ScanShape = Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, DISTSCAN_ITEMS, REVERSE>;
using Policy = FusedPolicy<ScanShape, DISTSCAN_STAGES, DISTSCAN_AT_ONCE, DISTSCAN_TILES>;
using Ops = ScanOps<Op, T, Out, PartialOp, Partial, EXCLUSIVE>;

DISTSCAN_KERNEL(DISTSCAN_THREADS + 2 * LANES, 1)
distscan_fused(Input x, Output y, Shard shard, Totals totals, Peers peers, T first, bool has_first,
               Word* offset) {
  fused<Policy, Ops>(Items<ScanShape, X>{x}, y, shard, totals, peers, Prefix<T>{first, has_first},
                     offset);
}

}  // namespace distscan
