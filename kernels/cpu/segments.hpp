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
NOINLINE void vector_scan(Vector<typename Op::E>& v, Mask<typename Op::E>& heads) {
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

// Whether a segment begins in elements [i, i + N) of n.
template <int N>
INLINE bool has_head(const unsigned char* heads, int64 n, int64 i, bool reverse) {
  using Bits = typename Choose<N % 8 == 0, uint64_t, uint32_t>::type;
  const unsigned char* const flags = heads + (reverse ? n - i - N : i);
  Bits any = 0;
  for (int k = 0; k < N; k += sizeof(Bits)) any |= load<Bits>(flags + k);
  return any != 0;
}

// The flags of `count` elements from i on, in the order of the scan, 0 or 1; return whether there
// is any.
template <int N>
INLINE bool load_heads(unsigned char (&flags)[N], const unsigned char* heads, int64 n, int64 i,
                       int count, bool reverse) {
  if (count == N && !reverse) {
    memcpy(flags, heads + i, N);
  } else {
    memset(flags, 0, N);
    for (int k = 0; k < count; ++k) flags[k] = heads[reverse ? n - 1 - i - k : i + k];
  }
  return has_head<N>(flags, N, 0, false);
}

template <class E>
INLINE Mask<E> mask_of(const unsigned char (&flags)[ELEMENTS<E>]) {
  constexpr int lanes = sizeof(E) / sizeof(Lane<E>);
  unsigned char bytes[ELEMENTS<E> * lanes];  // one for each lane
  for (int k = 0; k < ELEMENTS<E> * lanes; ++k) bytes[k] = flags[k / lanes];
  Mask<E> mask;
  UNROLL
  for (int i = 0; i < PARTS; ++i) {
    const auto words = widened<Word<E>>(bytes + i * LANES<Word<E>>);
    mask.part[i] = (Register<Word<E>>)(words != 0);
  }
  return mask;
}

// Scan a vector of `count` elements from i on, in which segments begin, into the stream.
template <class Op, class X, class Out>
NOINLINE void scan_heads(const X* x, int64 n, int64 i, int count, const Job& job,
                         State<typename Op::E>& state, Stream<Out>& stream) {
  using E = typename Op::E;
  constexpr int N = ELEMENTS<E>;
  using R = Register<Lane<E>>;
  const bool reverse = job.reverse;
  const Value<E> first = value_at<Op>(static_cast<const E*>(job.first));
  const Value<E> open = join<Op>(state.before, state.total);
  unsigned char flags[N];
  const bool head = load_heads(flags, job.heads, n, i, count, reverse);
  Vector<E> v = load_vector<Op>(x, n, i, i + count, reverse);
  if (reverse) v = mirrored<E>(v);
  Mask<E> heads = mask_of<E>(flags);
  vector_scan<Op>(v, heads);
  const Value<E> last = {last_of<Op>(v, count), true};
  UNROLL
  for (int k = 0; k < PARTS; ++k) {
    const R r = v.part[k];
    const R opened = Op::EXACT || open.any ? Op::combine(open.value, r) : r;
    const R begun = Op::EXACT || first.any ? Op::combine(first.value, r) : r;
    v.part[k] = heads.part[k] != 0 ? begun : opened;
  }
  state.total = head ? last : join<Op>(state.total, last);
  if (head) state.before = first;
  state.head |= head;
  if (reverse) v = mirrored<E>(v);
  Out* const y = stream.next(N);
  store_as(y, v);
  stream.put(count);
  if (job.exclusive && head)  // results lie one place later
    for (int k = 0; k < count; ++k)
      if (flags[k]) store(reverse ? y + N - k : y + k - 1, value_as<Out, E>(first.value));
}

// Scan elements [low, high) of x [n] into the stream. Vectors without heads take the usual way.
template <class Op, class X, class Out>
INLINE void scan_tile_segments(const X* x, int64 n, int64 low, int64 high, const Job& job,
                               State<typename Op::E>& state, Stream<Out>& stream) {
  constexpr int N = ELEMENTS<typename Op::E>;
  const bool reverse = job.reverse;
  for (int64 i = low; i < high;) {
    int64 end = i;
    while (end + N <= high && !has_head<N>(job.heads, n, end, reverse)) end += N;
    if (end > i) {
      scan_vectors<Op>(x + (reverse ? n - i - N : i), (end - i) / N, reverse, state, stream);
    } else {
      end = min_of(high, i + N);
      scan_heads<Op>(x, n, i, int(end - i), job, state, stream);
    }
    i = end;
  }
}

// The total of the vector with the last head in elements [low, high) of x [n]; return the element
// behind that vector. Without a head, return `low`.
template <class Op, class X>
INLINE int64 reduce_to_last_head(const X* x, int64 n, int64 low, int64 high, const Job& job,
                                 State<typename Op::E>& state) {
  using E = typename Op::E;
  constexpr int N = ELEMENTS<E>;
  const bool reverse = job.reverse;
  for (int64 i = low + (high - low - 1) / N * N; i >= low; i -= N) {
    const int count = int(min_of(N, high - i));
    unsigned char flags[N];
    if (!load_heads(flags, job.heads, n, i, count, reverse)) continue;
    Vector<E> v = load_vector<Op>(x, n, i, high, reverse);
    if (reverse) v = mirrored<E>(v);
    Mask<E> heads = mask_of<E>(flags);
    vector_scan<Op>(v, heads);
    state.total = {last_of<Op>(v, count), true};
    state.head = true;
    return i + count;
  }
  return low;
}

}  // namespace distscan
