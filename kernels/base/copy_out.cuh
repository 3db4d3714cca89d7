// Copies from shared to global memory by one warp.
#pragma once

#include "fetch.cuh"

namespace distscan {

// Copy `count` elements from shared to global memory, by one warp. If both addresses are equal
// modulo 16 bytes, most elements move in vectors. Those before the first boundary of 16 bytes, and
// those after the last one, move one by one.
// float, both 8 bytes after a boundary, count 8: elements 0 and 1, the vector 2 to 5, then 6 and 7
template <class E>
__device__ void copy_out(const E* from /* [count] */, E* to /* [count] */, int count) {
  constexpr int EACH = larger(16 / sizeof(E), 1);
  using Moved = Storage<E, EACH>;
  const int short_of = (16 - phase(from)) % 16;
  int before = 0, vectors = 0;
  if (phase(from) == phase(to) && short_of % sizeof(E) == 0 && sizeof(E) <= 16) {
    before = short_of / static_cast<int>(sizeof(E));
    if (before > count) before = count;
    vectors = (count - before) / EACH;
  }
#pragma unroll 4
  for (int i = lane_index(); i < vectors; i += LANES)
    reinterpret_cast<Moved*>(to + before)[i] = reinterpret_cast<const Moved*>(from + before)[i];
  if (lane_index() < before) to[lane_index()] = from[lane_index()];
#pragma unroll 4
  for (int i = before + vectors * EACH + lane_index(); i < count; i += LANES) to[i] = from[i];
}

}  // namespace distscan
