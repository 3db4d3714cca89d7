// Keys in memory: a segment begins where the keys of two neighbours differ.
//
// Whether it begins at the first element of a shard, in the order of the scan, is not known here:
// that depends on the last key of the shard before, which another rank has. So this element is no
// head, and the host compares the keys at the ends of shards.
#pragma once

#include "../base/status_words.cuh"
#include "flags.cuh"

namespace distscan {

// ---- Comparing -------------------------------------------------------------------------------

// Whether two keys differ: integers by their bits, floats by their value. -0.0 is equal to 0.0, and
// a NaN is equal to nothing.
template <class K>
__device__ bool differ(K a, K b) {
  if constexpr (same<K, half> || same<K, bfloat16>)
    return convert<float>(a) != convert<float>(b);
  else
    return a != b;
}

// The heads of a vector of keys after the key `before`: bit i is set where key i differs from the
// one before it. 7 before [7 7 8 8] -> 0b0100
template <class K, int ITEMS>
__device__ unsigned heads_of(K before, const Vector<K, ITEMS>& keys) {
  unsigned heads = 0;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const K key = item(keys, i);
    if (differ(before, key)) heads |= 1u << i;
    before = key;
  }
  return heads;
}

// ---- Elements in global memory, and beside each its key ----------------------------------------

template <class X, class K, bool REVERSE>
struct KeyedPointer {
  static constexpr bool HAS_HEADS = true;
  static constexpr int BEFORE = REVERSE ? 1 : -1;  // from a key to the one before it in the scan

  typename PointerTo<X>::Const x;
  const K* keys;
  const K* first;  // the key of the shard's first element in the order of the scan

  // The elements x [n] with their keys [n].
  __device__ static KeyedPointer of(const typename PointerTo<X>::Const& x,
                                    const unsigned char* bytes, int64 n) {
    const K* keys = reinterpret_cast<const K*>(bytes);
    return {x, keys, REVERSE ? keys + n - 1 : keys};
  }
  __device__ KeyedPointer operator+(int64 i) const { return {x + i, keys + i, first}; }
  __device__ KeyedPointer operator-(int64 i) const { return {x - i, keys - i, first}; }
};

template <class X, class K, bool REVERSE>
__device__ Headed<X> element(const KeyedPointer<X, K, REVERSE>& p, int64 i) {
  const K* key = p.keys + i;
  return {element(p.x, i), key != p.first && differ(key[p.BEFORE], *key)};
}

template <int ITEMS, class X, class K, bool REVERSE>
__device__ bool is_aligned(KeyedPointer<X, K, REVERSE> p) {
  return is_aligned<ITEMS>(p.x);
}

// One vector to a lane, by a whole warp. In the order of the scan, the lanes' vectors lie one
// after the other; a lane gets the key before its vector from the lane before it. Keys have an
// alignment of their own.
template <int ITEMS, class X, class K, bool REVERSE>
__device__ Vector<Headed<X>, ITEMS> load_aligned(KeyedPointer<X, K, REVERSE> p) {
  const auto items = load_aligned<ITEMS>(p.x);
  Vector<K, ITEMS> keys;
  if (is_aligned<ITEMS>(p.keys)) {
    keys = load_packed<ITEMS>(p.keys);
  } else {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) keys.item[i] = p.keys[i];
  }
  const K* begin = REVERSE ? p.keys + ITEMS - 1 : p.keys;  // in the order of the scan
  K outside{};
  if (lane_index() == 0) outside = begin[begin == p.first ? 0 : p.BEFORE];
  if constexpr (REVERSE) keys = flip(keys);
  const K inside = shuffle_up(item(keys, ITEMS - 1), 1);
  unsigned heads = heads_of(lane_index() == 0 ? outside : inside, keys);
  if (begin == p.first) heads &= ~1u;  // a NaN differs from itself
  if constexpr (REVERSE) heads = __brev(heads) >> (32 - ITEMS);
  return {items, heads};
}

// ---- For the host ------------------------------------------------------------------------------

// The keys at both ends of a shard, as they lie in memory.
template <class K>
struct Ends {
  K low, high;
};

// Publish the keys at the ends of x [n], by one thread of the grid. They follow the total.
template <class Total, class X, class K, bool REVERSE>
__device__ void publish_ends(KeyedPointer<X, K, REVERSE> p, int64 n, const Totals& total,
                             unsigned epoch) {
  if (blockIdx.x > 0 || threadIdx.x > 0) return;
  const Totals behind{total.words + WORDS<Total> * total.stride, total.stride};
  publish(behind, 0, Ends<K>{p.keys[0], p.keys[n - 1]}, epoch);
}
template <class Total, class Pointer>
__device__ void publish_ends(Pointer, int64, const Totals&, unsigned) {}

}  // namespace distscan
