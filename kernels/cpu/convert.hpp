// Vectors of the accumulating type, loaded from the elements of an array and stored as results.
#pragma once

#include "vector.hpp"

namespace distscan {

// A register of lanes T from as many narrower numbers of type X.
template <class T, class X>
INLINE Register<T> widened(const X* x) {
  using Narrow = typename Simd<X, LANES<T>* int(sizeof(X))>::type;
  // GCC 12 takes one instruction for other types, and several for these.
  constexpr bool far = sizeof(T) == 8 && sizeof(X) < 4;
#if defined __AVX512BW__
  if constexpr (same<T, double>)
    return (Register<T>)_mm512_cvtps_pd(load<__m256>(x));
  else if constexpr (far && same<X, signed char>)
    return (Register<T>)_mm512_cvtepi8_epi64(_mm_loadu_si64(x));
  else if constexpr (far && same<X, unsigned char>)
    return (Register<T>)_mm512_cvtepu8_epi64(_mm_loadu_si64(x));
  else if constexpr (far && same<X, short>)
    return (Register<T>)_mm512_cvtepi16_epi64(load<__m128i>(x));
  else if constexpr (far && same<X, unsigned short>)
    return (Register<T>)_mm512_cvtepu16_epi64(load<__m128i>(x));
  else
#elif defined __AVX2__
  if constexpr (same<T, double>)
    return (Register<T>)_mm256_cvtps_pd(load<__m128>(x));
  else if constexpr (far && same<X, signed char>)
    return (Register<T>)_mm256_cvtepi8_epi64(_mm_loadu_si32(x));
  else if constexpr (far && same<X, unsigned char>)
    return (Register<T>)_mm256_cvtepu8_epi64(_mm_loadu_si32(x));
  else if constexpr (far && same<X, short>)
    return (Register<T>)_mm256_cvtepi16_epi64(_mm_loadu_si64(x));
  else if constexpr (far && same<X, unsigned short>)
    return (Register<T>)_mm256_cvtepu16_epi64(_mm_loadu_si64(x));
  else
#endif
    return __builtin_convertvector(load<Narrow>(x), Register<T>);
}

// Halves as floats, by shifts: a float has the same bits further up, and another bias.
INLINE Register<float> from_half(const half* x) {
#if defined __AVX512BW__
  return (Register<float>)_mm512_cvtph_ps(load<__m256i>(x));
#elif defined __F16C__
  return (Register<float>)_mm256_cvtph_ps(load<__m128i>(x));
#elif defined __ARM_NEON
  return (Register<float>)vcvt_f32_f16(load<float16x4_t>(x));
#else
  using Bits = Register<unsigned>;
  const Bits bits = widened<unsigned>(reinterpret_cast<const unsigned short*>(x));
  const Bits magnitude = (bits & 0x7fff) << 13;
  const Bits scaled = (Bits)((Register<float>)magnitude * 0x1p112f);
  const Bits finite = (Bits)((bits & 0x7fff) < 0x7c00);
  return (Register<float>)((finite & scaled) | (~finite & (magnitude | 0x7f800000)) |
                           (bits & 0x8000) << 16);
#endif
}

// Floats as halves, to the nearest, ties to even.
INLINE void to_half(half* y, Register<float> r) {
#if defined __AVX512BW__
  store(y, _mm512_cvtps_ph((__m512)r, _MM_FROUND_TO_NEAREST_INT));
#elif defined __F16C__
  store(y, _mm256_cvtps_ph((__m256)r, _MM_FROUND_TO_NEAREST_INT));
#elif defined __ARM_NEON
  store(y, vcvt_f16_f32((float32x4_t)r));
#else
  using Bits = Register<unsigned>;
  const Bits bits = (Bits)r, magnitude = bits & 0x7fffffff;
  const Bits normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const Bits tiny = (Bits)((Register<float>)magnitude + 0.5f) - 0x3f000000;     // below 2^-14
  const Bits nan = (Bits)(magnitude > 0x7f800000) & (magnitude >> 13 | 0x200);  // keeps its payload
  const Bits not_finite = 0x7c00 | (nan & 0x3ff);
  const Bits small = (Bits)(magnitude < 0x38800000), large = (Bits)(magnitude >= 0x477ff000);
  const Bits rounded = (small & tiny) | (~small & ~large & normal) | (large & not_finite);
  store(y, __builtin_convertvector(rounded | (bits & 0x80000000) >> 16,
                                   typename Simd<unsigned short, REGISTER / 2>::type));
#endif
}

INLINE Register<float> from_bfloat16(const bfloat16* x) {
  return (Register<float>)(widened<unsigned>(reinterpret_cast<const unsigned short*>(x)) << 16);
}

INLINE void to_bfloat16(bfloat16* y, Register<float> r) {
  using Bits = Register<unsigned>;
  const Bits bits = (Bits)r, nan = (Bits)((bits & 0x7fffffff) > 0x7f800000);
  const Bits rounded = bits + 0x7fff + ((bits >> 16) & 1);
  store(y, __builtin_convertvector(((nan & (bits | 0x400000)) | (~nan & rounded)) >> 16,
                                   typename Simd<unsigned short, REGISTER / 2>::type));
}

// Elements of type X that are read as VALUE where they are NaN; complex ones, if a part is.
template <class X, int VALUE>
struct NanAs {
  X x;
};

template <class E, class X, int VALUE>
INLINE Vector<E> load_as(const NanAs<X, VALUE>* x);

// A vector of elements E from as many of type X.
template <class E, class X>
INLINE Vector<E> load_as(const X* x) {
  Vector<E> v;
  UNROLL
  for (int i = 0; i < PARTS; ++i, x += REGISTER / sizeof(E)) {
    if constexpr (same<X, boolean>) {
      // NumPy takes each byte but 0 for true.
      auto bytes = load<typename Simd<unsigned char, REGISTER / sizeof(E)>::type>(x);
      bytes = (decltype(bytes))(bytes != 0) & 1;
      if constexpr (sizeof(E) == 1)
        v.part[i] = bytes;
      else
        v.part[i] = widened<E>(reinterpret_cast<const unsigned char*>(&bytes));
    } else if constexpr (same<X, half>) {
      v.part[i] = from_half(x);
    } else if constexpr (same<X, bfloat16>) {
      v.part[i] = from_bfloat16(x);
    } else if constexpr (same<X, E>) {
      v.part[i] = load<Register<Lane<E>>>(x);
    } else {
      v.part[i] = widened<E>(x);
    }
  }
  return v;
}

template <class E, class X, int VALUE>
INLINE Vector<E> load_as(const NanAs<X, VALUE>* x) {
  using T = Lane<E>;
  constexpr auto lane = [](int i) { return i % (sizeof(E) / sizeof(T)) ? 0 : VALUE; };
  Vector<E> v = load_as<E>(&x->x);
  UNROLL
  for (auto& part : v.part) {
    auto nan = (Register<Word<T>>)is_nan(part);
    if constexpr (sizeof(E) > sizeof(T)) nan = both<0, Word<T>>(nan) | both<1, Word<T>>(nan);
    part = nan != 0 ? constant<T, lane>() : part;
  }
  return v;
}

// Stores the elements of a vector as results of type Out.
template <class E, class Out>
INLINE void store_as(Out* y, const Vector<E>& v) {
  UNROLL
  for (int i = 0; i < PARTS; ++i, y += REGISTER / sizeof(E)) {
    if constexpr (same<Out, half>)
      to_half(y, v.part[i]);
    else if constexpr (same<Out, bfloat16>)
      to_bfloat16(y, v.part[i]);
    else if constexpr (same<Out, E>)
      store(y, v.part[i]);
    else
      store(y, __builtin_convertvector(
                   v.part[i], typename Simd<Out, REGISTER / sizeof(E) * sizeof(Out)>::type));
  }
}

// A value as a result.
template <class Out, class E>
INLINE Out value_as(Register<Lane<E>> value) {
  Vector<E> v;
  UNROLL
  for (auto& part : v.part) part = value;
  Out results[ELEMENTS<E>];
  store_as(results, v);
  return results[0];
}

// The distance of prefetches, in bytes of x. Sums of float64, 2^27 bytes on one core of a Xeon
// (Sapphire Rapids), share of copy: 0 .80, 1024 .85, 2048 .91, 4096 .96. On another (Emerald
// Rapids), sums of float32: 4096 .65, 8192 .84; int8 to int64: .60, .86.
constexpr int AHEAD = 8192;

template <class X>
INLINE void prefetch(const X* x, bool reverse) {
  __builtin_prefetch(reinterpret_cast<const char*>(x) + (reverse ? -AHEAD : AHEAD));
}

// A vector of `count` elements, fewer than it holds. `fill` is behind them, or before them if
// `reverse`.
template <class E, class X>
NOINLINE Vector<E> load_part(const X* x, int count, bool reverse, Lane<E> fill) {
  constexpr int N = ELEMENTS<E>, lanes = sizeof(E) / sizeof(Lane<E>);
  X elements[N] = {};
  memcpy(elements, x, count * sizeof(X));
  const Vector<E> v = load_as<E>(elements);
  Lane<E> part[N * lanes];
  for (auto& lane : part) lane = fill;
  memcpy(part + (reverse ? (N - count) * lanes : 0), &v, count * sizeof(E));
  return load<Vector<E>>(part);
}

// Elements i to i + N of x [n], counted from the end of x if `reverse`. Lanes are in the order of
// memory. Elements from `high` on are identities.
template <class Op, class X, class E = typename Op::E>
INLINE Vector<E> load_vector(const X* x, int64 n, int64 i, int64 high, bool reverse) {
  constexpr int N = ELEMENTS<E>;
  if (high - i < N) {
    const X* const from = x + (reverse ? n - high : i);
    return load_part<E>(from, int(high - i), reverse, Op::IDENTITY);
  }
  const X* const from = x + (reverse ? n - i - N : i);
  prefetch(from, reverse);
  return load_as<E>(from);
}

}  // namespace distscan
