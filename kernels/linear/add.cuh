// The final pass of scan-add: combine into every element all that comes before the shard.
#pragma once

#include "../base/warp_scan.cuh"

namespace distscan {

// Launch: a thread per vector of the body and one more block; out may be y. The unaligned head,
// less than a vector, lies first in memory; out + unaligned_head is aligned for vectors unless out
// cannot be. An EXCLUSIVE scan's first element is the offset, which there then must be; y has
// nothing there.
template <class Op, class Shape, bool EXCLUSIVE, class T, class Out>
__device__ void add(const T* y /* [n] */, Out* out /* [n] */, int64 n, int64 unaligned_head,
                    Prefix<T> offset) {
  constexpr int ITEMS = Shape::ITEMS;
  const int64 first = !EXCLUSIVE ? -1 : Shape::REVERSE ? n - 1 : 0;
  const auto one = [=](int64 i, T item) {
    if (EXCLUSIVE && i == first) return convert<Out>(offset.value);
    return convert<Out>(offset.some ? Op::combine(offset.value, item) : item);
  };
  const int64 thread = static_cast<int64>(blockIdx.x) * Shape::THREADS + threadIdx.x;
  const int64 at = unaligned_head + thread * ITEMS;

  if (thread < unaligned_head) out[thread] = one(thread, y[thread]);
  if (at + ITEMS <= n && is_aligned<ITEMS>(y + at) && is_aligned<ITEMS>(out + at)) {
    const auto from = *reinterpret_cast<const Vector<T, ITEMS>*>(y + at);
    Vector<Out, ITEMS> to;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) to.item[i] = one(at + i, from.item[i]);
    *reinterpret_cast<Vector<Out, ITEMS>*>(out + at) = to;
  } else {
    for (int64 i = at; i < at + ITEMS && i < n; ++i) out[i] = one(i, y[i]);
  }
}

}  // namespace distscan
