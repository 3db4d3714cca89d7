// The device level of a scan down columns: what the tiles above hand on.
//
// Tiles of a strip go in groups. A tile publishes its total, the last of a group the group's total
// as soon as it has those of the group, and the combination of all up to its end once it knows it:
//
//   tile      0 1 2 3 | 4 5 6 7 | 8 9 a b | c d e
//   group     total     total     total
//             prefix    prefix                     tile e: prefix of 7, group 8 to b, tiles c, d
//
// A tile reads the tiles of its own group, and back over groups as far as the nearest prefix. It
// combines them from the earliest on, one by one, as those who made the prefix did: so the result
// has the same bits wherever that was found. Columns are apart: each may find another one.
//
// The part that holds the scan's head ends the way back: its total is the prefix. Which one that
// is follows from the rows' numbers.
#pragma once

#include "chains/peek.cuh"
#include "slices.cuh"

namespace distscan {

// The words of the columns of tiles and of groups, `pitch` to a row of tiles.
struct Published {
  Totals totals;  // [tiles of a strip, if group > 1][pitch], then [groups][pitch] twice
  int64 pitch;
  int64 groups;    // where the groups' totals begin, in words of totals
  int64 prefixes;  // where their prefixes do
  int64 group;     // tiles of a group
  int64 window;    // parts that are looked at, if there is room
};

template <class T, int THREADS, int COLUMNS>
struct Window {
  static constexpr int SIZE = larger(8192 / sizeof(T), COLUMNS);  // entries

  enum Found : unsigned char { NOTHING, TOTAL, PREFIX };

  T value[SIZE];  // [parts][columns], the nearest part first
  Found found[SIZE];
  T sum[COLUMNS];   // of the tile; of its group up to it; of all up to it
  T seed[COLUMNS];  // what comes before the tile
};

// The combination of parts `oldest` to `newest` of a strip, whose words begin at `first` of totals
// and, where parts may have prefixes, at `prefix` (else -1); by the whole block, in the threads
// whose numbers are the columns'. What the columns' scans begin with is in `oldest`.
template <class Op, class T, int THREADS, int COLUMNS>
__device__ T look_back(const Published& published, unsigned launch, int64 column, int columns,
                       int64 first, int64 prefix, int64 oldest, int64 newest,
                       Window<T, THREADS, COLUMNS>& window) {
  using Window = distscan::Window<T, THREADS, COLUMNS>;
  int room = Window::SIZE / columns;
  if (prefix >= 0 && published.window < room) room = static_cast<int>(published.window);
  const int count = newest - oldest < room ? static_cast<int>(newest - oldest) + 1 : room;
  const bool closed = newest - oldest < count;
  const int entries = count * columns, thread = threadIdx.x;
  for (int e = thread; e < entries; e += THREADS) window.found[e] = Window::NOTHING;

  // ---- 1. read, until each column has a prefix and all the totals behind it --------------------
  int nearest = 0;  // part with a prefix, of this thread's column
  for (Patience patience;; patience.once_more(100)) {
#pragma unroll 1
    for (int e = thread; e < entries; e += THREADS) {
      if (window.found[e] == Window::PREFIX) continue;
      const int part = e / columns;
      const int64 at = (newest - part) * published.pitch + column + e % columns;
      T total, up_to;
      const bool has_total = peek(published.totals, first + at, launch, total);
      const bool has_prefix = prefix >= 0 && peek(published.totals, prefix + at, launch, up_to);
      if (!has_prefix && !has_total) continue;
      window.value[e] = has_prefix ? up_to : total;
      const bool ends = has_prefix || (closed && part == count - 1);
      window.found[e] = ends ? Window::PREFIX : Window::TOTAL;
    }
    __syncthreads();
    bool enough = true;
    if (thread < columns) {
      nearest = 0;
      while (nearest < count - 1 && window.found[nearest * columns + thread] == Window::TOTAL)
        ++nearest;
      enough = window.found[nearest * columns + thread] == Window::PREFIX;
    }
    if (__syncthreads_and(enough)) break;
  }

  // ---- 2. combine, from the earliest on ------------------------------------------------------
  T value{};
  if (thread < columns) {
    value = window.value[nearest * columns + thread];
    while (--nearest >= 0) value = Op::combine(value, window.value[nearest * columns + thread]);
  }
  __syncthreads();
  return value;
}

// What comes before a tile in the scan of its first row goes to window.seed, unless that row is a
// head; by the whole block. `total` is the tile's, in the threads whose numbers are the columns'.
// Publishes what others need.
template <class Op, class T, int THREADS, int COLUMNS>
__device__ void look_above(const Tile& tile, int rows, int columns, T total,
                           const Published& published, unsigned launch,
                           Window<T, THREADS, COLUMNS>& window) {
  const int thread = threadIdx.x;
  const bool acts = thread < columns;
  if (acts) {
    window.sum[thread] = total;
    if (published.group > 1)
      publish(published.totals, published.pitch * tile.index + tile.strip * columns + thread, total,
              launch);
  }

  // ---- level 0: the tiles of the group; level 1: the groups before it -------------------------
  bool some = false;  // whether anything of the group comes before
#pragma unroll 1
  for (int level = 0; level < 2; ++level) {
    const int64 group = tile.index / published.group, first = group * published.group;
    // The tile with the head of the scan that the first row is of.
    const int64 top = (tile.begin - tile.position) / rows;
    const int64 from = top > first ? top : first;
    const int64 oldest = level == 0 ? from : top / published.group;
    const int64 newest = (level == 0 ? tile.index : group) - 1;
    const bool looks = tile.position > 0 && oldest <= newest;
    T value{};
    if (looks)
      value = look_back<Op>(published, launch, tile.strip * columns, columns,
                            level == 0 ? 0 : published.groups, level == 0 ? -1 : published.prefixes,
                            oldest, newest, window);
    if (acts) {
      const bool joins = looks && tile.position > 0 && tile.n - tile.position >= rows;  // no head
      if (looks) window.seed[thread] = some ? Op::combine(value, window.seed[thread]) : value;
      if (joins) window.sum[thread] = Op::combine(value, window.sum[thread]);
      if (tile.index == first + published.group - 1 && (level == 0 || joins))
        publish(published.totals,
                (level == 0 ? published.groups : published.prefixes) + published.pitch * group +
                    tile.strip * columns + thread,
                window.sum[thread], launch);
    }
    some = some || looks;
  }
}

}  // namespace distscan
