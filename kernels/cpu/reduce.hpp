// The reduction of a run of elements, to the same bits as the total of its scan.
#pragma once

#include "job.hpp"
#include "segments.hpp"
#include "state.hpp"

namespace distscan {

// Combine `count` whole vectors into a total. x has the elements of the first one; the others lie
// above, or below if `reverse`.
template <class Op, class X>
INLINE void reduce_vectors(const X* x, int64 count, bool reverse, Value<typename Op::E>& total) {
  using E = typename Op::E;
  const int64 step = reverse ? -ELEMENTS<E> : ELEMENTS<E>;
  if constexpr (Op::FREE) {  // a total for each lane
    Vector<E> lanes;
    UNROLL
    for (auto& part : lanes.part) part = identity<Op>();
    for (; count > 0; --count, x += step) {
      prefetch(x, reverse);
      const Vector<E> v = load_as<E>(x);
      UNROLL
      for (int k = 0; k < PARTS; ++k) lanes.part[k] = Op::combine(lanes.part[k], v.part[k]);
    }
    vector_scan<Op>(lanes);
    total = join<Op>(total, {last_of<Op>(lanes, ELEMENTS<E>), true});
  } else {
    for (; count > 0; --count, x += step) {
      prefetch(x, reverse);
      Vector<E> v = load_as<E>(x);
      if (reverse) v = mirrored<E>(v);
      vector_scan<Op>(v);
      total = join<Op>(total, {last_of<Op>(v, ELEMENTS<E>), true});
    }
  }
}

constexpr int PLAIN_TILE = 2048;  // bytes: they stay in the L1 cache for the second look

// The same of floats by the operator Plain, lane by lane. Returns false, and leaves the total,
// where the order of elements counts: there is a NaN, or the result is 0.0 or -0.0.
template <class Op, class E = typename Op::E>
INLINE bool reduce_plain(const E* x, int64 count, bool reverse, Value<E>& total) {
  const auto none = identity<Op>();
  const E* const lowest = reverse ? x - (count - 1) * ELEMENTS<E> : x;
  if (!has_no_nan(lowest, count * ELEMENTS<E>, none, none)) return false;
  Value<E> plain = {none, false};
  reduce_vectors<typename Op::Plain>(x, count, reverse, plain);
  if (plain.value[0] == 0) return false;
  total = join<Op>(total, plain);
  return true;
}

// Combine elements [low, high) of a row x [n] into a total.
template <class Op, class X>
INLINE void reduce_elements(const X* x, int64 n, int64 low, int64 high, bool reverse,
                            Value<typename Op::E>& total) {
  using E = typename Op::E;
  constexpr int N = ELEMENTS<E>;
  const int64 whole = (high - low) / N, rest = (high - low) % N;
  if (whole) {
    const X* const first = x + (reverse ? n - low - N : low);
    bool done = false;
    if constexpr (HAS_PLAIN<Op, X>) done = reduce_plain<Op>(first, whole, reverse, total);
    if (!done) reduce_vectors<Op>(first, whole, reverse, total);
  }
  if (rest) {
    Vector<E> v =
        load_part<E>(x + (reverse ? n - high : high - rest), int(rest), reverse, Op::IDENTITY);
    if (reverse) v = mirrored<E>(v);
    vector_scan<Op>(v);
    total = join<Op>(total, {last_of<Op>(v, rest), true});
  }
}

// The total of elements [low, high) of a row x [n]; with segments, from the last head on.
template <class Op, class X>
NOINLINE State<typename Op::E> reduce_run(const X* x, int64 n, int64 low, int64 high,
                                          const Job& job) {
  using E = typename Op::E;
  const bool reverse = job.reverse;
  State<E> state = start_after<Op>({identity<Op>(), false});
  const int64 begin = low;
  if (job.heads) low = reduce_to_last_head<Op>(x, n, low, high, job, state);
  if constexpr (Op::TILES) {  // behind the tile that has the last head
    const int64 tiles = begin + ceil_div(low - begin, Op::TILE) * Op::TILE;
    if (low < tiles) reduce_elements<Op>(x, n, low, min_of(tiles, high), reverse, state.total);
    for (int64 i = tiles; i < high; i += Op::TILE) {
      const int64 end = min_of(high, i + Op::TILE);
      Value<E> total;
      if (Op::tile_total(x, n, i, end, reverse, total))
        state.total = join<Op>(state.total, total);
      else
        reduce_elements<Op>(x, n, i, end, reverse, state.total);
    }
    return state;
  }
  const int64 tile = HAS_PLAIN<Op, X> ? PLAIN_TILE / int64(sizeof(X)) : high - low;
  for (int64 i = low; i < high; i += tile)
    reduce_elements<Op>(x, n, i, min_of(i + tile, high), reverse, state.total);
  return state;
}

}  // namespace distscan
