// The kernel that scans a shard, seeded with the offset of all earlier ranks if there is one.
//   DISTSCAN_SOURCE   the elements that it reads, one of
//       Items             elements of one segment
//       FlaggedItems      elements with flags of heads
//       KeyedBy<K>::Items elements with keys of type K, a head being where the key changes
//       RowItems          elements of rows, which are scanned each on its own
//   DISTSCAN_FIRST    whether segments and rows are seeded with `first`
#include "config.cuh"
#include "linear/flagged_items.cuh"
#include "linear/keyed_items.cuh"
#include "linear/row_items.cuh"
#include "linear/scan.cuh"

namespace distscan {

template <class K>
struct KeyedBy {
  template <class Shape, class X>
  using Items = KeyedItems<Shape, X, K>;
};

using ScanShape = Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, DISTSCAN_ITEMS, REVERSE>;
using Source = DISTSCAN_SOURCE<ScanShape, X>;
using Policy = ScanPolicy<ScanShape, DISTSCAN_STAGES, DISTSCAN_REDUCERS, DISTSCAN_LOOK_AHEAD_WARPS,
                          DISTSCAN_LEVELS>;
using Ops = ScanOps<OperatorOf<Source, Op>, ValueOf<Source, T>, Out, OperatorOf<Source, PartialOp>,
                    ValueOf<Source, Partial>, EXCLUSIVE>;

// The first parameters are those of distscan_scan_short. `heads` has the flags or the keys. `row`
// is for RowItems, which take no `mail`; `first` is for all but Items.
DISTSCAN_KERNEL(DISTSCAN_THREADS + (DISTSCAN_REDUCERS + DISTSCAN_LOOK_AHEAD_WARPS + 1) * LANES, 1)
distscan_scan(Input x, Output y, Shard shard, Workspace work, T offset, bool has_offset, Mail mail,
              const unsigned char* heads, RowLength row, T first, Unit unit) {
  set_units<T>(unit);
  scan<Policy, Ops>(Source::of(x, heads, row), y, shard, work,
                    Source::offset(Prefix<T>{offset, has_offset}, mail, first),
                    segments_of<Source, DISTSCAN_FIRST>(first));
}

}  // namespace distscan
