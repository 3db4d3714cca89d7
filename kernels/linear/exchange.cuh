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
  Word* const* inboxes;      // [ranks], in the order of the scan: [DEPTH][ranks][size], [ranks]
  unsigned* number;          // [1], of the last exchange; zero before the first
  Word* fault;               // [1], in pinned host memory: see Fault
  unsigned long long limit;  // nanoseconds that a GPU waits for another one
  int rank;                  // this GPU's place in the order of the scan
  int ranks;
  int64 size;  // words of a place: a State, then the values
};

// Why a GPU has no offset, beside the number of the exchange. Its results are those of
// linear/no_result.cuh then.
enum class Fault : unsigned { NONE, FAILED, LATE };  // cuda/peers.py has the same

// One exchange, whatever the type of totals: the places of the words, and the waits for them.
struct Inboxes {
  static constexpr unsigned DEPTH = 2;  // cuda/peers.py has the same

  Peers peers;
  unsigned number;
  unsigned long long begin = nanoseconds();

  __device__ explicit Inboxes(const Peers& peers) : peers(peers), number(*peers.number + 1) {}

  // Where GPU `of` reads the total of GPU `from`.
  __device__ Word* place(int of, int from) const {
    return peers.inboxes[of] + ((number % DEPTH) * peers.ranks + from) * peers.size;
  }
  // Where GPU `of` reads which totals of its own GPU `by` has taken.
  __device__ Word* note(int of, int by) const {
    return peers.inboxes[of] + DEPTH * peers.ranks * peers.size + by;
  }
  // Note that this GPU has taken the total of GPU `rank`.
  __device__ void note_taken(int rank) const { store_word(note(rank, peers.rank), number); }

  // Wait until GPU `rank` has taken the total that is in the place of this exchange's. If it does
  // not take totals any more, return false: it is to be passed over, and ends with its own fault.
  __device__ bool wait_for_place(int rank) const {
    return wait([&] {
      const auto taken = static_cast<unsigned>(load_word(note(peers.rank, rank)));
      return static_cast<int>(taken + DEPTH - number) >= 0;
    });
  }
  // Wait for a word of this exchange, and read its value; return false if the time is up.
  __device__ bool wait_for(const Word* from, unsigned& value) const {
    Word word = 0;
    const bool in_time = wait([&] { return epoch_of(word = load_word(from)) == number; });
    value = static_cast<unsigned>(word);
    return in_time;
  }
  // Wait for the state of GPU `rank`, and return why there is no total; NONE if there is one.
  __device__ Fault wait_for_state(int rank) const {
    unsigned state;
    if (!wait_for(place(peers.rank, rank), state)) return Fault::LATE;
    return static_cast<State>(state) == State::CALLED_OFF ? Fault::FAILED : Fault::NONE;
  }
  // Store a value or a State in an inbox.
  __device__ void store(Word* to, unsigned value) const {
    store_word(to, static_cast<Word>(number) << 32 | value);
  }
  // Tell the host why this GPU has no offset.
  __device__ void report(Fault fault) const { store(peers.fault, static_cast<unsigned>(fault)); }
  // Count the exchange. All that take part in it have begun: the next one is another.
  __device__ void count() const { *peers.number = number; }

  // Take part without a total, as this GPU's call was refused; by one whole warp. It has no use for
  // earlier totals, so it does not wait for them.
  __device__ void call_off() const {
    for (int rank = lane_index(); rank < peers.ranks; rank += LANES)
      if (rank < peers.rank)
        note_taken(rank);
      else if (rank > peers.rank && wait_for_place(rank))
        store(place(rank, peers.rank), static_cast<unsigned>(State::CALLED_OFF));
    __syncwarp();
    if (lane_index() == 0) count();
  }

 private:
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

// The exchange of totals T, one of each GPU.
template <class Op, class T>
struct Exchange {
  Inboxes inboxes;

  __device__ explicit Exchange(const Peers& peers) : inboxes(peers) {}

  // Exchange the totals, by one whole warp; lane 0 has this GPU's. Return as `receive`.
  __device__ TilePrefix<T> run(T total) const {
    send(total);
    return receive();
  }

  // Send this GPU's total, which lane 0 has, to all later GPUs; by one whole warp.
  __device__ void send(T total) const {
    Words<T> own;
    own.word[WORDS<T> - 1] = 0;
    own.value = broadcast(total, 0);
    const int own_rank = inboxes.peers.rank;
    for (int rank = own_rank + 1 + lane_index(); rank < inboxes.peers.ranks; rank += LANES) {
      if (!inboxes.wait_for_place(rank)) continue;
      Word* const to = inboxes.place(rank, own_rank);
      for (int w = 0; w < WORDS<T>; ++w) inboxes.store(to + 1 + w, own.word[w]);
      inboxes.store(to, static_cast<unsigned>(State::SOMETHING));
    }
    if (lane_index() == 0) inboxes.count();
  }

  // Combine the totals of all earlier GPUs in the order of the scan, by one whole warp. Return the
  // combination, or the call-off, in all lanes. A fault is reported to the host.
  __device__ TilePrefix<T> receive() const {
    const int own_rank = inboxes.peers.rank;
    Fault fault = Fault::NONE;
    Prefix<T> before;
    for (int base = 0; base < own_rank; base += LANES) {
      const int rank = base + lane_index();
      Words<T> words{};
      if (rank < own_rank) {
        Fault own = inboxes.wait_for_state(rank);
        const Word* const from = inboxes.place(own_rank, rank);
        for (int w = 0; w < WORDS<T> && own == Fault::NONE; ++w)
          if (!inboxes.wait_for(from + 1 + w, words.word[w])) own = Fault::LATE;
        if (own != Fault::NONE) fault = own;
        inboxes.note_taken(rank);
      }
      for (int lane = 0; lane < LANES && base + lane < own_rank; ++lane)
        before = join<Op>(before, broadcast(words.value, lane));
    }
    fault = static_cast<Fault>(__reduce_max_sync(EVERY_LANE, static_cast<unsigned>(fault)));
    if (fault != Fault::NONE && lane_index() == 0) inboxes.report(fault);
    return TilePrefix<T>::of(before, fault != Fault::NONE);
  }
};

}  // namespace distscan
