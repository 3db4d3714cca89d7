// The kernel that combines the offset of all earlier ranks into a scanned shard.
#include "config.cuh"
#include "linear/add.cuh"

namespace distscan {

DISTSCAN_KERNEL(DISTSCAN_THREADS, 1)
distscan_add(const T* y, Out* out, int64 n, int64 unaligned_head, T offset, bool has_offset) {
  add<Op, Shape<DISTSCAN_THREADS, 1, items_per_vector<T, Out>(), REVERSE>, EXCLUSIVE>(
      y, out, n, unaligned_head, Prefix<T>{offset, has_offset});
}

}  // namespace distscan
