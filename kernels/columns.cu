// The kernel that scans down the columns of a matrix.
//   DISTSCAN_ITEMS       elements of a vector; they divide a row
//   DISTSCAN_COLUMNS     a power of 2: at least the columns of a strip
//   DISTSCAN_STAGED      whether results go to memory by way of the stages
//   DISTSCAN_EXCLUSIVE   whether a result leaves out its own element
#include "columns/scan.cuh"
#include "config.cuh"

namespace distscan {

constexpr int WARPS =
    DISTSCAN_THREADS / LANES + DISTSCAN_REDUCERS + DISTSCAN_LOOK_AHEAD_WARPS + DISTSCAN_LOADERS + 1;

using TensorMaps = TensorMapsOf<FIELDS<Stored>>;

DISTSCAN_KERNEL(WARPS* LANES, 1)
distscan_columns(const __grid_constant__ TensorMaps maps, Input x, Output y, Matrix matrix,
                 ColumnsWork work, int stage_bytes, int box_rows, const T* offset, T first,
                 bool has_first, Unit unit) {
  set_units<T>(unit);
  columns<Op, Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, DISTSCAN_ITEMS>, DISTSCAN_STAGES,
          DISTSCAN_REDUCERS, DISTSCAN_LOOK_AHEAD_WARPS, DISTSCAN_LOADERS, DISTSCAN_COLUMNS,
          DISTSCAN_PANEL, DISTSCAN_GROUP, DISTSCAN_READS, DISTSCAN_STAGED, DISTSCAN_EXCLUSIVE, X,
          Out>(x, y, matrix, work, Boxes{maps.of_field, box_rows}, stage_bytes,
               Start<T>{offset, first, has_first});
}

}  // namespace distscan
