// Vectors of 64 bytes: one, two or four registers of the CPU. Every level of instructions has the
// same vectors, so that elements are combined in the same order, and floats have the same bits.
//
//   vector    64 bytes    |            |            |            |            |
//   register  AVX-512     |                         0                         |
//             AVX2        |            0            |            1            |
//             SSE2, NEON  |     0      |     1      |     2      |     3      |
//   quarter   16 bytes    |     0      |     1      |     2      |     3      |
//
// An element is one lane, or two if it is complex.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <utility>
#if defined __x86_64__
#include <immintrin.h>
#elif defined __ARM_NEON
#include <arm_neon.h>
#endif

#define __device__
#include "../base/operators.cuh"

#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#define UNROLL _Pragma("GCC unroll 4")  // the registers of a vector

namespace distscan {

using uint64 = unsigned long long;

#if defined __AVX512BW__
constexpr int REGISTER = 64;
#elif defined __AVX2__
constexpr int REGISTER = 32;
#else
constexpr int REGISTER = 16;
#endif
constexpr int VECTOR = 64, QUARTER = 16;
constexpr int PARTS = VECTOR / REGISTER, QUARTERS = REGISTER / QUARTER;

template <class T, int BYTES>
struct Simd {
  typedef T type __attribute__((vector_size(BYTES)));
};
template <class T>
using Register = typename Simd<T, REGISTER>::type;

// The lanes of an element: Lane<float> and Lane<complex<float>> are float.
template <class E>
struct LaneOf {
  using type = E;
};
template <class Real>
struct LaneOf<complex<Real>> {
  using type = Real;
};
template <class E>
using Lane = typename LaneOf<E>::type;

// An integer as wide as a lane: a comparison of lanes gives a mask of these, 0 or -1.
template <int BYTES>
struct WordOf;
template <>
struct WordOf<1> {
  using type = signed char;
};
template <>
struct WordOf<2> {
  using type = short;
};
template <>
struct WordOf<4> {
  using type = int;
};
template <>
struct WordOf<8> {
  using type = int64;
};
template <class E>
using Word = typename WordOf<sizeof(Lane<E>)>::type;

template <class E>
constexpr int LANES = REGISTER / int(sizeof(E));  // of a register, if E is a lane
template <class E>
constexpr int ELEMENTS = VECTOR / int(sizeof(E));  // of a vector

template <class E>
struct Vector {
  Register<Lane<E>> part[PARTS];
};

// ---- Memory ----------------------------------------------------------------------------------

// At any address, aligned or not.
template <class R>
INLINE R load(const void* from) {
  R r;
  memcpy(&r, from, sizeof r);
  return r;
}
template <class R>
INLINE void store(void* to, R r) {
  memcpy(to, &r, sizeof r);
}

// ---- Shuffles --------------------------------------------------------------------------------

// a and b are joined: the lanes of a first, then those of b. Lane i of the result is lane FROM(i).
template <auto FROM, class T>
INLINE Register<T> shuffle(Register<T> a, Register<T> b) {
  return [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
#if defined __clang__ || __GNUC__ >= 12
    return __builtin_shufflevector(a, b, FROM(I)...);
#else
    return __builtin_shuffle(a, b, Register<Word<T>>{Word<T>(FROM(I))...});
#endif
  }(std::make_integer_sequence<int, LANES<T>>{});
}

// Lane i of the result is VALUE(i).
template <class T, auto VALUE>
INLINE Register<T> constant() {
  return []<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    return Register<T>{T(VALUE(I))...};
  }(std::make_integer_sequence<int, LANES<T>>{});
}

// The real parts (PART 0) or the imaginary parts (PART 1), in both lanes of each element.
template <int PART, class T>
INLINE Register<T> both(Register<T> r) {
  constexpr auto from = [](int i) { return i / 2 * 2 + PART; };
  return shuffle<from, T>(r, r);
}

// Every element is *element.
template <class E>
INLINE Register<Lane<E>> all(const E& element) {
  Lane<E> lanes[sizeof(E) / sizeof(Lane<E>)];
  memcpy(lanes, &element, sizeof element);
  constexpr int K = sizeof(E) / sizeof(Lane<E>);
  return [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    return Register<Lane<E>>{lanes[I % K]...};
  }(std::make_integer_sequence<int, LANES<Lane<E>>>{});
}

// Every quarter moved up by BYTES; zeros come in.
// move_up<4>: 1 2 3 4 | 5 6 7 8 -> 0 1 2 3 | 0 5 6 7
template <int BYTES, class R>
INLINE R move_up(R r) {
#if defined __AVX512BW__
  return (R)_mm512_bslli_epi128((__m512i)r, BYTES);
#elif defined __AVX2__
  return (R)_mm256_bslli_epi128((__m256i)r, BYTES);
#elif defined __SSE2__
  return (R)_mm_bslli_si128((__m128i)r, BYTES);
#else
  using Bytes = Register<unsigned char>;
  constexpr auto from = [](int i) { return i < BYTES ? QUARTER + i : i - BYTES; };
  return (R)shuffle<from, unsigned char>((Bytes)r, Bytes{});
#endif
}

// The last element of each quarter in all its elements: 1 2 3 4 | 5 6 7 8 -> 4 4 4 4 | 8 8 8 8
template <class E, class T = Lane<E>>
INLINE Register<T> splat_quarters(Register<T> r) {
  constexpr auto from = [](int i) {
    constexpr int quarter = QUARTER / sizeof(T), element = sizeof(E) / sizeof(T);
    return (i / quarter + 1) * quarter - element + i % element;
  };
  return shuffle<from, T>(r, r);
}

