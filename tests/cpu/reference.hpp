// The scans that kernels are compared with: one element after the other.
#pragma once

#include <vector>

#include "numbers.hpp"

enum class Op { SUM, PROD, MAX, MIN, AND, OR, XOR };

// By the names of operators; sums of bool, whose running values are bool, are ORs, and so on.
inline Op op_of(const char* name, bool bools) {
  const char* const last = std::strchr(name, '_');  // of bitwise_and, logical_and, ...
  if (last) return is(last, "_and") ? Op::AND : is(last, "_or") ? Op::OR : Op::XOR;
  if (is(name, "sum")) return bools ? Op::OR : Op::SUM;
  if (is(name, "prod")) return bools ? Op::AND : Op::PROD;
  if (is(name, "max")) return bools ? Op::OR : Op::MAX;
  return bools ? Op::AND : Op::MIN;
}

template <class A>
A combine(Op op, A a, A b) {
  if constexpr (sizeof(distscan::Lane<A>) < sizeof(A)) {
    if (op == Op::SUM) return {a.re + b.re, a.im + b.im};
    if (op == Op::PROD) return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    if (a.re != a.re || a.im != a.im) return a;
    if (b.re != b.re || b.im != b.im) return b;
    const bool less = a.re < b.re || (a.re == b.re && a.im < b.im);
    return less == (op == Op::MAX) ? b : a;
  } else if constexpr (distscan::is_integer<A>) {
    switch (op) {
      case Op::SUM:
        return A(uint64_t(a) + uint64_t(b));
      case Op::PROD:
        return A(uint64_t(a) * uint64_t(b));
      case Op::MAX:
        return a < b ? b : a;
      case Op::MIN:
        return a < b ? a : b;
      case Op::AND:
        return A(a & b);
      case Op::OR:
        return A(a | b);
      default:
        return A(a ^ b);
    }
  } else {
    if (op == Op::SUM) return a + b;
    if (op == Op::PROD) return a * b;
    if (a != a) return a;
    if (b != b) return b;
    return (a < b) == (op == Op::MAX) ? b : a;
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

// The results of a line; `total` gets all of it, or all from the last head on. `numbers` combine
// running values.
template <class Numbers, class A = typename Numbers::A>
std::vector<A> scan(const Numbers& numbers, const Line<A>& line, bool exclusive, A* total) {
  std::vector<A> y(line.x.size());
  const A* before = line.before;
  A running{};
  for (size_t i = 0; i < y.size(); ++i) {
    if (!line.heads.empty() && line.heads[i]) before = line.first;
    if (exclusive) y[i] = *before;
    running = before ? numbers.combine(*before, line.x[i]) : line.x[i];
    before = &running;
    if (!exclusive) y[i] = running;
  }
  *total = running;
  return y;
}
