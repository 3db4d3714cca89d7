// What is compiled: each file has a table of its kernels, which Python reads.
#pragma once

#include "columns.hpp"
#include "rows.hpp"

namespace distscan {

// Kernels for one operator and three types, named as in NumPy.
struct Kernel {
  const char *op, *x, *acc, *out;
  void (*scan)(Job&);
  void (*reduce)(Job&);
  void (*scan_columns)(Job&);
  void (*reduce_columns)(Job&);
  void (*total)(Job&);
  void (*seed)(Job&);
};

template <class Op, class X, class Out>
constexpr Kernel kernel(const char* op, const char* x, const char* acc, const char* out) {
  using R = Rows<Op, X, Out>;
  using C = Columns<Op, X, Out>;
  using T = Chain<Op>;
  return {op, x, acc, out, R::scan, R::reduce, C::scan, C::reduce, T::total, T::seed};
}

// A kernel whose input and result have the type that accumulates.
template <class Op>
constexpr Kernel kernel(const char* op, const char* type) {
  return kernel<Op, typename Op::E, typename Op::E>(op, type, type, type);
}

using int8 = signed char;
using uint8 = unsigned char;
using uint16 = unsigned short;

}  // namespace distscan

// A table ends with an empty line.
#define DISTSCAN_TABLE(name) \
  extern "C" __attribute__((visibility("default"))) const distscan::Kernel distscan_##name[]
