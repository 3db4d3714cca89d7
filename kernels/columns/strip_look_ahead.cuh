// The device level of a scan down columns: the totals of the tiles above.
//
// Every tile publishes a row of totals, and the last of each GROUP tiles the combination of all of
// them. One warp of each block reads the groups above and the tiles of its own group, a lane per
// column, and of a narrow strip PARTS tiles at once. The tiles of a group are combined in a fixed
// tree, and groups one by one: so the same tile always gets the same bits.
//
//   COLUMNS 8, GROUP 16:
//             | lanes  0 to  7 | lanes  8 to 15 | lanes 16 to 23 | lanes 24 to 31 |
//   of a group: tiles  0 to  3 | tiles  4 to  7 | tiles  8 to 11 | tiles 12 to 15 |
#pragma once

#include "../base/status_words.cuh"
#include "slices.cuh"

namespace distscan {

// The totals that a warp has combined of one block of columns of a strip, up to some tile.
template <class T, int ACROSS>
struct StripBeforeCursor {
  T whole[ACROSS];  // of all groups that are whole
  T own[LANES];     // of this lane's part of the group that is not
};

// One warp's look-ahead for up to 32 columns of a strip that has up to COLUMNS, a power of 2.
template <class Op, class T, int COLUMNS, int GROUP, int READS>
struct StripLookAhead {
  static constexpr int ACROSS = COLUMNS < LANES ? COLUMNS : LANES;
  static constexpr int PARTS = LANES / ACROSS < GROUP ? LANES / ACROSS : GROUP;
  static constexpr int EACH = GROUP / PARTS;  // tiles of a part
  // Read at once, as many as there are registers for.
  static constexpr int AT_ONCE = is_light<Op, T> || READS < 8 ? READS : READS / 2;
  static_assert(GROUP % PARTS == 0, "parts have as many tiles each");
  using BeforeCursor = StripBeforeCursor<T, ACROSS>;

  Totals totals;  // of the strip: [tiles, then groups][COLUMNS]
  int64 tiles;
  unsigned epoch;

  // The combination of the totals of tiles [from, tile), if there are any, of column `number` of
  // the strip: in lane l of column l % ACROSS, whole in the lanes below ACROSS; nothing of a
  // column that does not exist. `before_cursor` is what comes before tile `cursor`, when `ready`
  // returns, which is called late; then up to `tile`.
  template <class Ready>
  __device__ T up_to(int64 cursor, int64 from, int64 tile, int number, bool exists,
                     const Ready& ready, BeforeCursor& before_cursor) const {
    const int64 group = tile / GROUP, begin = group * GROUP + part() * EACH;
    const int64 start = from > cursor ? from : cursor, first = start / GROUP;
    Prefix<T> whole, own;
    whole.some = exists && from < cursor / GROUP * GROUP;
    own.some =
        exists && (from > begin ? from : begin) < (cursor < begin + EACH ? cursor : begin + EACH);
    const auto ask = [&] {
      ready();
      whole.value = before_cursor.whole[column()];
      own.value = before_cursor.own[lane_index()];
    };
    take(first < group ? first : group, group, start, tile, number, exists, ask, whole, own);
    __syncwarp();
    if (lane_index() < ACROSS) before_cursor.whole[column()] = whole.value;
    before_cursor.own[lane_index()] = own.value;
    join_parts(own);
    return own.some ? join<Op>(whole, own.value).value : whole.value;
  }

  // Publish the combination of tiles [from, tile], which end the group of tile `tile`.
  __device__ void publish_group(int64 from, int64 tile, int number, bool exists) const {
    const int64 group = tile / GROUP;
    Prefix<T> none, own;
    take(group, group, from, tile + 1, number, exists, [] {}, none, own);
    join_parts(own);
    if (exists && lane_index() < ACROSS)
      publish(totals, (tiles + group) * COLUMNS + number, own.value, epoch);
  }

 private:
  __device__ static int part() { return lane_index() / ACROSS; }
  __device__ static int column() { return lane_index() % ACROSS; }

  // Join groups [first, group) to `whole`, and to `own` those of tiles [from, to) that are in this
  // lane's part of group `group`. `ask` is called once, when the first of them have been read.
  template <class Ask>
  __device__ void take(int64 first, int64 group, int64 from, int64 to, int number, bool exists,
                       const Ask& ask, Prefix<T>& whole, Prefix<T>& own) const {
    const int64 begin = group * GROUP + part() * EACH;  // of the part, which takes [low, high)
    const int low = of_part(from - begin), high = of_part(to - begin);
    const int groups = static_cast<int>(group - first), count = exists ? groups + high - low : 0;
    const int most = __reduce_max_sync(EVERY_LANE, count);  // of any part
    const int64 of_groups = (tiles + first) * COLUMNS + number;
    const int64 of_tiles = (begin + low - groups) * COLUMNS + number;

    for (int done = 0; done == 0 || done < most; done += AT_ONCE) {
      T total[AT_ONCE];
      read(
          total, totals, epoch,
          [&](int i) { return (done + i < groups ? of_groups : of_tiles) + (done + i) * COLUMNS; },
          [&](int i) { return done + i < count; });
      if (done == 0) ask();
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        if (done + i >= count) break;
        if (done + i < groups)
          whole = join<Op>(whole, total[i]);
        else
          own = join<Op>(own, total[i]);
      }
    }
  }

  // The tiles of a part that come before its tile number `tile`.
  __device__ static int of_part(int64 tile) {
    return tile < 0 ? 0 : tile < EACH ? static_cast<int>(tile) : EACH;
  }

  // The parts of a group joined: in the lanes below ACROSS.
  __device__ static void join_parts(Prefix<T>& own) {
#pragma unroll
    for (int distance = 1; distance < PARTS; distance *= 2) {
      const unsigned some = __ballot_sync(EVERY_LANE, own.some);
      const T later = shuffle_down(own.value, distance * ACROSS);
      if (part() + distance < PARTS && (some >> (lane_index() + distance * ACROSS) & 1))
        own = join<Op>(own, later);
    }
  }
};

}  // namespace distscan
