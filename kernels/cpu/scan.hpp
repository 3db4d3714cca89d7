// The seeded scan of a run of elements: vector by vector, in tiles that stay in the L1 cache.
#pragma once

#include "job.hpp"
#include "segments.hpp"
#include "state.hpp"
#include "stream.hpp"

namespace distscan {

// Scan elements [low, high) of x [n], at most a tile, into the stream.
template <class Op, class X, class Out>
INLINE void scan_tile(const X* x, int64 n, int64 low, int64 high, bool reverse,
                      State<typename Op::E>& state, Stream<Out>& stream) {
  using E = typename Op::E;
  constexpr int N = ELEMENTS<E>;
  using R = Register<Lane<E>>;
  const R before = state.before.value;
  const bool any_before = state.before.any;
  R total = state.total.value;
  bool any_total = state.total.any;
  Out* y = stream.next(N);
  for (int64 i = low; i < high; i += N, y += reverse ? -N : N) {
    Vector<E> v = load_vector<Op>(x, n, i, high, reverse);
    if (reverse) v = mirrored<E>(v);
    vector_scan<Op>(v);
    const R last = last_of<Op>(v, high - i);
    if (any_total) {
      put_before<Op>(any_before ? Op::combine(before, total) : total, v);
      total = Op::combine(total, last);
    } else {
      if (any_before) put_before<Op>(before, v);
      total = last;
      any_total = true;
    }
    if (reverse) v = mirrored<E>(v);
    store_as(y, v);
  }
  stream.put(int(high - low));
  state.total = {total, any_total};
}

// Whether tiles without NaN have an operator of their own, which is faster.
template <class Op, class X>
constexpr bool HAS_PLAIN =
    !is_integer<X> && !same<Op, typename Op::Plain> && same<X, typename Op::E>;

// Whether a tile or what comes before it has a NaN.
template <class Op, class X>
INLINE bool has_nan(const X* x, int64 count, const State<typename Op::E>& state) {
  using E = typename Op::E;
  Register<Word<E>> nan = {};
  int64 i = 0;
  for (; i + LANES<E> <= count; i += LANES<E>) {
    const auto r = load<Register<E>>(x + i);
    nan |= r != r;
  }
  bool any = false;
  for (; i < count; ++i) any |= x[i] != x[i];
  if (state.before.any) nan |= state.before.value != state.before.value;
  if (state.total.any) nan |= state.total.value != state.total.value;
  for (int k = 0; k < LANES<E>; ++k) any |= nan[k] != 0;
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
      if (has_nan<Op>(reverse ? x + (n - end) : x + i, end - i, state)) {
        scan_tile<Op>(x, n, i, end, reverse, state, stream);
      } else {
        scan_tile<typename Op::Plain>(x, n, i, end, reverse, state, stream);
      }
    } else {
      scan_tile<Op>(x, n, i, end, reverse, state, stream);
    }
    stream.flush(job.exclusive);
  }
  if (job.exclusive) stream.put(-1);
}

}  // namespace distscan
