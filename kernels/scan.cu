// The kernel that scans a shard, behind the offset of all earlier ranks if there is one.
//   DISTSCAN_SOURCE   what it reads, one of
//       Items             elements of one segment
//       FlaggedItems      elements with flags of heads
//       RowItems          elements of rows, which are scanned each on its own
//   DISTSCAN_FIRST    whether segments and rows start behind `first`
#include "config.cuh"
#include "linear/flagged_items.cuh"
#include "linear/row_items.cuh"
#include "linear/scan.cuh"

namespace distscan {

using ScanShape = Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, DISTSCAN_ITEMS, REVERSE>;
using Source = DISTSCAN_SOURCE<ScanShape, X>;

// The first parameters are those of distscan_scan_short. `heads` is for FlaggedItems, `row` for
// RowItems, `first` for both, `mail` for Items.
DISTSCAN_KERNEL(DISTSCAN_THREADS + (DISTSCAN_REDUCERS + DISTSCAN_LOOK_AHEAD_WARPS + 1) * LANES, 1)
distscan_scan(const X* x, Out* y, Shard shard, Workspace work, T offset, bool has_offset, Mail mail,
              const unsigned char* heads, RowLength row, T first) {
  scan<OperatorOf<Source, Op>, OperatorOf<Source, PartialOp>, ValueOf<Source, Partial>, ScanShape,
       DISTSCAN_STAGES, DISTSCAN_REDUCERS, DISTSCAN_LOOK_AHEAD_WARPS, EXCLUSIVE>(
      Source::of(x, heads, row), y, shard, work,
      Source::offset(Prefix<T>{offset, has_offset}, mail, first),
      segments_of<Source, DISTSCAN_FIRST>(first));
}

}  // namespace distscan
