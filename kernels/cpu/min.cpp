// Minima; NaN stays.
#include "complex_order.hpp"
#include "table.hpp"

using namespace distscan;

DISTSCAN_TABLE(min) = {
    kernel<Min<int8>>("min", "int8"),
    kernel<Min<uint8>>("min", "uint8"),
    kernel<Min<short>>("min", "int16"),
    kernel<Min<uint16>>("min", "uint16"),
    kernel<Min<int>>("min", "int32"),
    kernel<Min<unsigned>>("min", "uint32"),
    kernel<Min<int64>>("min", "int64"),
    kernel<Min<uint64>>("min", "uint64"),
    kernel<Min<float>>("min", "float32"),
    kernel<Min<double>>("min", "float64"),
    kernel<Min<complex<float>>>("min", "complex64"),
    kernel<Min<complex<double>>>("min", "complex128"),
    kernel<Min<float>, half, half>("min", "float16", "float32", "float16"),
    kernel<Min<float>, bfloat16, bfloat16>("min", "bfloat16", "float32", "bfloat16"),
    {},
};
