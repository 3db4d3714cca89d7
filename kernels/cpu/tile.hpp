// The seeded scan of a tile: vector by vector, into the stream.
#pragma once

#include "convert.hpp"
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

// Scan `count` whole vectors into the stream, which writes earlier results meanwhile. x has the
// elements of the first one; the others lie above, or below if `reverse`. This loop decides the
// speed of all scans: a call in it, or a rare case, would have GCC keep the total in memory.
template <class Op, class X, class Out>
NOINLINE void scan_vectors(const X* x, int64 count, bool reverse, State<typename Op::E>& state,
                           Stream<Out>& stream) {
  using E = typename Op::E;
  constexpr int N = ELEMENTS<E>;
  const int64 step = reverse ? -N : N;
  const auto before = state.before.value;
  const bool any_before = state.before.any;
  auto total = state.total.value;
  bool any_total = state.total.any;
  Out* y = stream.next(N);
  Lines lines = stream.lines();
  stream.put(count * N);
  for (; count > 0; --count, x += step, y += step) {
    prefetch(x, reverse);
    Vector<E> v = load_as<E>(x);
    if (reverse) v = mirrored<E>(v);
    scan_vector<Op>(v, N, before, any_before, total, any_total);
    if (reverse) v = mirrored<E>(v);
    store_as(y, v);
    if (sizeof(Out) == sizeof(E) || count % 2) lines.write();  // a line for a line
  }
  stream.wrote(lines);
  state.total = {total, true};
}

// Scan `count` elements, fewer than a vector has, into the stream.
template <class Op, class X, class Out>
NOINLINE void scan_part(const X* x, int count, bool reverse, State<typename Op::E>& state,
                        Stream<Out>& stream) {
  using E = typename Op::E;
  Vector<E> v = load_part<E>(x, count, reverse, Op::IDENTITY);
  if (reverse) v = mirrored<E>(v);
  scan_vector<Op>(v, count, state.before.value, state.before.any, state.total.value,
                  state.total.any);
  state.total.any = true;
  if (reverse) v = mirrored<E>(v);
  store_as(stream.next(ELEMENTS<E>), v);
  stream.put(count);
}

// Scan elements [low, high) of x [n] into the stream. Whole vectors take the operator Fast, which
// does the same for them.
template <class Op, class Fast, class X, class Out>
INLINE void scan_tile_by(const X* x, int64 n, int64 low, int64 high, bool reverse,
                         State<typename Op::E>& state, Stream<Out>& stream) {
  constexpr int N = ELEMENTS<typename Op::E>;
  const int64 whole = (high - low) / N, rest = (high - low) % N;
  if (whole) scan_vectors<Fast>(x + (reverse ? n - low - N : low), whole, reverse, state, stream);
  if (rest)
    scan_part<Op>(x + (reverse ? n - high : high - rest), int(rest), reverse, state, stream);
}

// Scan a tile by the operator that is faster for it.
template <class Op, class X, class Out>
INLINE void scan_tile(const X* x, int64 n, int64 low, int64 high, bool reverse,
                      State<typename Op::E>& state, Stream<Out>& stream) {
  if constexpr (Op::TILES) {
    for (int64 i = low, end; i < high; i = end) {
      end = i + Op::TILE < high ? i + Op::TILE : high;
      if (Op::scan_tile(x, n, i, end, reverse, state, stream)) continue;
      Value<typename Op::E> total;
      const bool known = Op::tile_total(x, n, i, end, reverse, total);
      const auto earlier = state.total;
      scan_tile_by<Op, Op>(x, n, i, end, reverse, state, stream);
      if (known) state.total = join<Op>(earlier, total);
    }
    return;
  }
  if constexpr (HAS_PLAIN<Op, X>) {
    if (has_no_nan(reverse ? x + (n - high) : x + low, high - low, state.before.value,
                   state.total.value))
      return scan_tile_by<Op, typename Op::Plain>(x, n, low, high, reverse, state, stream);
  }
  scan_tile_by<Op, Op>(x, n, low, high, reverse, state, stream);
}

}  // namespace distscan
