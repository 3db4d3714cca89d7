// The kernel that finds the totals of a shard's tiles, and scans them.
#include "config.cuh"
#include "linear/tile_totals.cuh"

namespace distscan {

DISTSCAN_KERNEL(DISTSCAN_THREADS, DISTSCAN_BLOCKS)
distscan_tile_totals(const X* x, int64 n, int64 lead, int64 length, double* ends, unsigned* arrived,
                     Totals total, unsigned epoch) {
  tile_totals<Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, items_per_vector<X>()>>(
      x, n, lead, length, ends, arrived, total, epoch);
}

}  // namespace distscan
