// The seeded scan of a run of elements: tile by tile, on their way to the stream.
#pragma once

#include "job.hpp"
#include "segments.hpp"
#include "stream.hpp"
#include "tile.hpp"

namespace distscan {

// Scan elements [low, high) of a row x [n] into the stream, and update what is known.
//   x = 1 2 3, before = 10, inclusive: 11 13 16
//   exclusive: the stream gets 10, then 11 13 16, and gives up the last: 10 11 13
template <class Op, class X, class Out>
NOINLINE void scan_run(const X* x, int64 n, int64 low, int64 high, const Job& job,
                       State<typename Op::E>& state, Stream<Out>& stream) {
  using E = typename Op::E;
  constexpr int64 TILE = Stream<Out>::TILE / sizeof(Out);
  static_assert(TILE % ELEMENTS<E> == 0);
  const bool reverse = job.reverse;
  if (job.exclusive) {  // the first result is `before`; all others are stored one place later
    store(stream.next(1), value_as<Out, E>(state.before.value));
    stream.put(1);
  }
  for (int64 i = low; i < high; i += TILE) {
    const int64 end = min_of(high, i + TILE);
    if (job.heads)
      scan_tile_segments<Op>(x, n, i, end, job, state, stream);
    else
      scan_tile<Op>(x, n, i, end, reverse, state, stream);
    stream.flush();
  }
  if (job.exclusive) stream.put(-1);
}

}  // namespace distscan
