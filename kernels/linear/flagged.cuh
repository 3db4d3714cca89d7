// Segments: a scan that begins again at every item that is a head.
//
// The running value becomes a pair: a value, and whether a segment begins among its elements. A
// head cuts off all elements before it:
//
//   (a, f) then (b, false) -> (a op b, f)          (a, f) then (b, true) -> (b, true)
//
// Pairs combine as values do. So code that reduces, shuffles or looks ahead takes pairs as they
// are; among the lanes of a warp, flags travel by a vote instead of shuffles. The prefix of a part
// is a value without a flag: the combination since the last head. If the part begins with a head,
// the prefix is the seed of every segment.
//
//   sum, a head is marked by |:  3 1 |4 1 -> (3, no) (4, no) (4, yes) (5, yes)
//
// Warp tiles without a head are scanned as all others. A shorter code path for them made warps wait
// for instructions, where other warps had heads: rows of 1000 float64 took 736 us with it, 648
// without.
#pragma once

#include "../base/fields.cuh"
#include "../base/warp_tile.cuh"

namespace distscan {

template <class T>
struct Flagged {
  T value;
  unsigned head;  // not 0: yes
};

template <class Operator>
struct Segmented {
  using Op = Operator;
  static constexpr bool COMMUTATIVE = false;

  template <class T>
  __device__ static Flagged<T> combine(Flagged<T> a, Flagged<T> b) {
    return {b.head ? b.value : Op::combine(a.value, b.value), a.head | b.head};
  }
};

template <class T>
inline constexpr bool is_exact<Flagged<T>> = is_exact<T>;
template <class T>
inline constexpr bool is_large<Flagged<T>> = is_large<T>;
template <class T>
inline constexpr bool one_by_one<Flagged<T>> = one_by_one<T>;

template <class Op, class T>
inline constexpr bool is_light<Segmented<Op>, Flagged<T>> = is_light<Op, T>;

// ---- One lane's items -----------------------------------------------------------------------

// An element that may be a head.
template <class X>
struct Headed {
  X item;
  bool head;
};

// As a To, which is Flagged.
template <class To, class X>
__device__ To convert(Headed<X> from) {
  return {convert<decltype(To::value)>(from.item), from.head};
}

// As another Flagged.
template <class To, class From>
__device__ To convert(Flagged<From> from) {
  return {convert<decltype(To::value)>(from.value), from.head};
}

// A vector of them, loaded apart. Bit i of heads is set where item i is one; there are no others.
template <class X, int ITEMS>
struct Vector<Headed<X>, ITEMS> {
  Vector<X, ITEMS> items;
  unsigned heads;
};

// Item i as a To, which is Flagged.
template <class To, class X, int ITEMS>
__device__ To get(const Vector<Headed<X>, ITEMS>& vector, int i) {
  // Not as an expression: of many bits at once, ptxas would make more predicates than there are.
  unsigned head;
  asm("and.b32 %0, %1, %2;" : "=r"(head) : "r"(vector.heads), "r"(1u << i));
  return {get<decltype(To::value)>(vector.items, i), head};
}

// The vector of some values, converted.
template <class T, int ITEMS, class From>
__device__ Vector<T, ITEMS> pack(const Flagged<From> (&flagged)[ITEMS]) {
  From value[ITEMS];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) value[i] = flagged[i].value;
  return pack<T>(value);
}

template <class T>
__device__ T value_of(Flagged<T> x) {
  return x.value;
}

template <class X, int ITEMS>
__device__ Vector<Headed<X>, ITEMS> flip(const Vector<Headed<X>, ITEMS>& vector) {
  return {flip(vector.items), __brev(vector.heads) >> (32 - ITEMS)};
}

// ---- One warp --------------------------------------------------------------------------------

template <class T>
__device__ Flagged<T> shuffle_up(Flagged<T> x, int distance) {
  const unsigned heads = __ballot_sync(EVERY_LANE, x.head != 0);
  const int from = lane_index() < distance ? lane_index() : lane_index() - distance;
  return {shuffle_up(x.value, distance), heads >> from & 1};
}

template <class T>
__device__ Flagged<T> broadcast(Flagged<T> x, int lane) {
  const unsigned heads = __ballot_sync(EVERY_LANE, x.head != 0);
  return {broadcast(x.value, lane), heads >> lane & 1};
}

// As for values; a lane takes nothing from before the last head.
template <class Op, int WIDTH = LANES, class T>
__device__ Flagged<T> warp_scan(Flagged<T> x) {
  const unsigned up_to_here = EVERY_LANE >> (LANES - 1 - lane_index());
  const unsigned heads = __ballot_sync(EVERY_LANE, x.head != 0) & up_to_here;
  // Lanes of its own segment; 0 beyond WIDTH, where nothing is to be combined.
  const int own_lanes =
      WIDTH == LANES || lane_index() < WIDTH ? lane_index() - (LANES - 1 - __clz(heads | 1)) : 0;
#pragma unroll
  for (int distance = 1; distance < WIDTH; distance *= 2) {
    const T earlier = shuffle_up(x.value, distance);
    if (distance <= own_lanes) x.value = Op::Op::combine(earlier, x.value);
  }
  return {x.value, heads};
}

