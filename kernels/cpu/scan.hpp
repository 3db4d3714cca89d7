// The seeded scan of a run of elements: vector by vector, in tiles that stay in the L1 cache.
#pragma once

#include "job.hpp"
#include "segments.hpp"
#include "state.hpp"
#include "stream.hpp"

namespace distscan {

// Scan one vector of `count` elements, in the order of the scan. It gets what comes before it.
template <class Op, class E = typename Op::E>
INLINE void scan_vector(Vector<E>& v, int64 count, Register<Lane<E>> before, bool any_before,
                        Register<Lane<E>>& total, bool& any_total) {
  vector_scan<Op>(v);
  const auto last = last_of<Op>(v, count);
  if (Op::EXACT || any_total) {
    put_before<Op>(Op::EXACT || any_before ? Op::combine(before, total) : total, v);
    total = Op::combine(total, last);
  } else {
    if (any_before) put_before<Op>(before, v);
    total = last;
    any_total = true;
  }
}

// Scan `count` whole vectors to y. x and y have the elements of the first one; the others lie
// above, or below if `reverse`. This loop decides the speed of all scans: a call in it, or a rare
// case, would have GCC keep the total in memory.
template <class Op, class X, class Out>
NOINLINE void scan_vectors(const X* x, int64 count, bool reverse, State<typename Op::E>& state,
                           Out* y) {
  using E = typename Op::E;
  const int64 step = reverse ? -ELEMENTS<E> : ELEMENTS<E>;
  const auto before = state.before.value;
  const bool any_before = state.before.any;
  auto total = state.total.value;
  bool any_total = state.total.any;
  for (; count > 0; --count, x += step, y += step) {
    prefetch(x, reverse);
    Vector<E> v = load_as<E>(x);
    if (reverse) v = mirrored<E>(v);
    scan_vector<Op>(v, ELEMENTS<E>, before, any_before, total, any_total);
    if (reverse) v = mirrored<E>(v);
    store_as(y, v);
  }
  state.total = {total, true};
}

// Scan `count` elements, fewer than a vector has, to y.
template <class Op, class X, class Out>
NOINLINE void scan_part(const X* x, int count, bool reverse, State<typename Op::E>& state, Out* y) {
  using E = typename Op::E;
  Vector<E> v = load_part<E>(x, count, reverse, Op::IDENTITY);
  if (reverse) v = mirrored<E>(v);
  scan_vector<Op>(v, count, state.before.value, state.before.any, state.total.value,
                  state.total.any);
  state.total.any = true;
  if (reverse) v = mirrored<E>(v);
  store_as(y, v);
}

// Scan elements [low, high) of x [n], at most a tile, into the stream. Fast is Op, or does the same
// for whole vectors of these elements.
template <class Op, class Fast, class X, class Out>
INLINE void scan_tile(const X* x, int64 n, int64 low, int64 high, bool reverse,
                      State<typename Op::E>& state, Stream<Out>& stream) {
  constexpr int N = ELEMENTS<typename Op::E>;
  const int64 whole = (high - low) / N, rest = (high - low) % N;
  Out* const y = stream.next(N);
  if (whole) scan_vectors<Fast>(x + (reverse ? n - low - N : low), whole, reverse, state, y);
  if (rest)
    scan_part<Op>(x + (reverse ? n - high : high - rest), int(rest), reverse, state,
                  y + (reverse ? -whole : whole) * N);
  stream.put(int(high - low));
}

// Whether tiles without NaN have an operator of their own, which is faster.
template <class Op, class X>
constexpr bool HAS_PLAIN =
    !is_integer<X> && !same<Op, typename Op::Plain> && same<X, typename Op::E>;

// Whether a tile or what comes before it has a NaN.
template <class X, class E>
INLINE bool has_nan(const X* x, int64 count, const State<E>& state) {
  auto nan = unordered(state.before.value, state.total.value);
  const X* const end = x + count;
  for (; end - x >= 2 * LANES<E>; x += 2 * LANES<E>)
    nan |= unordered(load<Register<E>>(x), load<Register<E>>(x + LANES<E>));
  bool any = is_any(nan);
  for (; x < end; ++x) any |= *x != *x;
  return any;
}

// Scan elements [low, high) of a row x [n] into the stream, and update what is known.
//   x = 1 2 3, before = 10, inclusive: 11 13 16
//   exclusive: the stream gets 10, then 11 13 16, and gives up the last: 10 11 13
template <class Op, class X, class Out>
NOINLINE void scan_run(const X* x, int64 n, int64 low, int64 high, const Job& job,
                       State<typename Op::E>& state, Stream<Out>& stream) {
  using E = typename Op::E;
  // Shorter tiles overlap the stores better with the loads that are to be widened.
  constexpr int64 TILE = Stream<Out>::TILE / sizeof(Out) / (sizeof(X) < sizeof(E) ? 2 : 1);
  static_assert(TILE % ELEMENTS<E> == 0);
  const bool reverse = job.reverse;
  if (job.exclusive) {  // the first result is `before`; all others are stored one place later
    store(stream.next(1), value_as<Out, E>(state.before.value));
    stream.put(1);
  }
  for (int64 i = low; i < high; i += TILE) {
    const int64 end = min_of(high, i + TILE);
    if (job.heads) {
      scan_tile_segments<Op>(x, n, i, end, job, state, stream);
    } else if constexpr (HAS_PLAIN<Op, X>) {
      if (has_nan(reverse ? x + (n - end) : x + i, end - i, state))
        scan_tile<Op, Op>(x, n, i, end, reverse, state, stream);
      else
        scan_tile<Op, typename Op::Plain>(x, n, i, end, reverse, state, stream);
    } else {
      scan_tile<Op, Op>(x, n, i, end, reverse, state, stream);
    }
    stream.flush(job.exclusive);
  }
  if (job.exclusive) stream.put(-1);
}

}  // namespace distscan
