// Segments: a scan that begins anew at each head.
#pragma once

#include "job.hpp"
#include "tile.hpp"

namespace distscan {

// For each lane of a vector, -1 or 0.
template <class E>
struct Mask {
  Register<Word<E>> part[PARTS];
};

// The identity with which `before` moves masks: 0.
template <class Element>
struct Spread {
  using E = Element;
  static constexpr Word<E> IDENTITY = 0;
};

// Scans values with head flags: an element with a head at or before it takes in nothing further.
template <class Op, int STEP = 1>
INLINE void register_scan(Register<Lane<typename Op::E>>& r, Register<Word<typename Op::E>>& head) {
  using E = typename Op::E;
  if constexpr (STEP * sizeof(E) < REGISTER) {
    r = head != 0 ? r : step<Op, STEP>(r);
    head |= before<Spread<E>, STEP, E, Word<E>>(head);
    register_scan<Op, 2 * STEP>(r, head);
  }
}

// Scan a vector; `heads` then says whether a segment begins at or before an element.
template <class Op>
INLINE void vector_scan(Vector<typename Op::E>& v, Mask<typename Op::E>& heads) {
  using E = typename Op::E;
  UNROLL
  for (int i = 0; i < PARTS; ++i) register_scan<Op>(v.part[i], heads.part[i]);
  UNROLL
  for (int half = 1; half < PARTS; half *= 2) UNROLL
  for (int i = half; i < PARTS; i += 2 * half) {
    const auto earlier = splat_last<E>(v.part[i - 1]);
    const auto head = splat_last<E, Word<E>>(heads.part[i - 1]);
    UNROLL
    for (int k = i; k < i + half; ++k) {
      v.part[k] = heads.part[k] != 0 ? v.part[k] : Op::combine(earlier, v.part[k]);
      heads.part[k] |= head;
    }
  }
}

// The same, out of line: for vectors outside of loops.
template <class Op>
NOINLINE void one_vector_scan(Vector<typename Op::E>& v, Mask<typename Op::E>& heads) {
  vector_scan<Op>(v, heads);
}

// The mask of a vector's elements, from their flags.
template <class E>
INLINE Mask<E> mask_of(const unsigned char* flags) {
  constexpr int lanes = sizeof(E) / sizeof(Lane<E>);
  unsigned char bytes[ELEMENTS<E> * lanes];  // one for each lane
  if constexpr (lanes > 1) {
    for (int k = 0; k < ELEMENTS<E> * lanes; ++k) bytes[k] = flags[k / lanes];
    flags = bytes;
  }
  Mask<E> mask;
  UNROLL
  for (int i = 0; i < PARTS; ++i) {
    const auto words = widened<Word<E>>(flags + i * LANES<Word<E>>);
    mask.part[i] = (Register<Word<E>>)(words != 0);
  }
  return mask;
}

// A vector of `count` elements with their heads, in the order of the scan. x and flags have the
// element that is the lowest in memory.
template <class Op, class X, class E = typename Op::E>
INLINE void load_segments(const X* x, const unsigned char* flags, int count, bool reverse,
                          Vector<E>& v, Mask<E>& heads) {
  constexpr int N = ELEMENTS<E>;
  if (count == N) {
    v = load_as<E>(x);
    heads = mask_of<E>(flags);
  } else {
    unsigned char all[N] = {};
    memcpy(all + (reverse ? N - count : 0), flags, count);
    v = load_part<E>(x, count, reverse, Op::IDENTITY);
    heads = mask_of<E>(all);
  }
  if (!reverse) return;
  v = mirrored<E>(v);
  Mask<E> turned;
  UNROLL
  for (int i = 0; i < PARTS; ++i) turned.part[i] = mirrored<E, Word<E>>(heads.part[PARTS - 1 - i]);
  heads = turned;
}

// Whether a segment begins in `count` elements.
INLINE bool any_head(const unsigned char* flags, int64 count) {
  uint64_t any = 0;
  for (; count >= 8; count -= 8, flags += 8) any |= load<uint64_t>(flags);
  for (; count > 0; --count, ++flags) any |= *flags;
  return any != 0;
}

// In how many vectors of N elements a segment begins. The first vector is the lowest in memory.
template <int N>
INLINE int64 vectors_with_heads(const unsigned char* flags, int64 count) {
  int64 vectors = 0;
  for (; count >= N; count -= N, flags += N) vectors += any_head(flags, N);
  return vectors + any_head(flags, count);
}

// Heads are sparse if at most one of so many vectors of a tile has any. Segments of float64 of
// random lengths, 2^27 bytes on one core of a Xeon (Sapphire Rapids), share of copy. The masked
// scan is for all vectors / for vectors with heads alone:
//
//   mean length     4          8          16         32         64
//   AVX-512         .68 / .63  .72 / .55  .67 / .58  .67 / .66  .69 / .73
//   AVX2            .52 / .43  .52 / .42  .51 / .47  .51 / .56  .49 / .65
constexpr int SPARSE = 4;

// Seed a scanned vector of `count` elements. A segment that begins in the vector is seeded with
// `first`. Elements before the first head belong to the open segment: they are seeded with `before`
// and `total`.
template <class Op, class E = typename Op::E, class R = Register<Lane<E>>>
INLINE void seed_vector(Vector<E>& v, const Mask<E>& heads, int64 count, R first, bool any_first,
                        R& before, bool& any_before, R& total, bool& any_total) {
  const R last = last_of<Op>(v, count);
  const auto head = splat_last<E, Word<E>>(heads.part[PARTS - 1]);
  if constexpr (Op::EXACT) {
    const R open = Op::combine(before, total);
    UNROLL
    for (int k = 0; k < PARTS; ++k)
      v.part[k] = Op::combine(heads.part[k] != 0 ? first : open, v.part[k]);
    total = head != 0 ? last : Op::combine(total, last);
    before = head != 0 ? first : before;
  } else {
    const Value<E> open = join<Op>(Value<E>{before, any_before}, Value<E>{total, any_total});
    UNROLL
    for (int k = 0; k < PARTS; ++k) {
      const R r = v.part[k];
      v.part[k] = heads.part[k] != 0 ? (any_first ? Op::combine(first, r) : r)
                  : open.any         ? Op::combine(open.value, r)
                                     : r;
    }
    total = any_total && !head[0] ? Op::combine(total, last) : last;
    if (head[0]) {
      before = first;
      any_before = any_first;
    }
  }
  any_total = true;
}

// Results lie one place later in an exclusive scan: those before a head become `first`.
template <class Out>
INLINE void put_first(const unsigned char* flags, int count, bool reverse, Out first, Out* y) {
  for (int k = 0; k < count; ++k)
    if (flags[k]) store(reverse ? y + k + 1 : y + k - 1, first);
}

// Scan `count` elements from i on, in which segments begin, into the stream: whole vectors, or a
// part of one. `flags` are those of the first vector. If heads are `sparse`, vectors without heads
// take the plain scan. Where heads are dense, CPUs would mispredict that branch too often.
template <bool WHOLE, class Op, class X, class Out>
NOINLINE void scan_segments(const X* x, const unsigned char* flags, int64 n, int64 i, int64 count,
                            bool sparse, const Job& job, State<typename Op::E>& state,
                            Stream<Out>& stream) {
  using E = typename Op::E;
  constexpr int N = ELEMENTS<E>;
  const int size = WHOLE ? N : int(count);  // elements of a vector
  const bool reverse = job.reverse, exclusive = job.exclusive;
  const int64 step = reverse ? -N : N;
  const Value<E> first = value_at<Op>(static_cast<const E*>(job.first));
  auto before = state.before.value, total = state.total.value;
  bool any_before = state.before.any, any_total = state.total.any;
  x += reverse ? n - i - size : i;
  Out* y = stream.next(N);
  Lines lines = stream.lines();
  stream.put(count);
  for (; count > 0; count -= size, x += step, flags += step, y += step) {
    prefetch(x, reverse);
    Vector<E> v;
    const bool plain = WHOLE && sparse && !any_head(flags, N);
    if (plain) {
      v = load_as<E>(x);
      if (reverse) v = mirrored<E>(v);
      scan_vector<Op>(v, N, before, any_before, total, any_total);
    } else {
      Mask<E> heads;
      load_segments<Op>(x, flags, size, reverse, v, heads);
      WHOLE ? vector_scan<Op>(v, heads) : one_vector_scan<Op>(v, heads);
      seed_vector<Op>(v, heads, size, first.value, first.any, before, any_before, total, any_total);
    }
    if (reverse) v = mirrored<E>(v);
    store_as(y, v);
    if (exclusive && !plain)
      put_first(flags, size, reverse, value_as<Out, E>(first.value), y + (reverse ? N - size : 0));
    if (sizeof(Out) == sizeof(E) || count / N % 2) lines.write();
  }
  stream.wrote(lines);
  state = {{before, any_before}, {total, any_total}, true};
}

// Scan elements [low, high) of x [n] into the stream. Tiles without heads take the usual way.
template <class Op, class X, class Out>
NOINLINE void scan_tile_segments(const X* x, int64 n, int64 low, int64 high, const Job& job,
                                 State<typename Op::E>& state, Stream<Out>& stream) {
  constexpr int N = ELEMENTS<typename Op::E>;
  const int64 whole = (high - low) / N, rest = (high - low) % N;
  const bool reverse = job.reverse;
  unsigned char room[Stream<Out>::TILE / sizeof(Out)];
  const unsigned char* flags = flags_of(job, reverse ? n - high : low, high - low, room);
  const int64 count = vectors_with_heads<N>(flags, high - low);
  if (count == 0) return scan_tile<Op>(x, n, low, high, reverse, state, stream);
  const bool sparse = count <= whole / SPARSE;
  if (whole) {
    const unsigned char* first = flags + (reverse ? high - low - N : 0);
    scan_segments<true, Op>(x, first, n, low, whole * N, sparse, job, state, stream);
  }
  if (rest) {
    const unsigned char* first = flags + (reverse ? 0 : whole * N);
    scan_segments<false, Op>(x, first, n, high - rest, rest, sparse, job, state, stream);
  }
}

// The total of the vector with the last head in elements [low, high) of x [n]; return the element
// behind that vector. Without a head, return `low`.
template <class Op, class X>
NOINLINE int64 reduce_to_last_head(const X* x, int64 n, int64 low, int64 high, const Job& job,
                                   State<typename Op::E>& state) {
  using E = typename Op::E;
  constexpr int N = ELEMENTS<E>, MANY = 1024;  // keys that are compared at a time
  unsigned char room[MANY];
  for (int64 end = high, begin; end > low; end = begin) {
    begin = low + (end - low - 1) / MANY * MANY;
    const int64 place = job.reverse ? n - end : begin;
    const unsigned char* flags = flags_of(job, place, end - begin, room);
    for (int64 i = begin + (end - begin - 1) / N * N; i >= begin; i -= N) {
      const int count = int(min_of(N, end - i));
      const int64 at = job.reverse ? n - i - count : i;
      if (!any_head(flags + (at - place), count)) continue;
      Vector<E> v;
      Mask<E> heads;
      load_segments<Op>(x + at, flags + (at - place), count, job.reverse, v, heads);
      one_vector_scan<Op>(v, heads);
      state.total = {last_of<Op>(v, count), true};
      state.head = true;
      return i + count;
    }
  }
  return low;
}

}  // namespace distscan
