// The kernel that takes part in an exchange of totals without one: this GPU's call was refused.
#include "linear/exchange.cuh"

namespace distscan {

extern "C" __global__ void __launch_bounds__(LANES, 1) distscan_call_off(Peers peers) {
  Inboxes(peers).call_off();
}

}  // namespace distscan
