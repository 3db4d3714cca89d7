// The kernel that scans a short shard, seeded with the offset of all earlier ranks if there is one.
#include "config.cuh"
#include "linear/scan_short.cuh"

namespace distscan {

using ScanShape = Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, DISTSCAN_ITEMS, REVERSE>;

DISTSCAN_KERNEL(DISTSCAN_THREADS + LANES, 1)
distscan_scan_short(Input x, Output y, Shard shard, Workspace work, T offset, bool has_offset,
                    Mail mail, Unit unit) {
  set_units<T>(unit);
  scan_short<Op, PartialOp, Partial, ScanShape, EXCLUSIVE, X, Out>(
      x, y, shard, work, Offset<T>{{offset, has_offset}, mail});
}

}  // namespace distscan
