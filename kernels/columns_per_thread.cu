// The kernel that scans down the columns of a matrix, a thread to each vector of columns.
//   DISTSCAN_ITEMS       elements of a vector; they divide a row
//   DISTSCAN_EXCLUSIVE   whether a result leaves out its own element
#include "columns/thread_per_column.cuh"
#include "config.cuh"

namespace distscan {

DISTSCAN_KERNEL(DISTSCAN_THREADS, DISTSCAN_BLOCKS)
distscan_columns_per_thread(Input x, Output y, int64 scans, int64 n, int64 inner, bool reverse,
                            const T* offset, T first, bool has_first, Unit unit) {
  set_units<T>(unit);
  thread_per_column<Op, Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, DISTSCAN_ITEMS>, DISTSCAN_EXCLUSIVE,
                    X, Out>(x, y, scans, n, inner, reverse, Start<T>{offset, first, has_first});
}

}  // namespace distscan
