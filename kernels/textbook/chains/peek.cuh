// A look at what another tile may have published.
#pragma once

#include "../../linear/shard.cuh"

namespace distscan {

// Whether total number i is there; if so, it goes to `total`.
template <class T>
__device__ bool peek(const Totals& totals, int64 i, unsigned epoch, T& total) {
  Words<T> words;
  bool all = true;
#pragma unroll
  for (int w = 0; w < WORDS<T>; ++w) {
    Word word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                 : "=l"(word)
                 : "l"(totals.words + w * totals.stride + i)
                 : "memory");
    all = all && epoch_of(word) == epoch;
    words.word[w] = static_cast<unsigned>(word);
  }
  if (all) total = words.value;
  return all;
}

// Where tiles publish the combination of all tiles up to their own, behind the totals.
template <class T>
__device__ Totals prefixes(const Totals& totals) {
  return {totals.words + WORDS<T> * totals.stride, totals.stride};
}

}  // namespace distscan
