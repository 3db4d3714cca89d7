// Totals that travel between blocks, and from a block to the host, while both run.
//
// A value goes in words of 8 bytes: 4 bytes of the value and the 4 of the launch's epoch. A word
// is written and read whole, so who finds the number has the value too: no fence, and nothing to
// reset between launches.
//
//   level   a part is   its total travels by   who combines
//   device  one tile    global memory          a warp of every block, each for itself
#pragma once

#include "warp_scan.cuh"

namespace distscan {

using Word = unsigned long long;

__device__ inline unsigned epoch_of(Word word) { return static_cast<unsigned>(word >> 32); }

// Totals 0, 1, ...: word w of total i is at words[w * stride + i], so that a warp which reads 32
// totals reads whole lines.
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

__device__ inline unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Ends a kernel that waits for what will never come.
struct Patience {
  static constexpr unsigned long long LIMIT = 20'000'000'000;
  unsigned long long begin = 0;
  unsigned rounds = 0;

  __device__ void once_more(int pause) {
    if (++rounds % 64 == 0) {
      if (begin == 0) begin = nanoseconds();
      if (nanoseconds() - begin > LIMIT) __trap();  // cudaErrorLaunchFailure
    }
    if (pause > 0) __nanosleep(pause);
  }
};

// Read totals, each as soon as it is there, by a whole warp: `total[i]` is number `at(i)`, if this
// lane `wants(i)`.
template <class T, int COUNT, class At, class Wants>
__device__ void read(T (&total)[COUNT], const Totals& totals, unsigned epoch, const At& at,
                     const Wants& wants) {
  Word word[COUNT][WORDS<T>] = {};
  for (Patience patience;;) {
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
    patience.once_more(200);  // polling at full rate holds up the words that it waits for
  }
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    Words<T> words;
#pragma unroll
    for (int w = 0; w < WORDS<T>; ++w) words.word[w] = static_cast<unsigned>(word[i][w]);
    total[i] = words.value;
  }
}

// What one warp gathers of the tiles' totals, row by row: a row is 32 tiles, one to a lane, and is
// combined in a fixed tree; so the same tile always gets the same bits.
template <class Op, class T, int WANTED = 9>
struct LookAhead {
  // Read at once: as many as are wanted and there are registers for.
  static constexpr int MOST = WORDS<T> > 4 ? 2 : WORDS<T> > 2 ? 3 : is_light<Op, T> ? 9 : 4;
  static constexpr int ROWS = WANTED < MOST ? WANTED : MOST;

  int64 cursor = 0;  // a multiple of 32
  Prefix<T> before;  // all that comes before tile `cursor`

  // The combination of all before `tile`, by a whole warp, in all lanes. `before_cursor` gives all
  // before tile `cursor`; it is called once, as late as possible: other work hides the wait.
  template <class BeforeCursor>
  __device__ Prefix<T> up_to(int64 tile, const Totals& totals, unsigned epoch,
                             const BeforeCursor& before_cursor) {
    for (bool asked = false;; asked = true) {
      const bool last = tile - cursor < LANES * LANES;
      const int count = last ? static_cast<int>(tile - cursor) : LANES * LANES;

      // ---- 1. the rows' totals, that of row r to lane r ---------------------------------------
      T row_total{};
      for (int begin = 0; begin * LANES < count; begin += ROWS) {
        T total[ROWS];
        const int64 first = cursor + begin * LANES;
        const int left = count - begin * LANES;
        read(
            total, totals, epoch, [=](int r) { return first + r * LANES + lane_index(); },
            [=](int r) { return r * LANES + lane_index() < left; });
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
          total[r] = warp_reduce<Op>(total[r], count - (begin + r) * LANES);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          total[r] = broadcast(total[r], 0);
          if (lane_index() == begin + r) row_total = total[r];
        }
      }

      // ---- 2. behind all before the cursor, which whole rows move on --------
      if (!asked) before = before_cursor();
      Prefix<T> all = before;
      for (int row = 0; row * LANES < count; ++row) {
        all = join<Op>(all, broadcast(row_total, row));
        if (count - row * LANES >= LANES) before = all;
      }
      cursor += count / LANES * LANES;
      if (last) return all;
    }
  }
};

}  // namespace distscan
