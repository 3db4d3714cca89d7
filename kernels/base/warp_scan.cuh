// The scan and the reduction of one value per lane, by shuffles.
#pragma once

#include "checked.cuh"
#include "tile.cuh"

namespace distscan {

// Whether combining takes few registers. It takes many of complex numbers, and where order matters.
template <class Op, class T>
inline constexpr bool is_light = Op::COMMUTATIVE && !is_complex<T>;

// ---- Moving any type, in words of 4 bytes --------------------------------------------------

template <class T>
constexpr int WORDS = (sizeof(T) + 3) / 4;

template <class T>
union Words {
  T value;
  unsigned word[WORDS<T>];
};

template <class T, class Move>
__device__ T by_words(T x, Move move) {
  Words<T> words;
  words.word[WORDS<T> - 1] = 0;
  words.value = x;
#pragma unroll
  for (int w = 0; w < WORDS<T>; ++w) words.word[w] = move(words.word[w]);
  return words.value;
}

// Of a checked sum, without the bytes that pad it.
template <class F, class Move>
__device__ Checked<F> by_words(Checked<F> x, Move move) {
  return {by_words(x.value, move), move(x.outside)};
}

// The value of the lane `distance` before this one; the first lanes get their own back.
// distance 1: [a b c d ...] -> [a a b c ...]
template <class T>
__device__ T shuffle_up(T x, int distance) {
  return by_words(x, [=](unsigned w) { return __shfl_up_sync(EVERY_LANE, w, distance); });
}

// The value of the lane `distance` after this one; the last lanes get back their own values.
// distance 1: [a b c ... y z] -> [b c d ... z z]
template <class T>
__device__ T shuffle_down(T x, int distance) {
  return by_words(x, [=](unsigned w) { return __shfl_down_sync(EVERY_LANE, w, distance); });
}

// The value of one lane, in every lane. lane 31: [a ... z] -> [z ... z]
template <class T>
__device__ T broadcast(T x, int lane) {
  return by_words(x, [=](unsigned w) { return __shfl_sync(EVERY_LANE, w, lane); });
}

// ---- Combining -----------------------------------------------------------------------------

// The combination of all that comes earlier, which may be nothing: no operator needs an exact
// identity. Prefix{} joined with x is x.
template <class T>
struct Prefix {
  T value;
  bool some = false;
};

template <class Op, class T>
__device__ Prefix<T> join(Prefix<T> prefix, T later) {
  return {prefix.some ? Op::combine(prefix.value, later) : later, true};
}

// The inclusive scan over the first WIDTH lanes, in log2(WIDTH) steps (Hillis and Steele, 1986).
// sum: [3 1 4 1 ...] -> [3 4 8 9 ...]
template <class Op, int WIDTH = LANES, class T>
__device__ T warp_scan(T x) {
#pragma unroll(is_large<T> ? 1 : LANES)
  for (int distance = 1; distance < WIDTH; distance *= 2) {
    if constexpr (is_fixed<T>) {
      add_earlier(x, distance, x);
      continue;
    }
    const T earlier = shuffle_up(x, distance);
    if (lane_index() >= distance && (WIDTH == LANES || lane_index() < WIDTH))
      x = Op::combine(earlier, x);
  }
  return x;
}

// The ordered combination over the first `count` lanes, complete in lane 0.
// sum: [1 2 3 ... 32] -> [528 ...]; after the step of distance d, lane l holds lanes l to l+2d-1.
template <class Op, class T>
__device__ T warp_reduce(T x, int count = LANES) {
#pragma unroll(is_large<T> ? 1 : LANES)
  for (int distance = 1; distance < LANES; distance *= 2) {
    const T later = shuffle_down(x, distance);
    if (lane_index() + distance < count) x = Op::combine(x, later);
  }
  return x;
}

// The sum of one lane's vector of floats; words become two once.
template <class T, class X, int ITEMS>
__device__ T add_elements(const Vector<X, ITEMS>& vector) {
  if constexpr (same<T, Fixed<2>>) {
    Parts total = Parts::of(get<double>(vector, 0));
#pragma unroll
    for (int i = 1; i < ITEMS; ++i) {
      const Parts next = Parts::of(get<double>(vector, i));
      total = {total.high + next.high, total.low + next.low};
    }
    return total.joined<ITEMS>();
  } else {
    Fixed<1> total = get<Fixed<1>>(vector, 0);
#pragma unroll
    for (int i = 1; i < ITEMS; ++i) total = total + get<Fixed<1>>(vector, i);
    if constexpr (same<T, Fixed<1>>)
      return total;
    else
      return T::of(total.value);
  }
}

// The combination of one lane's vector. sum: [1 2 3 4] -> 10
template <class Op, class T, class X, int ITEMS>
__device__ T reduce(const Vector<X, ITEMS>& vector) {
  if constexpr (has_two_words<T> && !same<T, X>) {
    return add_elements<T>(vector);
  } else if constexpr (is_checked<T> && !is_fixed<X>) {
    return {add_elements<decltype(T::value)>(vector), any_outside(vector)};
  } else {
    T total = get<T>(vector, 0);
#pragma unroll
    for (int i = 1; i < ITEMS; ++i) total = Op::combine(total, get<T>(vector, i));
    return total;
  }
}

}  // namespace distscan
