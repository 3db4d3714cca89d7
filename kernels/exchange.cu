// The kernel that takes part in an exchange of totals without one: this GPU's call was refused.
#include "config.cuh"
#include "linear/exchange.cuh"

namespace distscan {

DISTSCAN_KERNEL(LANES, 1)
distscan_exchange(Peers peers, T first, bool has_first, Word* offset, unsigned epoch) {
  Exchange<Op, T>(peers).run(T{}, true, Prefix<T>{first, has_first}, offset, epoch);
}

}  // namespace distscan
