// The operators on registers: combine(earlier, later), by the functions that GPUs use.
#pragma once

#include "vector.hpp"

namespace distscan {

// What every operator has:
//   E         the type of an element
//   IDENTITY  the value of a lane that leaves others unchanged
//   EXACT     whether it does so for every value, also for infinities
//   FREE      whether elements may be combined in any order, with the same bits
//   Plain     the operator for vectors without NaN; one that is FREE may return 0 for -0.0 then
//   TILES     whether it scans tiles of its own, of TILE elements: tile_total and scan_tile
template <class Element, bool IS_FREE = is_integer<Element>>
struct Operator {
  using E = Element;
  using R = Register<Lane<E>>;
  static constexpr bool FREE = IS_FREE, EXACT = true, TILES = false;
};

template <class E>
struct Sum : Operator<E> {
  using typename Operator<E>::R;
  using Plain = Sum;
  static constexpr Lane<E> IDENTITY = Lane<E>(-0.0);  // 0.0 would change -0.0
  static INLINE R combine(R a, R b) { return plus(a, b); }
};

template <class E>
struct Prod : Operator<E> {
  using typename Operator<E>::R;
  using Plain = Prod;
  static constexpr Lane<E> IDENTITY = 1;
  static INLINE R combine(R a, R b) { return times(a, b); }
};

// (1 + 2i) * (3 + 4i) = -5 + 10i, by the textbook rule, as NumPy does.
template <class Real>
struct Prod<complex<Real>> : Operator<complex<Real>, false> {
  using R = Register<Real>;
  using Plain = Prod;
  static constexpr Real IDENTITY = 1;
  static constexpr bool EXACT = false;  // (1 + 0i) * (inf + 0i) has a NaN
  static INLINE R combine(R a, R b) {
    constexpr auto swap = [](int i) { return i ^ 1; };
    constexpr auto sign = [](int i) { return i % 2 ? Real(0) : Real(-0.0); };
    using Bits = Register<int64>;
    const R crossed = both<1, Real>(a) * shuffle<swap, Real>(b, b);
    return both<0, Real>(a) * b + (R)((Bits)crossed ^ (Bits)constant<Real, sign>());
  }
};

template <class E>
constexpr E LOWEST = E(-1) > E(0) ? E(0) : E(E(1) << (8 * sizeof(E) - 1));
template <>
inline constexpr float LOWEST<float> = -__builtin_inff();
template <>
inline constexpr double LOWEST<double> = -__builtin_inf();
template <class E>
constexpr E HIGHEST = is_integer<E> ? E(~LOWEST<E>) : E(0);
template <>
inline constexpr float HIGHEST<float> = __builtin_inff();
template <>
inline constexpr double HIGHEST<double> = __builtin_inf();

template <class E>
struct PlainMax : Operator<E, true> {
  using typename Operator<E, true>::R;
  static constexpr Lane<E> IDENTITY = LOWEST<Lane<E>>;
  static INLINE R combine(R a, R b) { return b < a ? a : b; }  // one instruction, mostly
};
template <class E>
struct PlainMin : Operator<E, true> {
  using typename Operator<E, true>::R;
  static constexpr Lane<E> IDENTITY = HIGHEST<Lane<E>>;
  static INLINE R combine(R a, R b) { return a < b ? a : b; }
};

template <class E>
struct Max : Operator<E> {
  using typename Operator<E>::R;
  using Plain = PlainMax<E>;
  static constexpr Lane<E> IDENTITY = LOWEST<Lane<E>>;
  static INLINE R combine(R a, R b) {
    if constexpr (is_integer<E>) return Plain::combine(a, b);
    return maximum(a, b);
  }
};
template <class E>
struct Min : Operator<E> {
  using typename Operator<E>::R;
  using Plain = PlainMin<E>;
  static constexpr Lane<E> IDENTITY = HIGHEST<Lane<E>>;
  static INLINE R combine(R a, R b) {
    if constexpr (is_integer<E>) return Plain::combine(a, b);
    return minimum(a, b);
  }
};

template <class E>
struct And : Operator<E> {
  using typename Operator<E>::R;
  using Plain = And;
  static constexpr E IDENTITY = E(~E(0));
  static INLINE R combine(R a, R b) { return a & b; }
};
template <class E>
struct Or : Operator<E> {
  using typename Operator<E>::R;
  using Plain = Or;
  static constexpr E IDENTITY = 0;
  static INLINE R combine(R a, R b) { return a | b; }
};
template <class E>
struct Xor : Operator<E> {
  using typename Operator<E>::R;
  using Plain = Xor;
  static constexpr E IDENTITY = 0;
  static INLINE R combine(R a, R b) { return a ^ b; }
};

}  // namespace distscan
