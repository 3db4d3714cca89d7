// The kernel that scans a shard with a block scan and a chain of choice.
//   DISTSCAN_BLOCK_SCAN   KoggeStone, BrentKung, Blelloch, Coarsened
//   DISTSCAN_CHAIN        Chained, LookBack, LooksAhead
#include "config.cuh"
#include "linear/offset.cuh"
#include "textbook/block_scans/blelloch.cuh"
#include "textbook/block_scans/brent_kung.cuh"
#include "textbook/block_scans/coarsened.cuh"
#include "textbook/block_scans/kogge_stone.cuh"
#include "textbook/chains/chained.cuh"
#include "textbook/chains/look_ahead.cuh"
#include "textbook/chains/look_back.cuh"
#include "textbook/textbook.cuh"

namespace distscan {

using TextbookShape = Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, items_per_vector<X, Out>()>;
using BlockScan = DISTSCAN_BLOCK_SCAN<Op, T, DISTSCAN_THREADS>;
using Chain = DISTSCAN_CHAIN<Op, T>;

// The parameters are distscan_scan's. After its totals there is room for as many prefixes.
DISTSCAN_KERNEL(DISTSCAN_THREADS, DISTSCAN_BLOCKS)
distscan_textbook(const X* x, Out* y, Shard shard, Workspace work, T offset, bool has_offset,
                  Mail /* null: it does not wait */) {
  const Totals prefixes{work.totals.words + WORDS<T> * work.totals.stride, work.totals.stride};
  textbook<Op, TextbookShape, BlockScan, Chain>(x, y, shard, work, prefixes,
                                                Prefix<T>{offset, has_offset});
}

}  // namespace distscan
