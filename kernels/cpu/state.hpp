// What is known between two vectors of a block.
#pragma once

#include "vector_scan.hpp"

namespace distscan {

// A value in every lane, or none.
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

// The total does not contain `before`. So the total of a block is the same whether or not its
// prefix is known yet, and a result has the same bits however many threads there are.
template <class E>
struct State {
  Value<E> before;  // what comes before the block, or before the open segment if it began inside
  Value<E> total;   // of the block so far, or of the open segment
  bool head;        // whether a segment has begun in the block
};

// Element `count - 1` of a vector, in all lanes.
template <class E>
INLINE Register<Lane<E>> last_of(const Vector<E>& v, int count) {
  if (count == ELEMENTS<E>) return splat_last<E>(v.part[PARTS - 1]);
  E elements[ELEMENTS<E>];
  memcpy(elements, &v, sizeof v);
  return all(elements[count - 1]);
}

}  // namespace distscan
