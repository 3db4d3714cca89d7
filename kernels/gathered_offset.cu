// The kernel that finds this GPU's offset among the totals of all GPUs, which NCCL has gathered.
// If it has none, because the call of an earlier GPU was refused, the kernel fills the results in
// place of the scan.
//
//   level     a part is         its total travels by   who combines
//   cluster   one GPU's shard   NCCL                   a warp of every GPU, for its own shard
#include "linear/message.cuh"
#include "linear/no_result.cuh"
#include "source.cuh"

namespace distscan {

// The total of GPU `rank`; `refused` if the word after it says so.
template <class T>
__device__ T gathered_total(const Word* gathered /* [ranks][WORDS + 1] */, int rank,
                            bool& refused) {
  const Word* const from = gathered + rank * (WORDS<T> + 1);
  Words<T> words;
  for (int w = 0; w < WORDS<T>; ++w) words.word[w] = static_cast<unsigned>(from[w]);
  refused = refused || from[WORDS<T>] != 0;
  return words.value;
}

// Launch: one block. `place` GPUs come before this one in the order of the scan.
// sum, ranks 4, place 2, totals [5 1 7 3], first 10: offset 16; REVERSE: 20
DISTSCAN_KERNEL(DISTSCAN_THREADS, 1)
distscan_gathered_offset(const Word* gathered /* [ranks][WORDS + 1] */, int ranks, int place,
                         Word* fault /* [1], in pinned host memory */, Output y /* [n] */, int64 n,
                         T first, bool has_first, Word* offset /* [1 + WORDS] */, unsigned epoch) {
  using Message = distscan::Message<Source, Op, T>;
  using Value = typename Message::Value;
  __shared__ bool called_off;
  const auto rank_at = [=](int at) { return REVERSE ? ranks - 1 - at : at; };

  // ---- 1. the totals of all earlier GPUs, 32 at a time ----------------------------------------
  if (warp_index() == 0) {
    Prefix<Value> before;
    bool refused = false;
    for (int base = 0; base < place; base += LANES) {
      const int at = base + lane_index();
      Value total{};
      if (at < place) total = gathered_total<Value>(gathered, rank_at(at), refused);
      const Value all = broadcast(warp_reduce<typename Message::Op>(total, place - base), 0);
      before = join<typename Message::Op>(before, all);
    }
    refused = __any_sync(EVERY_LANE, refused);

    // ---- 2. the offset, for the scan ----------------------------------------------------------
    if (lane_index() == 0) {
      bool own_refused = false;  // it is not: this kernel is of a call
      const auto own = gathered_total<Value>(gathered, rank_at(place), own_refused);
      pass_on(
          Message::offset(TilePrefix<Value>::of(before, refused), Prefix<T>{first, has_first}, own),
          offset, epoch);
      if (refused) store_word(fault, static_cast<Word>(Fault::FAILED));
      called_off = refused;
    }
  }
  __syncthreads();
  if (called_off) fill_without_result(y, n);
}

}  // namespace distscan
