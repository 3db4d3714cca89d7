// Elements whose fields lie in arrays of their own: a structure of arrays. A scan reads them as one
// element, combines them as one value, and writes the fields of the results to arrays of their own.
//
//   x0: 3 1 4     element 1 is {1, 5}: a Fields<int, int>, converted to the operator's structure
//   x1: 2 5 9
//
// Each operation on the elements of one array is done here on each field in turn.
#pragma once

#include "tile.cuh"

namespace distscan {

template <class X0, class... More>
struct Fields {
  X0 first;
  Fields<More...> rest;
};
template <class X0>
struct Fields<X0> {
  X0 first;
};

template <class X>
inline constexpr bool is_fields = false;
template <class... X>
inline constexpr bool is_fields<Fields<X...>> = true;
template <class X>
inline constexpr int FIELDS = 1;
template <class... X>
inline constexpr int FIELDS<Fields<X...>> = sizeof...(X);

// The type of an element in memory, where a byte of a bool may have any value.
template <class X>
struct InMemory {
  using type = typename Choose<same<X, bool>, boolean, X>::type;
};
template <class... X>
struct InMemory<Fields<X...>> {
  using type = Fields<typename InMemory<X>::type...>;
};

// ---- Pointers --------------------------------------------------------------------------------

// Element 0, by one pointer for each field.
template <class X0, class... More>
struct Pointers {
  X0* first;
  Pointers<More...> rest;
};
template <class X0>
struct Pointers<X0> {
  X0* first;
};

// The pointer to elements of a type: X*, or one pointer for each field.
template <class X>
struct PointerTo {
  using Const = const X*;
  using Mutable = X*;
};
template <class... X>
struct PointerTo<Fields<X...>> {
  using Const = Pointers<const X...>;
  using Mutable = Pointers<X...>;
};

template <class X0, class... More>
__device__ Pointers<X0, More...> operator+(const Pointers<X0, More...>& p, int64 i) {
  if constexpr (sizeof...(More) > 0)
    return {p.first + i, p.rest + i};
  else
    return {p.first + i};
}
template <class... X>
__device__ Pointers<X...> operator-(const Pointers<X...>& p, int64 i) {
  return p + -i;
}

// Element i of a pointer.
template <class X>
__device__ X element(const X* p, int64 i) {
  return p[i];
}
template <class X0>
__device__ Fields<X0> element(const Pointers<const X0>& p, int64 i) {
  return {p.first[i]};
}
template <class X0, class X1, class... More>
__device__ Fields<X0, X1, More...> element(const Pointers<const X0, const X1, const More...>& p,
                                           int64 i) {
  return {p.first[i], element(p.rest, i)};
}

// Store an element.
template <class Y>
__device__ void put(Y* p, Y y) {
  *p = y;
}
template <class Y0, class... More>
__device__ void put(const Pointers<Y0, More...>& p, const Fields<Y0, More...>& y) {
  *p.first = y.first;
  if constexpr (sizeof...(More) > 0) put(p.rest, y.rest);
}

// ---- Vectors -----------------------------------------------------------------------------------

template <class X0, class... More, int ITEMS>
struct Vector<Fields<X0, More...>, ITEMS> {
  Vector<X0, ITEMS> first;
  Vector<Fields<More...>, ITEMS> rest;
};
template <class X0, int ITEMS>
struct Vector<Fields<X0>, ITEMS> {
  Vector<X0, ITEMS> first;
};

template <class... X, int ITEMS>
inline constexpr bool is_packed<Fields<X...>, ITEMS> = false;

template <class X0, class... More, int ITEMS>
__device__ Fields<X0, More...> item(const Vector<Fields<X0, More...>, ITEMS>& vector, int i) {
  if constexpr (sizeof...(More) > 0)
    return {item(vector.first, i), item(vector.rest, i)};
  else
    return {item(vector.first, i)};
}

template <class X0, class... More, int ITEMS>
__device__ void set_item(Vector<Fields<X0, More...>, ITEMS>& vector, int i,
                         const Fields<X0, More...>& x) {
  vector.first.item[i] = x.first;
  if constexpr (sizeof...(More) > 0) set_item(vector.rest, i, x.rest);
}

template <class X0, class... More, int ITEMS>
__device__ Vector<Fields<X0, More...>, ITEMS> flip(
    const Vector<Fields<X0, More...>, ITEMS>& vector) {
  if constexpr (sizeof...(More) > 0)
    return {flip(vector.first), flip(vector.rest)};
  else
    return {flip(vector.first)};
}

template <int ITEMS, class... X>
__device__ bool is_aligned(const Pointers<X...>& p) {
  return is_aligned<ITEMS>(p.first);
}

// The vectors at p, of which the first is aligned. Each array has an alignment of its own.
template <int ITEMS, class X>
__device__ Vector<X, ITEMS> load_anywhere(const X* p) {
  if (is_aligned<ITEMS>(p)) return load_aligned<ITEMS>(p);
  Vector<X, ITEMS> vector;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) vector.item[i] = p[i];
  return vector;
}
template <int ITEMS, class X0>
__device__ Vector<Fields<X0>, ITEMS> load_aligned(const Pointers<const X0>& p) {
  return {load_anywhere<ITEMS>(p.first)};
}
template <int ITEMS, class X0, class X1, class... More>
__device__ Vector<Fields<X0, X1, More...>, ITEMS> load_aligned(
    const Pointers<const X0, const X1, const More...>& p) {
  return {load_anywhere<ITEMS>(p.first), load_aligned<ITEMS>(p.rest)};
}

