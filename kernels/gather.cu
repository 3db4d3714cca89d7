// The kernel that copies rows of a matrix to one place, by their indices. Its macros:
//   DISTSCAN_X        the type of the words that a thread moves, up to 16 bytes
//   DISTSCAN_INDEX    the type of the indices
//   DISTSCAN_THREADS, DISTSCAN_AT_ONCE   the policy (cuda/compaction.py)
#include "linear/gather.cuh"

namespace distscan {

extern "C" __global__ void __launch_bounds__(DISTSCAN_THREADS)
    distscan_gather(const DISTSCAN_X* x, const DISTSCAN_INDEX* index, DISTSCAN_X* y, int64 count,
                    Division row) {
  gather<DISTSCAN_AT_ONCE>(x, index, y, count, row);
}

}  // namespace distscan
