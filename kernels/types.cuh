// The element types, without any header: NVRTC compiles these files as they stand.
#pragma once

namespace distscan {

using int64 = long long;

template <class A, class B>
inline constexpr bool same = false;
template <class A>
inline constexpr bool same<A, A> = true;

// bool counts as an integer: true + true is true.
template <class T>
inline constexpr bool is_integer =
    same<T, bool> || same<T, signed char> || same<T, unsigned char> || same<T, short> ||
    same<T, unsigned short> || same<T, int> || same<T, unsigned> || same<T, int64> ||
    same<T, unsigned long long>;

template <bool FIRST, class A, class B>
struct Choose {
  using type = A;
};
template <class A, class B>
struct Choose<false, A, B> {
  using type = B;
};

__device__ constexpr int larger(int a, int b) { return a > b ? a : b; }

// How many elements of the widest of some types fill a 16-byte vector.
// items_per_vector<signed char, int>() == 4; no type has less than one.
template <class... Types>
__device__ constexpr int items_per_vector() {
  int widest = 1;
  ((widest = larger(widest, sizeof(Types))), ...);
  return larger(16 / widest, 1);
}

// IEEE half precision in memory; arithmetic is done in float.
struct half {
  unsigned short bits;
};

template <class Real>
struct complex {
  Real re, im;
};

template <class Real>
__device__ complex<Real> operator+(complex<Real> a, complex<Real> b) {
  return {a.re + b.re, a.im + b.im};
}

// (1 + 2i) * (3 + 4i) = -5 + 10i, by the textbook rule, as NumPy does.
template <class Real>
__device__ complex<Real> operator*(complex<Real> a, complex<Real> b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

// ---- Conversion ----------------------------------------------------------------------------

// convert<To>(from) is C's cast, and for half and complex what NumPy's astype does:
// convert<half>(1.0f).bits == 0x3c00, convert<float>(complex<float>{1, 2}) == 1.
template <class To, class From>
struct Convert {
  __device__ static To apply(From from) { return static_cast<To>(from); }
};
template <class From>
struct Convert<half, From> {
  __device__ static half apply(From from) {
    half to;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(Convert<float, From>::apply(from)));
    return to;
  }
};
template <class To>
struct Convert<To, half> {
  __device__ static To apply(half from) {
    float to;
    asm("cvt.f32.f16 %0, %1;" : "=f"(to) : "h"(from.bits));
    return Convert<To, float>::apply(to);
  }
};
template <class Real, class From>
struct Convert<complex<Real>, From> {
  __device__ static complex<Real> apply(From from) {
    return {Convert<Real, From>::apply(from), Real(0)};
  }
};
template <class To, class Real>
struct Convert<To, complex<Real>> {
  __device__ static To apply(complex<Real> from) { return Convert<To, Real>::apply(from.re); }
};
template <class Real>
struct Convert<bool, complex<Real>> {
  __device__ static bool apply(complex<Real> from) { return from.re != 0 || from.im != 0; }
};
template <class To, class From>
struct Convert<complex<To>, complex<From>> {
  __device__ static complex<To> apply(complex<From> from) {
    return {static_cast<To>(from.re), static_cast<To>(from.im)};
  }
};
// Straight from double: by way of float it would round twice.
template <>
struct Convert<half, double> {
  __device__ static half apply(double from) {
    half to;
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(to.bits) : "d"(from));
    return to;
  }
};
// Those below settle which of the above applies where both would.
template <>
struct Convert<half, half> {
  __device__ static half apply(half from) { return from; }
};
template <class Real>
struct Convert<half, complex<Real>> {
  __device__ static half apply(complex<Real> from) { return Convert<half, Real>::apply(from.re); }
};
template <class Real>
struct Convert<complex<Real>, half> {
  __device__ static complex<Real> apply(half from) {
    return {Convert<Real, half>::apply(from), Real(0)};
  }
};

template <class To, class From>
__device__ To convert(From from) {
  return Convert<To, From>::apply(from);
}

}  // namespace distscan
