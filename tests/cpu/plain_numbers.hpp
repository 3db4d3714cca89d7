// The numbers of kernels for operators of NumPy.
#pragma once

#include <cfloat>
#include <cstdio>

#include "case.hpp"

// Of running values of type T.
template <class T>
class PlainNumbers {
 public:
  using A = T;
  static constexpr bool INTEGER = distscan::is_integer<A>;

  explicit PlainNumbers(const distscan::Kernel& kernel)
      : op_(op_of(kernel.op, is(kernel.acc, "bool"))),
        x_(type_of(kernel.x)),
        out_(type_of(kernel.out)) {}

  // Begin a job; return its `lowest`.
  int64_t begin(Random&, const Case&) { return 0; }

  // Element i of a line.
  void fill(Random& random, const Case& c, int64_t i, void* at) const {
    if constexpr (distscan::is_integer<A>) {
      uint64_t bits = random.bits();
      if (x_ == Type::BOOL) bits = random.chance(0.3) ? 1 + bits % 255 : 0;
      std::memcpy(at, &bits, size_of(x_));
    } else {
      double parts[2];
      for (double& part : parts) part = c.exact ? double(random.below(17) - 8) : random.symmetric();
      if (op_ == Op::PROD && c.exact) {  // 2, 1/2, 2, 1/2, ... of either sign, some imaginary
        parts[0] = (random.chance(0.5) ? -1 : 1) * (i % 2 ? 0.5 : 2), parts[1] = 0;
        if (COMPLEX && random.chance(0.5)) parts[1] = parts[0], parts[0] = 0;
      } else if (op_ == Op::PROD) {
        parts[0] = 1 + parts[0] / 4096, parts[1] /= 4096;
      } else if (op_ != Op::SUM && random.chance(0.0005)) {
        parts[0] = NAN;
      }
      if constexpr (COMPLEX)
        put(x_, A{Real(parts[0]), Real(parts[1])}, at);
      else
        put(x_, A(parts[0]), at);
    }
  }

  A element(const void* at) const { return ::element<A>(x_, at); }
  A combine(const A& a, const A& b) const { return ::combine(op_, a, b); }

  // A result in memory, and what a running value is as a result.
  A result(const void* at) const { return ::element<A>(out_, at); }
  A rounded(const A& value) const {
    unsigned char memory[sizeof(A)];
    put(out_, value, memory);
    return result(memory);
  }

  static bool is_nan(const A& a) {
    if constexpr (COMPLEX)
      return a.re != a.re || a.im != a.im;
    else
      return a != a;
  }

  // Rounded sums and products may differ by as much as their chains of roundings.
  bool same(const Case& c, const A& a, const A& b) const {
    if constexpr (INTEGER) return a == b;
    if (is_nan(a) || is_nan(b)) return is_nan(a) && is_nan(b);
    if (c.exact || op_ == Op::MAX || op_ == Op::MIN)
      return part(a, 0) == part(b, 0) && part(a, 1) == part(b, 1);
    const double unit = sizeof(distscan::Lane<A>) == 8 ? DBL_EPSILON : FLT_EPSILON;
    const double result = out_ == Type::BFLOAT16  ? 0x1p-7
                          : out_ == Type::FLOAT16 ? 0x1p-10
                          : out_ == Type::FLOAT32 ? FLT_EPSILON
                                                  : 0;
    for (int i = 0; i < 2; ++i) {
      const double sizes = 1 + std::fabs(part(b, 0)) + std::fabs(part(b, 1));
      const double bound = 4 * unit * double(c.n + 2) * sizes + result * std::fabs(part(b, i));
      if (!(std::fabs(part(a, i) - part(b, i)) <= bound)) return false;
    }
    return true;
  }

  static void print(const A& got, const A& want) {
    std::printf("%.17g %.17g, not %.17g %.17g\n", part(got, 0), part(got, 1), part(want, 0),
                part(want, 1));
  }

 private:
  using Real = distscan::Lane<A>;
  static constexpr bool COMPLEX = sizeof(Real) < sizeof(A);

  static double part(const A& a, int i) {
    if constexpr (COMPLEX)
      return i ? a.im : a.re;
    else
      return i ? 0 : double(a);
  }

  const Op op_;
  const Type x_, out_;
};
