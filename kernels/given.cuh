// What the compiler is given, by backends/cuda.py: one operator and one set of types.
//   DISTSCAN_X, DISTSCAN_T, DISTSCAN_OUT   the types of the shard, the running value, the result
//   DISTSCAN_COMBINE                       the operator: an expression of a (earlier), b (later)
//   DISTSCAN_COMMUTATIVE                   whether its operands may be exchanged
//   DISTSCAN_THREADS, DISTSCAN_ROWS, DISTSCAN_BLOCKS   the policy (backends/policy.py)
#pragma once

#include "operators.cuh"
#include "tile.cuh"

namespace distscan {

using X = DISTSCAN_X;
using T = DISTSCAN_T;
using Out = DISTSCAN_OUT;

struct Op {
  static constexpr bool COMMUTATIVE = DISTSCAN_COMMUTATIVE;
  __device__ static T combine(T a, T b) { return DISTSCAN_COMBINE; }
};

// The widest side of a kernel moves 16 bytes per access, the others as many elements.
template <class... Types>
using ScanShape = Shape<DISTSCAN_THREADS, DISTSCAN_ROWS, items_per_vector<Types...>()>;
// A reduction keeps nothing but totals: it has registers for twice the vectors in flight, unless
// their elements are widened.
using ReduceShape =
    Shape<DISTSCAN_THREADS, DISTSCAN_ROWS * (sizeof(X) < sizeof(T) ? 1 : 2), items_per_vector<X>()>;

}  // namespace distscan

#define DISTSCAN_KERNEL \
  extern "C" __global__ void __launch_bounds__(DISTSCAN_THREADS, DISTSCAN_BLOCKS)
