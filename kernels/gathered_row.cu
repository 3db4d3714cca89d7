// The kernel that finds this GPU's row of offsets among the rows of totals of all GPUs, which NCCL
// has gathered. It is for an axis that is not the last.
//
//   level     a part is            its total travels by   who combines
//   cluster   one GPU's columns    NCCL                   a thread for each column
#include "config.cuh"
#include "linear/exchange.cuh"

namespace distscan {

// Launch: a thread for each column. `place` GPUs come before this one in the order of the scan. The
// row of a GPU lies in `pitch` words, of which the last is not 0 if its call was refused.
// sum, ranks 3, place 2, rows [1 2], [3 4], [5 6], first 10: offset [14 16]; REVERSE: [10 10]
DISTSCAN_KERNEL(DISTSCAN_THREADS, 1)
distscan_gathered_row(const Word* gathered /* [ranks][pitch] */, int64 pitch, int64 inner,
                      int ranks, int place, Word* fault /* [1], in pinned host memory */, T first,
                      bool has_first, T* offset /* [inner] */, unsigned* called_off /* [1] */) {
  const int64 i = static_cast<int64>(blockIdx.x) * DISTSCAN_THREADS + threadIdx.x;
  bool refused = false;
  Prefix<T> before;
  for (int at = 0; at < place; ++at) {
    const Word* const row = gathered + (REVERSE ? ranks - 1 - at : at) * pitch;
    refused = refused || row[pitch - 1] != 0;
    if (i < inner) before = join<Op>(before, reinterpret_cast<const T*>(row)[i]);
  }
  if (before.some) offset[i] = join<Op>(Prefix<T>{first, has_first}, before.value).value;
  if (i > 0) return;
  if (refused) store_word(fault, static_cast<Word>(Fault::FAILED));
  *called_off = refused;
}

}  // namespace distscan
