// Integers of one or two words as floats: k * 2^lowest, rounded once, to the nearest, ties to even.
#pragma once

#include "fixed.hpp"

namespace distscan {

// ---- By integers: for every exponent -----------------------------------------------------------

// The bits of k * 2^lowest as a float. Sums of zero are +0.
template <class Out>
typename Format<Out>::Bits rounded_bits(__int128 k, int64 lowest) {
  using F = Format<Out>;
  using Wide = unsigned __int128;
  constexpr int SIZE = 8 * sizeof(Out);
  constexpr uint64 INFINITE = ((1ull << (SIZE - F::PRECISION)) - 1) << (F::PRECISION - 1);
  if (k == 0) return 0;
  const uint64 sign = k < 0 ? 1ull << (SIZE - 1) : 0;
  const Wide whole = k < 0 ? -Wide(k) : Wide(k);
  const uint64 high = uint64(whole >> 64), low = uint64(whole);
  const int length = high ? 128 - __builtin_clzll(high) : 64 - __builtin_clzll(low);
  int64 last = lowest + length - F::PRECISION;  // the exponent of the last bit that is kept
  if (last < F::LOWEST) last = F::LOWEST;
  const int64 off = last - lowest;  // bits that are rounded off; below 0: bits that are added
  uint64 kept;
  if (off <= 0) {
    kept = low << -off;
  } else if (off > 128) {
    kept = 0;
  } else {
    const Wide half = Wide(1) << (off - 1), rest = off < 128 ? whole & (2 * half - 1) : whole;
    kept = off < 128 ? uint64(whole >> off) : 0;
    kept += rest > half || (rest == half && kept & 1);
  }
  // The exponent is above the significand, whose highest bit adds 1 to it, as a carry does.
  if (last - F::LOWEST > 2048) return typename F::Bits(sign | INFINITE);
  const uint64 bits = kept + (uint64(last - F::LOWEST) << (F::PRECISION - 1));
  return typename F::Bits(sign | (bits < INFINITE ? bits : INFINITE));
}

// ---- By vectors of doubles ---------------------------------------------------------------------

// Whether doubles on the way to a float have no bits below 2^-1074, and infinity if they overflow.
// bfloat16 goes by way of floats, too, whose lowest bit is 2^-149.
template <class Out>
INLINE bool takes_vectors(int64 lowest) {
  return lowest >= (same<Out, bfloat16> ? -149 : -1074) && lowest <= 1023;
}

// Signed integers as doubles, to the nearest.
INLINE Doubles doubles_of(Words r) {
#if defined __AVX2__ && !defined __AVX512BW__
  // Each half of a word is the significand of a double with the right exponent: 2^52 + low half,
  // and 2^84 + 2^63 + high half. The difference is exact, so the sum is rounded once.
  const Words low = (r & 0xffffffff) | 0x4330000000000000, high = r >> 32 ^ 0x4530000080000000;
  return ((Doubles)high - (0x1p84 + 0x1p63 + 0x1p52)) + (Doubles)low;
#else
  return __builtin_convertvector((Register<int64>)r, Doubles);
#endif
}

// Signed integers with at most 53 bits, the last of which is 1 if bits are lost. To round these to
// a narrower float is to round the integers themselves: "rounding to odd" (Boldo and Melquiond,
// 2008).
//   1000...0001, 64 bits: 1000...1, 53 bits
INLINE Words to_odd(Words r) {
  const Words cut = (r & ~0x7ffull) | ((r & 0x7ff) != 0 ? same_words(0x800) : Words{});
  return r + (1ull << 53) > 1ull << 54 ? cut : r;
}

// The leading zeros of each lane; 64 of 0.
INLINE Words leading_zeros(Words r) {
#if defined __AVX512CD__
  return (Words)_mm512_lzcnt_epi64((__m512i)r);
#elif defined __AVX2__
  // The exponent of a double says where the first bit is. Without the bit behind it, what is
  // rounded off never carries to there. Halves become doubles as in `doubles_of`.
  r &= ~(r >> 1);
  const Words low = (r & 0xffffffff) | 0x4330000000000000, high = r >> 32 | 0x4530000000000000;
  const auto number = ((Doubles)high - (0x1p84 + 0x1p52)) + (Doubles)low;
  return r == 0 ? same_words(64) : 1023 + 63 - ((Words)number >> 52);
#else
  Words zeros;
  for (int i = 0; i < LANES<uint64>; ++i) zeros[i] = r[i] ? __builtin_clzll(r[i]) : 64;
  return zeros;
#endif
}

// The sums of a register in a tile, divided by 2^lowest: rounded to double, or, if ODD, to odd.
template <bool ODD, int WORDS>
INLINE Doubles sums_at(const Tile<WORDS>& tile, int i) {
  const Words low = load<Words>(&tile.word[0][i]);
  if constexpr (WORDS == 1) {
    return doubles_of(ODD ? to_odd(low) : low);
  } else {
    // The 64 leading bits, with their sign. The last one is 1 if there are others below. A sum that
    // fits in a word keeps all of its bits.
    const Words high = load<Words>(&tile.word[1][i]);
    const Words sign = (Words)((Register<int64>)high >> 63);
    const Words more = leading_zeros((high << 1 | low >> 63) ^ sign);
    const Words exponent = 64 - more;
    Words leading = up(high, more) | down(low, exponent);
    leading |= up(low, more) != 0 ? same_words(1) : Words{};
    return doubles_of(ODD ? to_odd(leading) : leading) * (Doubles)((exponent + 1023) << 52);
  }
}

// Doubles to floats with at most 24 bits, the last of which is 1 if bits are lost; see `to_odd`.
INLINE void store_odd(float* y, Doubles r) {
  constexpr uint64 LOST = (1ull << 29) - 1;
  const Words bits = (Words)r;
  const Words odd = (bits & ~LOST) | ((bits & LOST) != 0 ? same_words(LOST + 1) : Words{});
  store(y, __builtin_convertvector((Doubles)odd, typename Simd<float, REGISTER / 2>::type));
}

// Round as many sums of a tile as a register has lanes of 4 bytes, from place i on.
template <class Out, int WORDS>
INLINE void round_registers(const Tile<WORDS>& tile, int i, double unit, Out* y) {
  constexpr int L = LANES<uint64>;
  if constexpr (same<Out, double>) {
    store(y, sums_at<false>(tile, i) * unit);
    store(y + L, sums_at<false>(tile, i + L) * unit);
  } else if constexpr (same<Out, float>) {
    using Floats = typename Simd<float, REGISTER / 2>::type;
    store(y, __builtin_convertvector(sums_at<true>(tile, i) * unit, Floats));
    store(y + L, __builtin_convertvector(sums_at<true>(tile, i + L) * unit, Floats));
  } else {
    float floats[2 * L];
    store_odd(floats, sums_at<true>(tile, i) * unit);
    store_odd(floats + L, sums_at<true>(tile, i + L) * unit);
    if constexpr (same<Out, half>)
      to_half(y, load<Register<float>>(floats));
    else
      to_bfloat16(y, load<Register<float>>(floats));
  }
}

// Store `count` sums of a tile as floats.
template <class Out, int WORDS>
NOINLINE void round_tile(const Tile<WORDS>& tile, int64 count, int64 lowest, Out* y) {
  if (!takes_vectors<Out>(lowest)) {
    for (int i = 0; i < count; ++i) {
      const __int128 sum = WORDS == 1 ? __int128(int64(tile.word[0][i])) : __int128(tile.at(i));
      const auto bits = rounded_bits<Out>(sum, lowest);
      memcpy(y + i, &bits, sizeof bits);
    }
    return;
  }
  const double unit = power_of_2(lowest);
  const auto each = [&](auto round_at) {
    int64 i = 0;
    for (; i + ROUNDED_AT_ONCE <= count; i += ROUNDED_AT_ONCE) round_at(int(i), y + i);
    if (i == count) return;
    Out rest[ROUNDED_AT_ONCE];
    round_at(int(i), rest);
    memcpy(y + i, rest, (count - i) * sizeof(Out));
  };
#if defined __AVX512DQ__
  if constexpr (WORDS == 1 && same<Out, float>) {
    if (lowest >= -149 && lowest <= 127) {  // words become floats at once
      const auto scale = _mm256_set1_ps(float(unit));
      return each([&](int i, Out* to) {
        for (int k = 0; k < ROUNDED_AT_ONCE; k += LANES<uint64>) {
          const auto words = load<__m512i>(&tile.word[0][i + k]);
          store(to + k, _mm256_mul_ps(_mm512_cvtepi64_ps(words), scale));
        }
      });
    }
  }
#endif
  each([&](int i, Out* to) { round_registers(tile, i, unit, to); });
}

}  // namespace distscan
