// Totals that travel between blocks, and from a block to the host, while both run.
//
// A value travels in status words of 8 bytes: 4 bytes of the value, and 4 of the launch's epoch. A
// word is written by one store and read by one load. So a reader that finds the epoch has the
// value, too: no fence is needed, and nothing is reset between launches (pipeline.cuh).
//
//   level   a part is   its total travels by   who combines
//   device  one tile    global memory          a warp of every block, each for itself
#pragma once

#include "deadline.cuh"
#include "warp_scan.cuh"

namespace distscan {

using Word = unsigned long long;

__device__ inline unsigned epoch_of(Word word) { return static_cast<unsigned>(word >> 32); }

// Totals 0, 1, ...: word w of total i is at words[w * stride + i], so that a warp which reads 32
// totals reads whole cache lines.
struct Totals {
  Word* words;  // [WORDS][stride]
  int64 stride;
};

__device__ inline void store_word(Word* at, Word word) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(word) : "memory");
}

// Publish total number i. Epoch 7, the float 1: 0x00000007'3f800000.
template <class T>
__device__ void publish(const Totals& totals, int64 i, T total, unsigned epoch) {
  Words<T> words;
  words.word[WORDS<T> - 1] = 0;
  words.value = total;
#pragma unroll
  for (int w = 0; w < WORDS<T>; ++w) {
    const Word word = static_cast<Word>(epoch) << 32 | words.word[w];
    store_word(totals.words + w * totals.stride + i, word);
  }
}

// Whether all words of a total are of this epoch.
template <int COUNT>
__device__ bool arrived(const Word (&word)[COUNT], unsigned epoch) {
  bool all = true;
#pragma unroll
  for (int w = 0; w < COUNT; ++w) all = all && epoch_of(word[w]) == epoch;
  return all;
}

// Wait for totals and read them, by a whole warp. `total[i]` becomes total number at(i), if this
// lane wants(i). Totals that have been read are not read again.
template <class T, int COUNT, class At, class Wants>
__device__ void read(T (&total)[COUNT], const Totals& totals, unsigned epoch, const At& at,
                     const Wants& wants) {
  Word word[COUNT][WORDS<T>] = {};
  for (Deadline deadline;;) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
      if (wants(i) && !arrived(word[i], epoch)) {
#pragma unroll
        for (int w = 0; w < WORDS<T>; ++w)
          asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                       : "=l"(word[i][w])
                       : "l"(totals.words + w * totals.stride + at(i))
                       : "memory");
      }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) all = all && (!wants(i) || arrived(word[i], epoch));
    if (__all_sync(EVERY_LANE, all)) break;
    deadline.check(200);  // polling at full rate holds up the words that it waits for
  }
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    Words<T> words;
#pragma unroll
    for (int w = 0; w < WORDS<T>; ++w) words.word[w] = static_cast<unsigned>(word[i][w]);
    total[i] = words.value;
  }
}

}  // namespace distscan