template <class Op, class T>
__device__ Flagged<T> warp_reduce(Flagged<T> x, int count = LANES) {
  const unsigned heads = __ballot_sync(EVERY_LANE, x.head != 0 && lane_index() < count);
  const int last = LANES - 1 - __clz(heads | 1);
#pragma unroll
  for (int distance = 1; distance < LANES; distance *= 2) {
    const T later = shuffle_down(x.value, distance);
    const int from = lane_index() + distance;
    if (from < count) x.value = from <= last ? later : Op::Op::combine(x.value, later);
  }
  return {x.value, heads};
}

// The combination of one lane's vector, in one flag for all.
template <class Op, class T, class X, int ITEMS>
__device__ T reduce(const Vector<Headed<X>, ITEMS>& vector) {
  T total = get<T>(vector, 0);
#pragma unroll
  for (int i = 1; i < ITEMS; ++i) total = Op::combine(total, get<T>(vector, i));
  total.head = vector.heads;
  return total;
}

// The combination over the lanes that have some, complete in lane 0.
template <class Op, class T>
__device__ Prefix<T> warp_reduce(Prefix<T> x) {
#pragma unroll
  for (int distance = 1; distance < LANES; distance *= 2) {
    const unsigned some = __ballot_sync(EVERY_LANE, x.some);
    const T later = shuffle_down(x.value, distance);
    const int from = lane_index() + distance;
    if (from < LANES && (some >> from & 1)) x = join<Op>(x, later);
  }
  return x;
}

// The items without their flags.
template <class X, class Shape>
__device__ Rows<X, Shape> values_of(const Rows<Headed<X>, Shape>& rows) {
  Rows<X, Shape> values;
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) values.row[r] = rows.row[r].items;
  return values;
}

// The total of a warp tile from its last head on. Where operands may be exchanged, each lane
// combines its items of all rows before the lanes combine theirs.
template <class Op, class T, class X, class Shape>
__device__ T reduce_warp_tile(const Rows<Headed<X>, Shape>& rows) {
  if constexpr (!Op::Op::COMMUTATIVE) {
    return reduce_rows<Op, T>(rows);
  } else {
    using Value = decltype(T::value);

    // ---- 1. the last head, counted in items from 1 on; 0: none -------------------------------
    unsigned last = 0;
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r) {
      const unsigned heads = rows.row[r].heads;
      if (heads) last = (r * LANES + lane_index()) * Shape::ITEMS + LANES - __clz(heads);
    }
    last = __reduce_max_sync(EVERY_LANE, last);
    if (last == 0) return {reduce_rows<typename Op::Op, Value>(values_of(rows)), 0};

    // ---- 2. the items from there on ----------------------------------------------------------
    Prefix<Value> own;
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r) {
      const int skipped = static_cast<int>(last) - 1 - (r * LANES + lane_index()) * Shape::ITEMS;
      if (skipped >= Shape::ITEMS) continue;
      Value total = get<Value>(rows.row[r].items, Shape::ITEMS - 1);
#pragma unroll
      for (int i = Shape::ITEMS - 2; i >= 0; --i)
        if (i >= skipped) total = Op::Op::combine(get<Value>(rows.row[r].items, i), total);
      own = join<typename Op::Op>(own, total);
    }
    return {warp_reduce<typename Op::Op>(own).value, last};
  }
}

// ---- The seeds of segments -------------------------------------------------------------------

// In place of `Unsegmented`. If FIRST, every segment is seeded with `first`. Then there is a value
// before the shard, too: `first`, or a combination with it.
template <class T, bool FIRST>
struct Segments {
  using Pair = Flagged<T>;
  T first;

  template <class Op>
  __device__ Prefix<Pair> behind(Prefix<Pair> prefix, Pair later) const {
    T value;
    if constexpr (FIRST)
      value = Op::Op::combine(later.head ? first : prefix.value.value, later.value);
    else
      value = later.head || !prefix.some ? later.value
                                         : Op::Op::combine(prefix.value.value, later.value);
    return {{value, 0}, true};
  }
  // The seed of a part, from the total of all parts before it.
  template <class Op>
  __device__ Pair close_segment(Pair total) const {
    if (FIRST && total.head != 0) total.value = Op::Op::combine(first, total.value);
    return {total.value, 0};
  }
  // The value that an item leaves to an exclusive scan.
  __device__ Pair before(Pair all, Pair item) const {
    return {FIRST && item.head ? first : all.value, 0};
  }
};

// ---- Sources -----------------------------------------------------------------------------------

// Whether a source of items says which of them are heads.
template <class Source>
inline constexpr bool has_heads = Source::HAS_HEADS;
template <class X>
inline constexpr bool has_heads<const X*> = false;
template <class... X>
inline constexpr bool has_heads<Pointers<X...>> = false;

// The type that a scan or a reduction of a source runs in: a value, or a value and a flag.
template <class Source, class T>
using ValueOf = typename Choose<has_heads<Source>, Flagged<T>, T>::type;
template <class Source, class Op>
using OperatorOf = typename Choose<has_heads<Source>, Segmented<Op>, Op>::type;

// The segments of a source. They are seeded with `first`, if FIRST.
template <class Source, bool FIRST, class T>
__device__ auto segments_of(T first) {
  if constexpr (has_heads<Source>)
    return Segments<T, FIRST>{first};
  else
    return Unsegmented{};
}

}  // namespace distscan
