// The kernel that scans a shard of segments, behind the offset of all earlier ranks if there is
// one. heads[i] says whether element i is its segment's first in the order of the scan.
#include "config.cuh"
#include "linear/flagged_items.cuh"
#include "linear/scan.cuh"

namespace distscan {

using ScanShape = Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, DISTSCAN_ITEMS, REVERSE>;

DISTSCAN_KERNEL(DISTSCAN_THREADS + (DISTSCAN_REDUCERS + DISTSCAN_LOOK_AHEAD_WARPS + 1) * LANES, 1)
distscan_scan_segments(const X* x, const unsigned char* heads, Out* y, Shard shard, Workspace work,
                       T offset, bool has_offset, T first) {
  using Source = FlaggedItems<ScanShape, X>;
  scan<Segmented<Op>, Segmented<PartialOp>, Flagged<Partial>, ScanShape, DISTSCAN_STAGES,
       DISTSCAN_REDUCERS, DISTSCAN_LOOK_AHEAD_WARPS, EXCLUSIVE>(
      Source{{x}, {heads}}, y, shard, work, Offset<Flagged<T>>{{{offset, 0}, has_offset}, {}},
      Segments<T, DISTSCAN_FIRST>{first});
}

}  // namespace distscan
