// The kernel that finds this GPU's offset among the totals of all GPUs, which NCCL has gathered.
// If it has none, because the call of an earlier GPU was refused, the kernel fills the results in
// place of the scan.
//
//   level     a part is         its total travels by   who combines
//   cluster   one GPU's shard   NCCL                   a warp of every GPU, for its own shard
#include "config.cuh"
#include "linear/exchange.cuh"
#include "linear/no_result.cuh"

namespace distscan {

// Launch: one block. `place` GPUs come before this one in the order of the scan. A GPU whose call
// was refused has words of epoch 0, which no launch has.
// sum, ranks 4, place 2, totals [5 1 7 3], first 10: offset 16; REVERSE: 20
DISTSCAN_KERNEL(DISTSCAN_THREADS, 1)
distscan_gathered_offset(const Word* gathered /* [ranks][WORDS] */, int ranks, int place,
                         Word* fault /* [1], in pinned host memory */, Output y /* [n] */, int64 n,
                         T first, bool has_first, Word* offset /* [1 + WORDS] */, unsigned epoch) {
  __shared__ bool called_off;

  // ---- 1. the totals of all earlier GPUs, 32 at a time ----------------------------------------
  if (warp_index() == 0) {
    Prefix<T> before{first, has_first};
    bool refused = false;
    for (int base = 0; base < place; base += LANES) {
      const int at = base + lane_index(), rank = REVERSE ? ranks - 1 - at : at;
      Words<T> words{};
      for (int w = 0; w < WORDS<T> && at < place; ++w) {
        const Word word = gathered[rank * WORDS<T> + w];
        refused = refused || epoch_of(word) == 0;
        words.word[w] = static_cast<unsigned>(word);
      }
      before = join<Op>(before, broadcast(warp_reduce<Op>(words.value, place - base), 0));
    }
    refused = __any_sync(EVERY_LANE, refused);

    // ---- 2. the offset, for the scan ----------------------------------------------------------
    if (lane_index() == 0) {
      Exchange<Op, T>::pass_on(TilePrefix<T>::of(before, refused), offset, epoch);
      if (refused) store_word(fault, static_cast<Word>(Fault::FAILED));
      called_off = refused;
    }
  }
  __syncthreads();
  if (called_off) fill_without_result(y, n);
}

}  // namespace distscan
