// Maxima; NaN stays.
#include "complex_order.hpp"
#include "table.hpp"

using namespace distscan;

DISTSCAN_TABLE(max) = {
    kernel<Max<int8>>("max", "int8"),
    kernel<Max<uint8>>("max", "uint8"),
    kernel<Max<short>>("max", "int16"),
    kernel<Max<uint16>>("max", "uint16"),
    kernel<Max<int>>("max", "int32"),
    kernel<Max<unsigned>>("max", "uint32"),
    kernel<Max<int64>>("max", "int64"),
    kernel<Max<uint64>>("max", "uint64"),
    kernel<Max<float>>("max", "float32"),
    kernel<Max<double>>("max", "float64"),
    kernel<Max<complex<float>>>("max", "complex64"),
    kernel<Max<complex<double>>>("max", "complex128"),
    kernel<Max<float>, half, half>("max", "float16", "float32", "float16"),
    kernel<Max<float>, bfloat16, bfloat16>("max", "bfloat16", "float32", "bfloat16"),
    {},
};
