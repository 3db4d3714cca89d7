// The look-ahead: one warp combines the totals of all tiles before its own.
//
//   level   a part is   its total travels by   who combines
//   device  one tile    global memory          a warp of every block, each for itself
#pragma once

#include "status_words.cuh"

namespace distscan {

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
