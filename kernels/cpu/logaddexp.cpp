// Logarithms of sums of exponentials.
#include "log_add_exp.hpp"
#include "table.hpp"

using namespace distscan;

DISTSCAN_TABLE(logaddexp) = {
    kernel<LogAddExp<float>>("logaddexp", "float32"),
    kernel<LogAddExp<double>>("logaddexp", "float64"),
    {},
};
