// What is compiled for keys: a table, which Python reads.
#pragma once

#include "job.hpp"

namespace distscan {

// The heads among keys of one type, named as in NumPy.
struct Keys {
  const char* type;
  FindHeads* find;
};

}  // namespace distscan
