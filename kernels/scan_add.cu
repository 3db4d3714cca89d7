// The kernels of strategy scan-add, for one operator and one set of types. The compiler is given
//   DISTSCAN_X, DISTSCAN_T, DISTSCAN_OUT   the types of the shard, the running value, the result
//   DISTSCAN_COMBINE                       the operator: an expression of a (earlier), b (later)
//   DISTSCAN_THREADS, DISTSCAN_ROWS, DISTSCAN_BLOCKS   the policy (backends/policy.py)
#include "add.cuh"
#include "operators.cuh"
#include "scan.cuh"

namespace distscan {

using X = DISTSCAN_X;
using T = DISTSCAN_T;
using Out = DISTSCAN_OUT;

struct Op {
  __device__ static T combine(T a, T b) { return DISTSCAN_COMBINE; }
};

// The wider side of a kernel moves 16 bytes per access, the other as many elements.
using ScanShape =
    Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, larger(16 / larger(sizeof(X), sizeof(T)), 1)>;
using AddShape =
    Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, larger(16 / larger(sizeof(T), sizeof(Out)), 1)>;

extern "C" __global__ void __launch_bounds__(DISTSCAN_THREADS, DISTSCAN_BLOCKS)
    distscan_scan(const X* x, T* y, Runs shard, T* totals, T* prefixes, unsigned* arrived,
                  T* total) {
  scan<Op, ScanShape>(x, y, shard, totals, prefixes, arrived, total);
}

extern "C" __global__ void __launch_bounds__(DISTSCAN_THREADS, DISTSCAN_BLOCKS)
    distscan_add(const T* y, Out* out, Runs shard, const T* prefixes, T offset, bool has_offset) {
  add<Op, AddShape>(y, out, shard, prefixes, offset, has_offset);
}

}  // namespace distscan
