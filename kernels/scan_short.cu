// The kernel that scans a short shard, behind the offset of all earlier ranks if there is one.
#include "config.cuh"
#include "linear/scan_short.cuh"

namespace distscan {

// The wider side moves 16 bytes per access, the other as many elements.
using ScanShape = Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, items_per_vector<X, Out>(), REVERSE>;

DISTSCAN_KERNEL(DISTSCAN_THREADS + LANES, DISTSCAN_BLOCKS)
distscan_scan_short(const X* x, Out* y, Shard shard, Workspace work, T offset, bool has_offset,
                    Mail mail) {
  scan_short<Op, PartialOp, Partial, ScanShape, DISTSCAN_BLOCKS, EXCLUSIVE>(
      x, y, shard, work, Offset<T>{{offset, has_offset}, mail});
}

}  // namespace distscan
