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

// The same in two levels, of up to 33 groups. A group is 32 tiles. The warp that looks ahead of a
// group's last tile also publishes the group's total. So a warp reads few totals at once: those of
// its group's tiles, and of the groups before. This counts where all blocks begin, and totals queue
// behind the tiles that are fetched. Where a scan is long, the second trip of totals costs more
// than it saves. The tree is that of LookAhead, and so are the bits.
// sum, all totals 1, cursor 32, before 32: up_to(70) reads the totals of group 1 and of tiles 64 to
// 69, returns 70, and leaves cursor 64, before 64. up_to(63) publishes 32 for group 1.
template <class Op, class T>
struct GroupLookAhead {
  int64 cursor = 0;  // a multiple of 32
  Prefix<T> before;  // the combination of all totals before tile `cursor`
  int64 groups = 0;  // the number of the total of group 0, behind those of all tiles

  template <class BeforeCursor>
  __device__ Prefix<T> up_to(int64 tile, const Totals& totals, unsigned epoch,
                             const BeforeCursor& before_cursor) {
    const int64 group = tile < 0 ? 0 : tile / LANES, first = group * LANES, next = cursor / LANES;
    const int left = tile < 0 ? 0 : static_cast<int>(tile - first);  // tiles of its group before it
    const int count = static_cast<int>(group - next);                // groups to read
    if (count > LANES) __trap();                                     // the policy prevents it

    // ---- 1. the group's total, if it ends here --------------------------------------------------
    if (left == LANES - 1) {
      T total[1];
      read(
          total, totals, epoch, [=](int) { return first + lane_index(); },
          [](int) { return true; });
      total[0] = warp_reduce<Op>(total[0]);
      if (lane_index() == 0) publish(totals, groups + group, total[0], epoch);
    }

    // ---- 2. the totals of tiles of this group, and of groups before it --------------------------
    T total[2];
    read(
        total, totals, epoch,
        [=](int i) { return lane_index() + (i == 0 ? first : groups + next); },
        [=](int i) { return lane_index() < (i == 0 ? left : count); });
    total[0] = warp_reduce<Op>(total[0], left);

    // ---- 3. all of them after `before` ----------------------------------------------------------
    before = before_cursor();
    for (int i = 0; i < count; ++i) before = join<Op>(before, broadcast(total[1], i));
    cursor = first;
    return left > 0 ? join<Op>(before, broadcast(total[0], 0)) : before;
  }
};

}  // namespace distscan
