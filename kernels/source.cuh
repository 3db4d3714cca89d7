// The source of a kernel that reduces a shard: where its elements are.
//   DISTSCAN_SOURCE           one of
//       ItemPointer           elements of one segment
//       FlaggedPointer        elements with flags of heads
//       KeyedBy<K>::Pointer   elements with keys of type K, a head being where the key changes
// The parameter `heads` of such a kernel has the flags or the keys.
#pragma once

#include "config.cuh"
#include "linear/keys.cuh"

namespace distscan {

template <class K>
struct KeyedBy {
  template <class X>
  using Pointer = KeyedPointer<X, K, REVERSE>;
};

using Source = DISTSCAN_SOURCE<X>;
using Total = ValueOf<Source, T>;  // of elements with heads, a Flagged<T>

}  // namespace distscan
