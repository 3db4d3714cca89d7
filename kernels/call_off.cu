// The kernel that takes part in an exchange of totals without one: this GPU's call was refused.
#include "config.cuh"
#include "linear/exchange.cuh"

namespace distscan {

DISTSCAN_KERNEL(LANES, 1)
distscan_call_off(Peers peers) { Exchange<Op, T>(peers).run(T{}, true, Prefix<T>{}); }

}  // namespace distscan
