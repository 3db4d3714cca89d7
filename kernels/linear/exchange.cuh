// The node level: the exchange of totals between the GPUs of a node, by one warp of each GPU; or by
// two, of which one sends and one receives.
//
//   level   a part is          its total travels by   who combines
//   node    one GPU's shard    peer memory            a warp of every GPU, for its own shard
//
// Each GPU has an inbox in its own memory, which its peers write: a total needs one trip over the
// link between them. Totals travel in status words (base/status_words.cuh), with the number of the
// exchange in place of an epoch. Each GPU counts its exchanges, and all count alike. So nothing is
// reset between exchanges, and a CUDA graph may launch the kernel again as it is.
//
// A GPU waits for earlier ones alone, so it may run ahead of later ones. An inbox has places for
// DEPTH exchanges. Before a GPU writes its total to a later one, the later one must have taken what
// is in that place: it has noted the number of the exchange in the inbox of the earlier GPU.
//
//   GPU 0 of 3, exchange 5   its total -> place [5 % DEPTH][0] of GPUs 1 and 2
//   GPU 2                    reads [5 % DEPTH][0] and [5 % DEPTH][1]; 5 -> its notes in GPUs 0, 1
#pragma once

#include "offset.cuh"

namespace distscan {

struct Peers {
  Word* const* inboxes;      // [ranks], in the order of the scan: [DEPTH][ranks][SIZE], [ranks]
  unsigned* number;          // [1], of the last exchange; zero before the first
  Word* fault;               // [1], in pinned host memory: see Fault
  unsigned long long limit;  // nanoseconds that a GPU waits for another one
  int rank;                  // this GPU's place in the order of the scan
  int ranks;
};

// Why a GPU has no offset, beside the number of the exchange. Its results are those of
// linear/no_result.cuh then.
enum class Fault : unsigned { NONE, FAILED, LATE };  // cuda/peers.py has the same

template <class Op, class T>
struct Exchange {
  static constexpr int SIZE = Offset<T>::SIZE;  // words: a State, then the value
  static constexpr unsigned DEPTH = 2;          // cuda/peers.py has the same

  Peers peers;
  unsigned number;
  unsigned long long begin = nanoseconds();

  __device__ explicit Exchange(const Peers& peers) : peers(peers), number(*peers.number + 1) {}

  // Exchange the totals, by one whole warp; lane 0 has this GPU's. `failed`: it has none, as its
  // call was refused. Return the offset, seeded with `first`, or the call-off, in all lanes.
  __device__ TilePrefix<T> run(T total, bool failed, Prefix<T> first) const {
    send(total, failed);
    return receive(first, !failed);
  }

  // Send this GPU's total, which lane 0 has, to all later GPUs; by one whole warp. All warps that
  // take part in this exchange have begun: the next one is another.
  __device__ void send(T total, bool failed = false) const {
    Words<T> own;
    own.word[WORDS<T> - 1] = 0;
    own.value = broadcast(total, 0);
    for (int rank = peers.rank + 1 + lane_index(); rank < peers.ranks; rank += LANES) {
      // A GPU that does not take totals any more is passed over: it ends with a fault of its own.
      if (!wait([=] { return has_taken(rank); })) continue;
      store(place(rank, peers.rank), failed ? State::CALLED_OFF : State::SOMETHING, own, number);
    }
    if (lane_index() == 0) *peers.number = number;
  }

  // Combine the totals of all earlier GPUs in the order of the scan, behind `first`; by one whole
  // warp. Return the combination, or the call-off, in all lanes. The host notes a fault, unless its
  // own call was refused.
  __device__ TilePrefix<T> receive(Prefix<T> first, bool notes_fault = true) const {
    Fault fault = Fault::NONE;
    Prefix<T> before = first;
    for (int base = 0; base < peers.rank; base += LANES) {
      const int rank = base + lane_index();
      Words<T> words{};
      State state = State::NOTHING;
      if (rank < peers.rank) {
        const Word* const from = place(peers.rank, rank);
        state = State::CALLED_OFF;
        Fault reason = Fault::FAILED;
        for (int w = SIZE - 1; w >= 0; --w) {
          Word word = 0;
          if (!wait([&] { return epoch_of(word = load_word(from + w)) == number; })) {
            reason = Fault::LATE;
            break;
          }
          if (w > 0)
            words.word[w - 1] = static_cast<unsigned>(word);
          else
            state = static_cast<State>(static_cast<unsigned>(word));
        }
        if (state == State::CALLED_OFF) fault = reason;
        store_word(note(rank, peers.rank), number);
      }
      for (int lane = 0; lane < LANES && base + lane < peers.rank; ++lane)
        before = join<Op>(before, broadcast(words.value, lane));
    }
    for (int distance = LANES / 2; distance > 0; distance /= 2) {
      const unsigned other = __shfl_xor_sync(EVERY_LANE, static_cast<unsigned>(fault), distance);
      if (other > static_cast<unsigned>(fault)) fault = static_cast<Fault>(other);
    }
    if (notes_fault && fault != Fault::NONE && lane_index() == 0)
      store_word(peers.fault, static_cast<Word>(number) << 32 | static_cast<unsigned>(fault));
    return TilePrefix<T>::of(before, fault != Fault::NONE);
  }

  // Pass the offset on to other warps of this GPU, beside `epoch`; by one lane.
  __device__ static void pass_on(const TilePrefix<T>& found, Word* offset /* [SIZE] */,
                                 unsigned epoch) {
    Words<T> words;
    words.word[WORDS<T> - 1] = 0;
    words.value = found.value;
    store(offset, found.state, words, epoch);
  }

 private:
  // Where GPU `of` reads the total of GPU `from`.
  __device__ Word* place(int of, int from) const {
    return peers.inboxes[of] + ((number % DEPTH) * peers.ranks + from) * SIZE;
  }
  // Where GPU `of` reads which totals of its own GPU `by` has taken.
  __device__ Word* note(int of, int by) const {
    return peers.inboxes[of] + DEPTH * peers.ranks * SIZE + by;
  }
  // Whether GPU `rank` has taken the total that is in the place of this exchange's.
  __device__ bool has_taken(int rank) const {
    const auto taken = static_cast<unsigned>(load_word(note(peers.rank, rank)));
    return static_cast<int>(taken + DEPTH - number) >= 0;
  }

  __device__ static void store(Word* to /* [SIZE] */, State state, const Words<T>& value,
                               unsigned epoch) {
    for (int w = 0; w < SIZE; ++w) {
      const unsigned half = w == 0 ? static_cast<unsigned>(state) : value.word[w - 1];
      store_word(to + w, static_cast<Word>(epoch) << 32 | half);
    }
  }
  __device__ static Word load_word(const Word* at) {
    Word word;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
  }

  // Wait until ready(), by each lane for itself; return false if the time is up.
  template <class Ready>
  __device__ bool wait(const Ready& ready) const {
    for (int looks = 0; !ready(); ++looks) {
      if (looks > 64) {  // some microseconds: the other GPU is late
        if (nanoseconds() - begin > peers.limit) return false;
        __nanosleep(looks < 4096 ? 200 : 10'000);
      }
    }
    return true;
  }
};

}  // namespace distscan
