// The scans that kernels are compared with: one element after the other.
#pragma once

#include <vector>

#include "numbers.hpp"

// Unsigned, as integers wrap; of bool, the numbers 0 and 1.
template <class A>
A combine(const char* op, bool bools, A a, A b) {
  const bool is_sum = is(op, "sum"), is_max = is(op, "max");
  if constexpr (sizeof(distscan::Lane<A>) < sizeof(A)) {
    if (is_sum) return {a.re + b.re, a.im + b.im};
    if (is(op, "prod")) return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    if (a.re != a.re || a.im != a.im) return a;
    if (b.re != b.re || b.im != b.im) return b;
    const bool less = a.re < b.re || (a.re == b.re && a.im < b.im);
    return less == is_max ? b : a;
  } else {
    if (std::strncmp(op, "bitwise", 7) == 0 || std::strncmp(op, "logical", 7) == 0 || bools) {
      if constexpr (distscan::is_integer<A>) {
        if (is(op + 7, "_and") || is(op, "min") || is(op, "prod")) return A(a & b);
        if (is(op + 7, "_or") || is_max || is_sum) return A(a | b);
        return A(a ^ b);
      }
    }
    if (is_sum || is(op, "prod")) {
      if constexpr (distscan::is_integer<A>)
        return A(is_sum ? uint64_t(a) + uint64_t(b) : uint64_t(a) * uint64_t(b));
      return is_sum ? a + b : a * b;
    }
    if (a != a) return a;
    if (b != b) return b;
    return (a < b) == is_max ? b : a;
  }
}

// One line of elements, in the order of the scan.
template <class A>
struct Line {
  std::vector<A> x;
  std::vector<bool> heads;  // empty: no segments
  const A* before;          // null: nothing
  const A* first;           // before each segment; null: nothing
};

// The results of a line; `total` gets all of it, or all from the last head on.
template <class A>
std::vector<A> scan(const char* op, bool bools, const Line<A>& line, bool exclusive, A* total) {
  std::vector<A> y(line.x.size());
  const A* before = line.before;
  A running{};
  for (size_t i = 0; i < y.size(); ++i) {
    if (!line.heads.empty() && line.heads[i]) before = line.first;
    if (exclusive) y[i] = *before;
    running = before ? combine(op, bools, *before, line.x[i]) : line.x[i];
    before = &running;
    if (!exclusive) y[i] = running;
  }
  *total = running;
  return y;
}