// ---- Rows --------------------------------------------------------------------------------------

// The rows of the first field alone, of the other fields, and of all.
template <class X0, class... More, class Shape>
__device__ Rows<X0, Shape> first_of(const Rows<Fields<X0, More...>, Shape>& rows) {
  Rows<X0, Shape> first;
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) first.row[r] = rows.row[r].first;
  return first;
}
template <class X0, class... More, class Shape>
__device__ Rows<Fields<More...>, Shape> rest_of(const Rows<Fields<X0, More...>, Shape>& rows) {
  Rows<Fields<More...>, Shape> rest;
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) rest.row[r] = rows.row[r].rest;
  return rest;
}
template <class X0, class Shape>
__device__ Rows<Fields<X0>, Shape> together(const Rows<X0, Shape>& first) {
  Rows<Fields<X0>, Shape> rows;
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) rows.row[r] = {first.row[r]};
  return rows;
}
template <class X0, class... More, class Shape>
__device__ Rows<Fields<X0, More...>, Shape> together(const Rows<X0, Shape>& first,
                                                     const Rows<Fields<More...>, Shape>& rest) {
  Rows<Fields<X0, More...>, Shape> rows;
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) rows.row[r] = {first.row[r], rest.row[r]};
  return rows;
}

// Whether the vectors of all fields are aligned.
template <int ITEMS, class Y0, class... More>
__device__ bool all_aligned(const Pointers<Y0, More...>& p) {
  if constexpr (sizeof...(More) > 0)
    return is_aligned<ITEMS>(p.first) & all_aligned<ITEMS>(p.rest);
  else
    return is_aligned<ITEMS>(p.first);
}

// Store rows, each field to its own array; see tile.cuh. WHOLE: all vectors exist and are aligned.
template <bool WHOLE, class Shape, class Y0, class... More>
__device__ void store_fields(const Pointers<Y0, More...>& p /* [SIZE] */, int64 count, int warp,
                             const Rows<Fields<Y0, More...>, Shape>& rows) {
  store<WHOLE>(p.first, count, warp, first_of(rows));
  if constexpr (sizeof...(More) > 0) store_fields<WHOLE>(p.rest, count, warp, rest_of(rows));
}
template <class Shape, class Y0, class... More>
__device__ void store(const Pointers<Y0, More...>& p /* [SIZE] */, int64 count, int warp,
                      const Rows<Fields<Y0, More...>, Shape>& rows) {
  if constexpr (is_large<Fields<Y0, More...>>) {  // one branch for all fields
    if (count >= Shape::SIZE && all_aligned<Shape::ITEMS>(p)) {
      store_fields<true>(p, count, warp, rows);
      return;
    }
  }
  store_fields<false>(p, count, warp, rows);
}

}  // namespace distscan
