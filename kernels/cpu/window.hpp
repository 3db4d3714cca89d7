// What is compiled for windows: a table, which Python reads.
#pragma once

#include "vector.hpp"

namespace distscan {

// What is found: every element that is finite and not 0 is a multiple of 2^low and below 2^high.
// Without such elements, low = high = 0. A copy is in distscan/cpu/reductions.py.
struct Found {
  int64 low, high, special;
};
// Bits of `special`, as in distscan/fsum/special.py: there is a -0.0, an infinity, a NaN.
constexpr int64 MINUS_ZERO = 1, PLUS = 4, MINUS = 8, NOT_A_NUMBER = 16;

// The function that finds the window of elements of one type, named as in NumPy.
struct Window {
  const char* type;
  void (*find)(const void* x, int64 count, Found& found);
};

}  // namespace distscan
