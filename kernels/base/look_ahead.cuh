// The look-ahead: one warp combines the totals of all tiles before its own.
//
//   level   a part is   its total travels by   who combines
//   device  one tile    global memory          a warp of every block, each for itself
#pragma once

#include "status_words.cuh"

namespace distscan {

// One warp reads totals row by row: a row is 32 tiles, one to a lane. Each row is combined in a
// fixed tree, and the rows in order. So a tile's prefix has the same bits on every run.
// sum, all totals 1, cursor 32, before 32: up_to(70) reads tiles 32 to 69, returns 70, and leaves
// cursor 64, before 64
template <class Op, class T, int WANTED = 8>
struct LookAhead {
  // Rows that are read at once: WANTED, if there are registers for them.
  static constexpr int MOST = WORDS<T> > 8      ? 1
                              : WORDS<T> > 4    ? 2
                              : WORDS<T> > 2    ? 3
                              : is_light<Op, T> ? 8
                                                : 4;
  static constexpr int ROWS = WANTED < MOST ? WANTED : MOST;

  int64 cursor = 0;  // a multiple of 32
  Prefix<T> before;  // the combination of all totals before tile `cursor`

  // The combination of all before `tile`, by a whole warp, in all lanes. `before_cursor` returns
  // all before tile `cursor`. It is called once, as late as possible, since it may wait.
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

      // ---- 2. the rows after `before`; complete rows advance the cursor ------------------------
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
