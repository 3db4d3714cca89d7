// The maps h -> a h + b, which are the elements of a recurrence, in registers.
//
// A scan of maps composes them: (a1, b1), then (a2, b2) is (a2 a1, a2 b1 + b2) (Blelloch, 1990).
#pragma once

#include "segments.hpp"

namespace distscan {

// As in memory: the slots of blocks, and what comes before a shard.
template <class E>
struct Map {
  E a, b;
};

// One map for each element of a vector.
template <class E>
struct Maps {
  Vector<E> a, b;
};

// What `before` gives where nothing comes before; it is not used.
template <class Element>
struct Zeros {
  using E = Element;
  static constexpr Lane<E> IDENTITY = 0;
};

// a h + b, rounded twice, as NumPy does.
template <class E, class R = Register<Lane<E>>>
INLINE R apply(R a, R h, R b) {
  return Sum<E>::combine(Prod<E>::combine(a, h), b);
}

// A product of factors, with 0 in place of numbers too small to have all their bits: products of
// thousands of factors get there, and then each multiplication would take CPUs 100 times longer.
template <class E, class T = Lane<E>>
INLINE Register<T> normal(Register<T> a) {
  constexpr T LEAST = sizeof(T) == 8 ? T(0x1p-1022) : T(0x1p-126f);
  const auto small = (a < LEAST) & (a > -LEAST);
  return (Register<T>)((Register<Word<T>>)a & ~(Register<Word<T>>)small);
}

// One step of a scan; see `step`. An element with a head at or before it takes in nothing further.
// Nor does one that has nothing before it in this step: 0 times infinity is no 0.
template <int STEP, bool HEADS, class E, class R = Register<Lane<E>>, class W = Register<Word<E>>>
INLINE void maps_step(R& a, R& b, W& head) {
  W takes = has_before<E, STEP>();
  if constexpr (HEADS) takes &= ~head;
  const R earlier_a = before<Zeros<E>, STEP>(a), earlier_b = before<Zeros<E>, STEP>(b);
  b = takes != 0 ? apply<E>(a, earlier_b, b) : b;
  a = takes != 0 ? Prod<E>::combine(a, earlier_a) : a;
  if constexpr (HEADS) head |= before<Spread<E>, STEP, E, Word<E>>(head);
}

template <bool HEADS, class E, int STEP = 1, class R, class W>
INLINE void register_maps_scan(R& a, R& b, W& head) {
  if constexpr (STEP * sizeof(E) < REGISTER) {
    maps_step<STEP, HEADS, E>(a, b, head);
    register_maps_scan<HEADS, E, 2 * STEP>(a, b, head);
  }
}

// Inclusive scan of a vector of maps, in the order of `vector_scan`. With HEADS, `heads` then says
// whether a segment begins at or before an element.
//   (2, 1) (3, 0) (1, 5) -> (2, 1) (6, 3) (6, 8)
template <bool HEADS, class E>
INLINE void maps_scan(Maps<E>& v, Mask<E>& heads) {
  UNROLL
  for (int i = 0; i < PARTS; ++i)
    register_maps_scan<HEADS, E>(v.a.part[i], v.b.part[i], heads.part[i]);
  UNROLL
  for (int half = 1; half < PARTS; half *= 2) UNROLL
  for (int i = half; i < PARTS; i += 2 * half) {
    const auto a = splat_last<E>(v.a.part[i - 1]), b = splat_last<E>(v.b.part[i - 1]);
    const auto head = splat_last<E, Word<E>>(heads.part[i - 1]);
    UNROLL
    for (int k = i; k < i + half; ++k) {
      const auto composed = apply<E>(v.a.part[k], b, v.b.part[k]);
      const auto product = Prod<E>::combine(v.a.part[k], a);
      if constexpr (HEADS) {
        v.b.part[k] = heads.part[k] != 0 ? v.b.part[k] : composed;
        v.a.part[k] = heads.part[k] != 0 ? v.a.part[k] : product;
        heads.part[k] |= head;
      } else {
        v.b.part[k] = composed;
        v.a.part[k] = product;
      }
    }
  }
}

// The last of `count` elements of a vector, in all lanes.
template <class E>
INLINE Register<Lane<E>> last_element(const Vector<E>& v, int64 count) {
  if (count < ELEMENTS<E>) return element_of<E>(v, int(count) - 1);
  return splat_last<E>(v.part[PARTS - 1]);
}

// The composition of the elements of a block so far, or of its open segment, in all lanes.
template <class E>
struct Total {
  Register<Lane<E>> a, b;
  bool any;   // whether there are elements
  bool head;  // whether a segment has begun in the block

  // Add the composition of further elements, in which a segment begins or not.
  INLINE void add(Register<Lane<E>> next_a, Register<Lane<E>> next_b, bool begins) {
    if (any && !begins) {
      next_b = apply<E>(next_a, b, next_b);
      next_a = normal<E>(Prod<E>::combine(next_a, a));
    }
    a = next_a, b = next_b, any = true, head |= begins;
  }

  INLINE Map<E> map() const {
    Map<E> m;
    memcpy(&m.a, &a, sizeof m.a);
    memcpy(&m.b, &b, sizeof m.b);
    return m;
  }
};

// What comes before, then a map: what comes before the next. Without anything before, the map.
template <class E>
INLINE Map<E> then(const Map<E>* before, const Map<E>& later) {
  if (!before) return later;
  Total<E> total{all(before->a), all(before->b), true, false};
  total.add(all(later.a), all(later.b), false);
  return total.map();
}

}  // namespace distscan
