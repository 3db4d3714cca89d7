// The kernel that reduces the columns of a matrix to a row of totals.
//   DISTSCAN_ITEMS     elements of a vector; they divide a row
//   DISTSCAN_COLUMNS   a power of 2: at least the columns of a strip
#include "columns/reduce.cuh"
#include "config.cuh"

namespace distscan {

using TensorMaps = TensorMapsOf<FIELDS<Stored>>;

DISTSCAN_KERNEL(DISTSCAN_THREADS + DISTSCAN_LOADERS * LANES, 1)
distscan_columns_reduce(const __grid_constant__ TensorMaps maps, Input x, Matrix matrix,
                        int stage_bytes, int box_rows, int64 runs, T* parts, unsigned* arrived,
                        T* total, Unit unit) {
  set_units<T>(unit);
  columns_reduce<Op, Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, DISTSCAN_ITEMS>, DISTSCAN_STAGES,
                 DISTSCAN_LOADERS, DISTSCAN_COLUMNS, X>(x, matrix, Boxes{maps.of_field, box_rows},
                                                        stage_bytes, runs, parts, arrived, total);
}

}  // namespace distscan
