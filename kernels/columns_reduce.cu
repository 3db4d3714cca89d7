// The kernel that reduces the columns of a matrix to a row of totals.
//   DISTSCAN_ITEMS    elements of a vector; they divide a row
//   DISTSCAN_STAGED   whether tiles are narrower than a cache line
#include "columns_reduce.cuh"
#include "given.cuh"

namespace distscan {

DISTSCAN_KERNEL(DISTSCAN_THREADS, DISTSCAN_BLOCKS)
distscan_columns_reduce(const X* x, Matrix matrix, int64 runs, T* parts, unsigned* arrived,
                        T* total) {
  columns_reduce<Op, Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, DISTSCAN_ITEMS>, DISTSCAN_STAGED>(
      x, matrix, runs, parts, arrived, total);
}

}  // namespace distscan
