// Numbers of every type: random ones, and conversions one by one, written apart from the kernels'.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "../../kernels/cpu/table.hpp"

using distscan::complex;

inline bool is(const char* a, const char* b) { return std::strcmp(a, b) == 0; }

// splitmix64 (Steele, Lea, Flood 2014): the same numbers on every machine.
struct Random {
  uint64_t state;
  uint64_t bits() {
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  int64_t below(int64_t n) { return int64_t(bits() % uint64_t(n)); }
  bool chance(double p) { return double(bits() >> 11) * 0x1p-53 < p; }
  double symmetric() { return double(bits() >> 11) * 0x1p-52 - 1; }  // in [-1, 1)
};

inline float float_of_half(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float value = exponent == 0 ? std::ldexp(float(fraction), -24)
                              : std::ldexp(float(1024 + fraction), exponent - 25);
  if (exponent == 31) value = fraction ? NAN : INFINITY;
  return bits & 0x8000 ? -value : value;
}

// To the nearest, ties to even.
inline uint16_t half_of_float(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return 0x7e00;
  const double size = std::fabs(double(value));
  if (size >= 65520) return sign | 0x7c00;
  int exponent = -13;
  if (size >= 0x1p-14) std::frexp(size, &exponent);  // size = f 2^exponent, f in [1/2, 1)
  const int last = exponent - 11;                    // the last bit is worth 2^last
  const auto count = uint16_t(std::nearbyint(std::ldexp(size, -last)));
  // `count` has the hidden bit, unless the number is subnormal; a carry goes to the exponent.
  return sign | uint16_t(((last + 24) << 10) + count);
}

inline float float_of_bfloat16(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

inline uint16_t bfloat16_of_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (std::isnan(value)) return 0x7fc0;
  const uint32_t below = bits & 0xffff, odd = bits >> 16 & 1;
  return uint16_t((bits >> 16) + (below > 0x8000 || (below == 0x8000 && odd)));
}

// The types of elements, in the order of NAMES.
enum class Type {
  BOOL,
  INT8,
  UINT8,
  INT16,
  UINT16,
  INT32,
  UINT32,
  INT64,
  UINT64,
  FLOAT16,
  BFLOAT16,
  FLOAT32,
  FLOAT64,
  COMPLEX64,
  COMPLEX128
};

inline Type type_of(const char* name) {
  static const char* const NAMES[] = {"bool",     "int8",    "uint8",   "int16",     "uint16",
                                      "int32",    "uint32",  "int64",   "uint64",    "float16",
                                      "bfloat16", "float32", "float64", "complex64", "complex128"};
  int i = 0;
  while (!is(name, NAMES[i])) ++i;
  return Type(i);
}

inline int size_of(Type type) {
  const int sizes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16};
  return sizes[int(type)];
}

template <class T>
T raw(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// The element at an address, as a running value A.
template <class A>
A element(Type type, const void* at) {
  if constexpr (sizeof(distscan::Lane<A>) == sizeof(A)) {
    switch (type) {
      case Type::BOOL:
        return A(raw<uint8_t>(at) != 0);
      case Type::INT8:
        return A(raw<int8_t>(at));
      case Type::UINT8:
        return A(raw<uint8_t>(at));
      case Type::INT16:
        return A(raw<int16_t>(at));
      case Type::UINT16:
        return A(raw<uint16_t>(at));
      case Type::INT32:
        return A(raw<int32_t>(at));
      case Type::UINT32:
        return A(raw<uint32_t>(at));
      case Type::FLOAT16:
        return A(float_of_half(raw<uint16_t>(at)));
      case Type::BFLOAT16:
        return A(float_of_bfloat16(raw<uint16_t>(at)));
      case Type::FLOAT32:
        return A(raw<float>(at));
      default:
        break;
    }
  }
  return raw<A>(at);
}

// A running value, rounded to the type of results.
template <class A>
void put(Type type, A value, void* at) {
  if constexpr (distscan::same<A, float>) {
    const uint16_t bits = type == Type::FLOAT16 ? half_of_float(value) : bfloat16_of_float(value);
    if (size_of(type) == 2) return void(std::memcpy(at, &bits, 2));
  }
  if constexpr (distscan::same<A, double>) {
    const float narrow = float(value);
    if (size_of(type) == 4) return void(std::memcpy(at, &narrow, 4));
  }
  std::memcpy(at, &value, sizeof value);
}