// The last element in all elements: 1 2 3 4 | 5 6 7 8 -> 8 8 8 8 | 8 8 8 8
template <class E, class T = Lane<E>>
INLINE Register<T> splat_last(Register<T> r) {
  if constexpr (sizeof(T) >= 4) {
    constexpr auto from = [](int i) {
      constexpr int element = sizeof(E) / sizeof(T);
      return LANES<T> - element + i % element;
    };
    return shuffle<from, T>(r, r);
  } else {  // CPUs shuffle bytes inside a quarter alone
    using Words = Register<int64>;
    constexpr auto from = [](int) { return LANES<int64> - 1; };
    const Words words = (Words)splat_quarters<E, T>(r);
    return (Register<T>)shuffle<from, int64>(words, words);
  }
}

// The left operands of a step. Inside a quarter, element i gets element i - STEP. Across quarters,
// groups of STEP elements form pairs; each element of the second group gets the last element of the
// first. All others get the identity, i.
// before<1>: 1 2 3 4 -> i 1 2 3;  before<2>: 1 2 3 4 -> i i 1 2
// before<4>: 1 2 3 4 | 5 6 7 8 -> i i i i | 4 4 4 4
template <class Op, int STEP, class E = typename Op::E, class T = Lane<E>>
INLINE Register<T> before(Register<T> r) {
  constexpr int BYTES = STEP * sizeof(E);
  if constexpr (BYTES == 8) {  // one instruction on all levels
    constexpr auto from = [](int i) { return i % 2 ? LANES<int64> + i - 1 : i; };
    constexpr auto fill = [](int) { return Op::IDENTITY; };
    using Words = Register<int64>;
    return (Register<T>)shuffle<from, int64>((Words)constant<T, fill>(), (Words)r);
  } else if constexpr (BYTES < QUARTER) {
    using Bits = Register<int64>;
    constexpr auto fill = [](int i) {
      return i * int(sizeof(T)) % QUARTER < BYTES ? Op::IDENTITY : T(0);
    };
    return (Register<T>)((Bits)move_up<BYTES>(r) | (Bits)constant<T, fill>());
  } else {
    using Wide = typename Choose<(sizeof(T) < 4), int64, T>::type;
    constexpr auto from = [](int i) {
      constexpr int lanes = QUARTER / sizeof(Wide), step = BYTES / QUARTER;
      constexpr int element = sizeof(E) > sizeof(Wide) ? sizeof(E) / sizeof(Wide) : 1;
      const int quarter = i / lanes;
      if (!(quarter & step)) return i;
      return LANES<Wide> + quarter / step * step * lanes - element + i % element;
    };
    constexpr auto fill = [](int) { return Op::IDENTITY; };
    if constexpr (sizeof(T) < 4) r = splat_quarters<E, T>(r);
    return (Register<T>)shuffle<from, Wide>((Register<Wide>)constant<T, fill>(), (Register<Wide>)r);
  }
}

// -1 where `before` gives an element, 0 where it gives the identity.
template <class E, int STEP>
INLINE Register<Word<E>> has_before() {
  constexpr auto mask = [](int i) {
    constexpr int BYTES = STEP * sizeof(E);
    const int byte = i * sizeof(Word<E>);
    if (BYTES < QUARTER) return byte % QUARTER < BYTES ? 0 : -1;
    return byte / QUARTER & (BYTES / QUARTER) ? -1 : 0;
  };
  return constant<Word<E>, mask>();
}

// The elements in the opposite order: 1 2 3 4 | 5 6 7 8 -> 8 7 6 5 | 4 3 2 1
template <class E, class T = Lane<E>>
INLINE Register<T> mirrored(Register<T> r) {
  constexpr auto from = [](int i) {
    constexpr int element = sizeof(E) / sizeof(T);
    return LANES<T> - (i / element + 1) * element + i % element;
  };
  if constexpr (sizeof(T) >= 4) {
    return shuffle<from, T>(r, r);
  } else {
#if defined __SSE2__ && !defined __SSSE3__
    // There is no shuffle of bytes: swap the halves of wider words.
    using Wide = typename Choose<sizeof(T) == 1, uint16_t, uint32_t>::type;
    constexpr int half = 8 * sizeof(T);
    return (Register<T>)mirrored<Wide>((Register<Wide>)r << half | (Register<Wide>)r >> half);
#else
    // CPUs shuffle bytes inside a quarter alone.
    constexpr auto in_quarter = [](int i) {
      constexpr int quarter = QUARTER / sizeof(T);
      return (i / quarter + 1) * quarter - 1 - i % quarter;
    };
    constexpr auto quarters = [](int i) { return (QUARTERS - 1 - i / 2) * 2 + i % 2; };
    const auto words = (Register<int64>)shuffle<in_quarter, T>(r, r);
    return (Register<T>)shuffle<quarters, int64>(words, words);
#endif
  }
}
template <class E>
INLINE Vector<E> mirrored(Vector<E> v) {
  Vector<E> result;
  UNROLL
  for (int i = 0; i < PARTS; ++i) result.part[i] = mirrored<E>(v.part[PARTS - 1 - i]);
  return result;
}

}  // namespace distscan
