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
  static constexpr int AT_ONCE = WORDS<T> > 2 ? 1 : 4;            // reads in flight

  enum Found : unsigned char { NOTHING, TOTAL, PREFIX };

  T value[SIZE];  // [parts][columns], the nearest part first
  Found found[SIZE];
};

// The combination of parts `oldest` to `newest` of a strip, whose words begin at `first` of totals
// and, where parts may have prefixes, at `prefix` (else -1); by the whole block, in the threads
// whose numbers are the columns'. What the columns' scans begin with is in `oldest`.
template <class Op, class T, int THREADS, int COLUMNS>
__device__ T look_back(const Published& published, unsigned launch, int64 column, int columns,
                       int64 first, int64 prefix, int64 oldest, int64 newest,
                       Window<T, THREADS, COLUMNS>& window) {
  using Window = distscan::Window<T, THREADS, COLUMNS>;
  const int64 parts = newest - oldest + 1;
  int64 room = Window::SIZE / columns;
  if (prefix >= 0 && published.window < room) room = published.window;
  const int count = static_cast<int>(parts < room ? parts : room);
  const bool closed = parts == count;
  const int entries = count * columns;
  for (int e = threadIdx.x; e < entries; e += THREADS) window.found[e] = Window::NOTHING;

  // ---- 1. read, until each column has a prefix and all the totals behind it --------------------
  int nearest = 0;  // part with a prefix, of this thread's column
  for (Patience patience;; patience.once_more(100)) {
    for (int from = threadIdx.x; from < entries; from += THREADS * Window::AT_ONCE) {
      T total[Window::AT_ONCE], up_to[Window::AT_ONCE];
      bool has_total[Window::AT_ONCE], has_prefix[Window::AT_ONCE];
#pragma unroll
      for (int u = 0; u < Window::AT_ONCE; ++u) {
        const int e = from + u * THREADS, part = e / columns;
        has_total[u] = has_prefix[u] = false;
        if (e >= entries || window.found[e] == Window::PREFIX) continue;
        const int64 at = (newest - part) * published.pitch + column + e % columns;
        has_total[u] = peek(published.totals, first + at, launch, total[u]);
        if (prefix >= 0) has_prefix[u] = peek(published.totals, prefix + at, launch, up_to[u]);
      }
#pragma unroll
      for (int u = 0; u < Window::AT_ONCE; ++u) {
        const int e = from + u * THREADS;
        const bool last = closed && e / columns == count - 1;
        if (has_prefix[u] || has_total[u]) {
          window.value[e] = has_prefix[u] ? up_to[u] : total[u];
          window.found[e] = has_prefix[u] || last ? Window::PREFIX : Window::TOTAL;
        }
      }
    }
    __syncthreads();
    bool enough = true;
    if (threadIdx.x < columns) {
      for (nearest = 0; nearest < count; ++nearest)
        if (window.found[nearest * columns + threadIdx.x] != Window::TOTAL) break;
      enough = nearest < count && window.found[nearest * columns + threadIdx.x] == Window::PREFIX;
    }
    if (__syncthreads_and(enough)) break;
  }

  // ---- 2. combine, from the earliest on ------------------------------------------------------
  T value{};
  if (threadIdx.x < columns) {
    value = window.value[nearest * columns + threadIdx.x];
    while (--nearest >= 0)
      value = Op::combine(value, window.value[nearest * columns + threadIdx.x]);
  }
  __syncthreads();
  return value;
}

// What comes before a tile in the scan of its first row, which is no head, by the whole block, in
// the threads whose numbers are the columns'; `total` is the tile's. Publishes what others need.
template <class Op, class T, int THREADS, int COLUMNS>
__device__ Seed<T> above(const Tile& tile, int rows, int columns, T total,
                         const Published& published, unsigned launch,
                         Window<T, THREADS, COLUMNS>& window) {
  const bool acts = threadIdx.x < columns;
  const int64 group = tile.index / published.group, first = group * published.group;
  const int64 column = tile.strip * columns;
  const bool last = tile.index == first + published.group - 1;  // of its group
  const bool fresh = tile.n - tile.position < rows;             // a scan begins below its first row
  const bool head = tile.position == 0;
  const int64 mine = published.pitch * tile.index + column + threadIdx.x;
  const int64 ours = published.pitch * group + column + threadIdx.x;
  // The tile with the head of the scan that the first row is of.
  const int64 top = (tile.begin - tile.position) / rows;

  // ---- 1. the tiles of the group ---------------------------------------------------------------
  if (acts && published.group > 1) publish(published.totals, mine, total, launch);
  Seed<T> near;
  if (!head && tile.index > first) {
    const int64 oldest = top > first ? top : first;
    near = {look_back<Op>(published, launch, column, columns, int64(0), int64(-1), oldest,
                          tile.index - 1, window),
            true};
  }
  const T group_total = fresh || head ? total : join<Op>(near, total).value;
  if (acts && last) publish(published.totals, published.groups + ours, group_total, launch);
  if (head || top >= first) return near;

  // ---- 2. the groups before --------------------------------------------------------------------
  const int64 top_group = top / published.group;
  const Seed<T> far{look_back<Op>(published, launch, column, columns, published.groups,
                                  published.prefixes, top_group, group - 1, window),
                    true};
  if (acts && last && !fresh)
    publish(published.totals, published.prefixes + ours, Op::combine(far.value, group_total),
            launch);
  return near.some ? Seed<T>{Op::combine(far.value, near.value), true} : far;
}

}  // namespace distscan
