// The device level of a scan down columns: what the tiles above hand on.
//
// Every tile publishes a row of totals. One warp of each block reads those of the tiles above, a
// lane per column, and of a narrow strip PARTS tiles at once. 32 tiles are a group, and are
// combined in a fixed tree; groups are combined one by one: so the same tile always gets the same
// bits.
//
//   COLUMNS 8:  | lanes  0 to  7 | lanes  8 to 15 | lanes 16 to 23 | lanes 24 to 31 |
//   of a group: | tiles  0 to  7 | tiles  8 to 15 | tiles 16 to 23 | tiles 24 to 31 |
#pragma once

#include "slices.cuh"

namespace distscan {

// The words of the totals of all tiles: the totals of tile t are numbers [t * pitch, ...).
struct StripTotals {
  Totals totals;  // [tiles of a strip][pitch]
  int64 pitch;    // columns of all strips together
};

// What a warp knows of one block of columns of a strip, up to some tile.
template <class T, int ACROSS>
struct StripKnown {
  T whole[ACROSS];  // of all groups that are whole
  T own[LANES];     // of this lane's part of the group that is not
};

// What one warp gathers of up to 32 columns of a strip that has up to COLUMNS, a power of 2.
template <class Op, class T, int COLUMNS, int READS>
struct StripGathered {
  static constexpr int ACROSS = COLUMNS < LANES ? COLUMNS : LANES;
  static constexpr int PARTS = LANES / ACROSS, EACH = LANES / PARTS;  // tiles of a part
  // Read at once, as many as there are registers for.
  static constexpr int AT_ONCE = is_light<Op, T> || READS < 8 ? READS : READS / 2;
  using Known = StripKnown<T, ACROSS>;

  int64 base;  // all before this tile is known already
  int64 from;  // the earliest tile of this scan
  int64 tile;  // the one whose seed is asked for

  // The combination of the totals of tiles [from, tile), if there are any, of the column that has
  // number `number` in tile 0's totals: in lane l of column l % ACROSS, whole in the lanes below
  // ACROSS. `known` gives what is known up to tile `base`; it is asked late. What is known up to
  // `tile` goes to `passed`.
  template <class Ask>
  __device__ T up_to(int64 number, bool exists, const StripTotals& published, unsigned launch,
                     const Ask& known, Known& passed) const {
    // Tiles are counted from the group on that is not whole.
    const int64 group = base / LANES * LANES;
    const int part = lane_index() / ACROSS, column = lane_index() % ACROSS, begin = part * EACH;
    const int start = static_cast<int>((from > base ? from : base) - group);
    const int end = static_cast<int>(tile - group);
    const int count = exists && end > start ? end - start : 0;
    const Totals totals{published.totals.words + group * published.pitch + number,
                        published.totals.stride};
    Seed<T> whole, own;
    whole.some = from < group;
    own.some = (from > group + begin ? from - group : begin) <
               (base - group < begin + EACH ? base - group : begin + EACH);

    int first = 0;  // tile of the group at hand
    int step = PARTS == 1 ? static_cast<int>(base - group) / AT_ONCE : 0;
    for (bool asked = false;; ++step) {
      // ---- 1. the tiles of this lane's part, of as many groups as are read at once -------------
      const int low = first + begin + step * AT_ONCE % EACH;
      const auto at = [&](int i) { return low + i / EACH * LANES + i % EACH; };
      const auto wants = [&](int i) { return static_cast<unsigned>(at(i) - start) < count; };
      T total[AT_ONCE];
      read(total, totals, launch, [&](int i) { return at(i) * published.pitch; }, wants);
      if (!asked) {
        const Known& earlier = known();
        whole.value = earlier.whole[column];
        own.value = earlier.own[lane_index()];
        asked = true;
      }

      // ---- 2. group by group: the parts, then behind all groups before --------------------------
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        if (wants(i)) own = join<Op>(own, total[i]);
        if ((i + 1) % EACH > 0 && (i + 1 < AT_ONCE || (step + 1) * AT_ONCE % EACH > 0)) continue;
        const Seed<T> up_to_here = behind_groups(whole, own);
        first += LANES;
        if (first > end) {
          if (part == 0) passed.whole[column] = whole.value;
          passed.own[lane_index()] = own.value;
          return up_to_here.value;
        }
        whole = up_to_here;
        own.some = false;
      }
    }
  }

 private:
  // The parts of a group joined, behind all groups before it.
  __device__ static Seed<T> behind_groups(Seed<T> whole, Seed<T> own) {
    const int part = lane_index() / ACROSS;
#pragma unroll
    for (int distance = 1; distance < PARTS; distance *= 2) {
      const unsigned some = __ballot_sync(EVERY_LANE, own.some);
      const T later = shuffle_down(own.value, distance * ACROSS);
      if (part + distance < PARTS && (some >> (lane_index() + distance * ACROSS) & 1))
        own = join<Op>(own, later);
    }
    return own.some ? join<Op>(whole, own.value) : whole;
  }
};

}  // namespace distscan
