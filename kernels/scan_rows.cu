// The kernel that scans rows, one behind the other in memory, each on its own.
#include "config.cuh"
#include "linear/row_items.cuh"
#include "linear/scan.cuh"

namespace distscan {

using ScanShape = Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, DISTSCAN_ITEMS, REVERSE>;

DISTSCAN_KERNEL(DISTSCAN_THREADS + (DISTSCAN_REDUCERS + DISTSCAN_LOOK_AHEAD_WARPS + 1) * LANES, 1)
distscan_scan_rows(const X* x, RowLength row, Out* y, Shard shard, Workspace work, T first) {
  using Source = RowItems<ScanShape, X>;
  scan<Segmented<Op>, Segmented<PartialOp>, Flagged<Partial>, ScanShape, DISTSCAN_STAGES,
       DISTSCAN_REDUCERS, DISTSCAN_LOOK_AHEAD_WARPS, EXCLUSIVE>(
      Source{{x}, row}, y, shard, work, Offset<Flagged<T>>{{{first, 0}, true}, {}},
      Segments<T, DISTSCAN_FIRST>{first});
}

}  // namespace distscan
