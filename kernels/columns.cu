// The kernel that scans down the columns of a matrix.
//   DISTSCAN_ITEMS       elements of a vector; they divide a row
//   DISTSCAN_STAGED      whether tiles are narrower than a cache line
//   DISTSCAN_EXCLUSIVE   whether a result leaves out its own element
#include "columns.cuh"
#include "given.cuh"

namespace distscan {

DISTSCAN_KERNEL(DISTSCAN_THREADS, DISTSCAN_BLOCKS)
distscan_columns(const X* x, Out* y, Matrix matrix, ColumnsWork work, const T* offset, T first,
                 bool has_first) {
  columns<Op, Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, DISTSCAN_ITEMS>, DISTSCAN_STAGED,
          DISTSCAN_EXCLUSIVE>(x, y, matrix, work, Start<T>{offset, first, has_first});
}

}  // namespace distscan
