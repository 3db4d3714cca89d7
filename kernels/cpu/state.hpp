// What is known between two vectors of a block.
#pragma once

#include "vector_scan.hpp"

namespace distscan {

// A value in every lane, or none. Structures with registers live in memory: loops over vectors keep
// `value` and `any` in variables of their own.
template <class E>
struct Value {
  Register<Lane<E>> value;
  bool any;
};

template <class E>
INLINE Value<E> value_at(const E* element) {
  return element ? Value<E>{all(*element), true} : Value<E>{};
}

// Two values combined.
template <class Op, class E = typename Op::E>
INLINE Value<E> join(const Value<E>& earlier, const Value<E>& later) {
  if (!earlier.any) return later;
  if (!later.any) return earlier;
  return {Op::combine(earlier.value, later.value), true};
}

// A vector's elements, each with the same value before it.
template <class Op, class E = typename Op::E>
INLINE void put_before(Register<Lane<E>> value, Vector<E>& v) {
  UNROLL
  for (auto& part : v.part) part = Op::combine(value, part);
}

// The same with a value for each element.
template <class Op, class E = typename Op::E>
INLINE void put_before(const Vector<E>& values, Vector<E>& v) {
  UNROLL
  for (int i = 0; i < PARTS; ++i) v.part[i] = Op::combine(values.part[i], v.part[i]);
}

// The total does not contain `before`. So the total of a block is the same whether or not its
// prefix is known yet, and a result has the same bits however many threads there are.
template <class E>
struct State {
  Value<E> before;  // what comes before the block, or before the open segment if it began inside
  Value<E> total;   // of the block so far, or of the open segment
  bool head;        // whether a segment has begun in the block
};

template <class E>
NOINLINE Register<Lane<E>> element_of(Vector<E> v, int i) {
  E elements[ELEMENTS<E>];
  memcpy(elements, &v, sizeof v);
  return all(elements[i]);
}

// The last of `count` elements of a vector, in all lanes. Behind them are identities.
template <class Op, class E = typename Op::E>
INLINE Register<Lane<E>> last_of(const Vector<E>& v, int64 count) {
  if (!Op::EXACT && count < ELEMENTS<E>) return element_of<E>(v, int(count) - 1);
  return splat_last<E>(v.part[PARTS - 1]);
}

}  // namespace distscan
