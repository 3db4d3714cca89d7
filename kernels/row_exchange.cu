// The kernel that exchanges a row of totals, of an axis that is not the last, with the other GPUs
// of the node. A thread takes every THREADS-th column, and combines it for itself.
//
//   level   a part is               its total travels by   who combines
//   node    one GPU's columns       peer memory            a thread for each column
#include "config.cuh"
#include "linear/exchange.cuh"

namespace distscan {

// Launch: one block. A place of an inbox has a State, then the words of all columns:
// [WORDS][inner]. sum, GPUs 0 to 2 with rows [1 2], [3 4], [5 6], first 10: offsets [10 10], [11
// 12], [14 16]
DISTSCAN_KERNEL(DISTSCAN_THREADS, 1)
distscan_row_exchange(const T* total /* [inner] */, int64 inner, Peers peers, T first,
                      bool has_first, T* offset /* [inner] */, unsigned* called_off /* [1] */) {
  const Inboxes inboxes(peers);
  __syncthreads();  // all have read the number

  // ---- 1. the row, to all later GPUs ------------------------------------------------------------
  for (int rank = peers.rank + 1; rank < peers.ranks; ++rank) {
    if (!__syncthreads_and(inboxes.wait_for_place(rank))) continue;
    Word* const to = inboxes.place(rank, peers.rank);
    for (int64 i = threadIdx.x; i < inner; i += DISTSCAN_THREADS) {
      Words<T> words;
      words.word[WORDS<T> - 1] = 0;
      words.value = total[i];
      for (int w = 0; w < WORDS<T>; ++w) inboxes.store(to + 1 + w * inner + i, words.word[w]);
    }
    if (threadIdx.x == 0) inboxes.store(to, static_cast<unsigned>(State::SOMETHING));
  }

  // ---- 2. the rows of all earlier GPUs, in their order -------------------------------------
  Fault fault = Fault::NONE;
  for (int rank = 0; rank < peers.rank && fault == Fault::NONE; ++rank)
    fault = inboxes.wait_for_state(rank);
  for (int64 i = threadIdx.x; i < inner; i += DISTSCAN_THREADS) {
    Prefix<T> before;
    for (int rank = 0; rank < peers.rank && fault == Fault::NONE; ++rank) {
      const Word* const from = inboxes.place(peers.rank, rank) + 1 + i;
      Words<T> words{};
      for (int w = 0; w < WORDS<T>; ++w)
        if (!inboxes.wait_for(from + w * inner, words.word[w])) fault = Fault::LATE;
      before = join<Op>(before, words.value);
    }
    if (before.some) offset[i] = join<Op>(Prefix<T>{first, has_first}, before.value).value;
  }

  // ---- 3. what other GPUs and the host learn ----------------------------------------------------
  const bool late = __syncthreads_or(fault == Fault::LATE);
  const bool failed = __syncthreads_or(fault == Fault::FAILED);
  for (int rank = threadIdx.x; rank < peers.rank; rank += DISTSCAN_THREADS)
    inboxes.note_taken(rank);
  if (threadIdx.x > 0) return;
  if (late || failed) inboxes.report(late ? Fault::LATE : Fault::FAILED);
  *called_off = late || failed;
  inboxes.count();
}

}  // namespace distscan
