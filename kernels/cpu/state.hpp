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

// ---- NaN -------------------------------------------------------------------------------------

// Whether elements X have an operator of their own for vectors without NaN.
template <class Op, class X>
constexpr bool HAS_PLAIN =
    !Op::TILES && !is_integer<X> && same<X, typename Op::E> && !same<typename Op::Plain, Op>;

// Where a or b is a NaN; `is_any` says whether that is anywhere.
template <class R>
INLINE auto unordered(R a, R b) {
  constexpr bool wide = sizeof(a[0]) == 8;
#if defined __AVX512BW__
  if constexpr (wide)
    return unsigned(_mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_UNORD_Q));
  else
    return unsigned(_mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q));
#elif defined __AVX2__
  if constexpr (wide)
    return (__m256i)_mm256_cmp_pd((__m256d)a, (__m256d)b, _CMP_UNORD_Q);
  else
    return (__m256i)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q);
#elif defined __SSE2__
  if constexpr (wide)
    return (__m128i)_mm_cmpunord_pd((__m128d)a, (__m128d)b);
  else
    return (__m128i)_mm_cmpunord_ps((__m128)a, (__m128)b);
#else
  return (Register<int64>)(a != a) | (Register<int64>)(b != b);
#endif
}
template <class M>
INLINE bool is_any(M mask) {
#if defined __AVX512BW__
  if constexpr (sizeof(M) == REGISTER)
    return _mm512_test_epi64_mask((__m512i)mask, (__m512i)mask) != 0;
  else
    return mask != 0;
#elif defined __AVX2__
  return _mm256_movemask_epi8((__m256i)mask) != 0;
#elif defined __SSE2__
  return _mm_movemask_epi8((__m128i)mask) != 0;
#else
  return (mask[0] | mask[1]) != 0;
#endif
}

// Whether there is no NaN in `count` elements, nor in a or b.
template <class E>
INLINE bool has_no_nan(const E* x, int64 count, Register<E> a, Register<E> b) {
  auto nan = unordered(a, b);
  const E* const end = x + count;
  for (; end - x >= 2 * LANES<E>; x += 2 * LANES<E>)
    nan |= unordered(load<Register<E>>(x), load<Register<E>>(x + LANES<E>));
  bool any = is_any(nan);
  for (; x < end; ++x) any |= *x != *x;
  return !any;
}

}  // namespace distscan
