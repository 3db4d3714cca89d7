// Flags of heads in memory: a byte each, which is true unless it is 0.
#pragma once

#include "../base/fields.cuh"
#include "flagged.cuh"

namespace distscan {

// 0x80 in each byte of a word of flags that is true: an addition carries the lower bits of a byte
// to its highest one. 0x02000001 -> 0x80000080
__device__ inline unsigned truths(unsigned word) {
  const unsigned carried = (word & 0x7f7f7f7fu) + 0x7f7f7f7fu;
  return (carried | word) & 0x80808080u;
}

// The bits of ITEMS flags. [1 0 0 2] -> 0b1001
template <int ITEMS>
__device__ unsigned bits(const Vector<unsigned char, ITEMS>& flags) {
  constexpr int WORDS = (ITEMS + 3) / 4;
  using Word = typename Choose<ITEMS == 2, unsigned short, unsigned>::type;
  if constexpr (ITEMS == 1) {
    return truths(flags.item[0]) >> 7;
  } else {
    static_assert(ITEMS == 2 || ITEMS % 4 == 0, "flags fill words");
    const auto* words = reinterpret_cast<const Word*>(&flags);
    unsigned found[(WORDS + 1) / 2] = {};  // 0x80 times the bits of two words
#pragma unroll
    for (int w = 0; w < WORDS; ++w)  // dot products: they keep another unit of the chip busy
      found[w / 2] = __dp4a(truths(words[w]), w % 2 ? 0x80402010u : 0x08040201u, found[w / 2]);
    unsigned all = found[0];
#pragma unroll
    for (int w = 1; w < (WORDS + 1) / 2; ++w) all += found[w] << 8 * w;
    return all >> 7;
  }
}

// Elements in global memory.
template <class X>
using ItemPointer = typename PointerTo<X>::Const;

// Elements in global memory, and beside them a flag for each that is a head.
template <class X>
struct FlaggedPointer {
  static constexpr bool HAS_HEADS = true;

  typename PointerTo<X>::Const x;
  const unsigned char* heads;

  __device__ static FlaggedPointer of(const typename PointerTo<X>::Const& x,
                                      const unsigned char* heads, int64) {
    return {x, heads};
  }
  __device__ FlaggedPointer operator+(int64 i) const { return {x + i, heads + i}; }
  __device__ FlaggedPointer operator-(int64 i) const { return {x - i, heads - i}; }
};

template <class X>
__device__ Headed<X> element(const FlaggedPointer<X>& p, int64 i) {
  return {element(p.x, i), p.heads[i] != 0};
}

// The elements x [n], with their flags or keys where the source has them.
template <class Source, class Input>
__device__ Source pointer_of(Input x, const unsigned char* heads, int64 n) {
  if constexpr (has_heads<Source>)
    return Source::of(x, heads, n);
  else
    return x;
}

template <int ITEMS, class X>
__device__ bool is_aligned(FlaggedPointer<X> p) {
  return is_aligned<ITEMS>(p.x);
}

// Flags have an alignment of their own.
template <int ITEMS, class X>
__device__ Vector<Headed<X>, ITEMS> load_aligned(FlaggedPointer<X> p) {
  Vector<unsigned char, ITEMS> flags;
  if (is_aligned<ITEMS>(p.heads)) {
    flags = load_aligned<ITEMS>(p.heads);
  } else {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) flags.item[i] = p.heads[i];
  }
  return {load_aligned<ITEMS>(p.x), bits(flags)};
}

}  // namespace distscan
