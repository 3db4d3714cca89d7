// The kernel that scans a shard, behind the offset of all earlier ranks if there is one.
#include "config.cuh"
#include "linear/scan.cuh"

namespace distscan {

using ScanShape = Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, DISTSCAN_ITEMS, REVERSE>;

DISTSCAN_KERNEL(DISTSCAN_THREADS + (DISTSCAN_REDUCERS + DISTSCAN_LOOK_AHEAD_WARPS + 1) * LANES, 1)
distscan_scan(const X* x, Out* y, Shard shard, Workspace work, T offset, bool has_offset,
              Mail mail) {
  scan<Op, PartialOp, Partial, ScanShape, DISTSCAN_STAGES, DISTSCAN_REDUCERS,
       DISTSCAN_LOOK_AHEAD_WARPS, EXCLUSIVE>(Items<ScanShape, X>{x}, y, shard, work,
                                             Offset<T>{{offset, has_offset}, mail});
}

}  // namespace distscan
