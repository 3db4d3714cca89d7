// What is known between two vectors of a block.
#pragma once

#include "vector_scan.hpp"

namespace distscan {

// The identity of an operator, in every lane.
template <class Op, class E = typename Op::E>
INLINE Register<Lane<E>> identity() {
  constexpr auto lane = [](int) { return Op::IDENTITY; };
  return constant<Lane<E>, lane>();
}

// A value in every lane, or none: then the lanes are identities, so an exact operator need not ask.
// Structures with registers live in memory: loops over vectors keep `value` and `any` in variables
// of their own.
template <class E>
struct Value {
  Register<Lane<E>> value;
  bool any;
};

template <class Op, class E = typename Op::E>
INLINE Value<E> value_at(const E* element) {
  return {element ? all(*element) : identity<Op>(), element != nullptr};
}

// Two values combined.
template <class Op, class E = typename Op::E>
INLINE Value<E> join(const Value<E>& earlier, const Value<E>& later) {
  if (Op::EXACT || (earlier.any && later.any))
    return {Op::combine(earlier.value, later.value), earlier.any || later.any};
  return later.any ? later : earlier;
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

template <class Op, class E = typename Op::E>
INLINE State<E> start_after(const Value<E>& before) {
  return {before, {identity<Op>(), false}, false};
}

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
