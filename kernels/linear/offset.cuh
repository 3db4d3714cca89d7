// The offset of the shard: an argument of the kernel, or brought by the host while the kernel runs.
//
// A kernel that is launched ahead of its offset fetches its first tiles meanwhile. One warp of the
// grid polls the host's memory for the offset, and passes it on to all blocks. If none has come
// after LIMIT, the warp calls the scan off, for all blocks and for the host: nothing is stored, and
// the host launches again. So ranks that share a GPU never wait for each other inside kernels.
// The GPU's timer may advance in steps, so LOOKS over the bus must have passed, too.
//
//   host   offset 7 in time:   from_host  [SOMETHING, 7]
//   warp   finds it:           passed_on  [SOMETHING, 7]    answer [SOMETHING]
//   warp   finds nothing:      passed_on  [CALLED_OFF, .]   answer [CALLED_OFF]
#pragma once

#include "../base/status_words.cuh"

namespace distscan {

enum class State : unsigned { NOTHING, SOMETHING, CALLED_OFF };

// The prefix of a shard or a tile, or the call-off in its place.
template <class T>
struct TilePrefix {
  T value;
  State state;

  __device__ static TilePrefix of(Prefix<T> prefix, bool called_off = false) {
    if (called_off) return {prefix.value, State::CALLED_OFF};
    return {prefix.value, prefix.some ? State::SOMETHING : State::NOTHING};
  }
  __device__ Prefix<T> prefix() const { return {value, state == State::SOMETHING}; }
  __device__ bool called_off() const { return state == State::CALLED_OFF; }
};

// Status words (base/status_words.cuh): a State, then the value.
struct Mail {
  const Word* from_host;  // [1 + WORDS], in pinned host memory; null: the offset is an argument
  Word* passed_on;        // [1 + WORDS]
  Word* answer;           // [1], in pinned host memory: the State that was passed on
};

// The offset after all earlier shards, which combine to `before`; `first` comes before them all.
template <class Op, class T>
__device__ TilePrefix<T> seed(const TilePrefix<T>& before, const Prefix<T>& first) {
  const Prefix<T> all = before.prefix();
  return TilePrefix<T>::of(all.some ? join<Op>(first, all.value) : first, before.called_off());
}

// Pass the offset on to other warps of this GPU, beside `epoch`; by one lane.
template <class T>
__device__ void pass_on(const TilePrefix<T>& offset, Word* to /* [1 + WORDS] */, unsigned epoch) {
  Words<T> words;
  words.word[WORDS<T> - 1] = 0;
  words.value = offset.value;
  const Word high = static_cast<Word>(epoch) << 32;
  for (int w = 0; w < WORDS<T>; ++w) store_word(to + 1 + w, high | words.word[w]);
  store_word(to, high | static_cast<unsigned>(offset.state));
}

template <class T>
struct Offset {
  static constexpr int SIZE = 1 + WORDS<T>;
  static constexpr unsigned long long LIMIT = 1'000'000;  // nanoseconds; cuda/launches.py's too
  static constexpr int LOOKS = 512;                       // of some microsecond each

  Prefix<T> argument;
  Mail mail;

  // Wait for the offset, by a whole warp; return it in all lanes. One warp of the grid `looks` for
  // it in the host's memory. The others wait until that warp passes it on.
  __device__ TilePrefix<T> wait(bool looks, unsigned epoch) const {
    if (mail.from_host == nullptr) return TilePrefix<T>::of(argument);
    return joined(looks ? look(epoch) : hear(epoch));
  }

  // Wait until another warp passes the offset on, for so many nanoseconds at most; by a whole warp.
  __device__ TilePrefix<T> heard(unsigned epoch, unsigned long long limit) const {
    return joined(hear(epoch, Deadline{limit}));
  }

 private:
  // The offset, in all lanes, from the words that lanes have.
  __device__ static TilePrefix<T> joined(Word word) {
    Words<T> words;
#pragma unroll
    for (int w = 0; w < WORDS<T>; ++w)
      words.word[w] = __shfl_sync(EVERY_LANE, static_cast<unsigned>(word), 1 + w);
    const unsigned state = __shfl_sync(EVERY_LANE, static_cast<unsigned>(word), 0);
    return {words.value, static_cast<State>(state)};
  }

  // Poll the host's words, word l by lane l. Pass on the offset, or the call-off if the time is up.
  // The host was in time if its words were there before the time was up. So the last poll must
  // begin after that: another process may have had the GPU in between.
  __device__ Word look(unsigned epoch) const {
    const int lane = lane_index();
    const unsigned long long begin = nanoseconds();
    Word word = 0;
    for (int looks = 0, time_is_up = 0;; ++looks) {
      if (lane < SIZE)
        asm volatile("ld.relaxed.sys.global.u64 %0, [%1];"
                     : "=l"(word)
                     : "l"(mail.from_host + lane)
                     : "memory");
      if (__all_sync(EVERY_LANE, lane >= SIZE || epoch_of(word) == epoch)) break;
      if (__any_sync(EVERY_LANE, time_is_up)) {
        word = static_cast<Word>(epoch) << 32 | static_cast<unsigned>(State::CALLED_OFF);
        break;
      }
      time_is_up = looks > LOOKS && nanoseconds() - begin > LIMIT;
      __nanosleep(200);
    }
    if (lane < SIZE) store_word(mail.passed_on + lane, word);
    if (lane == 0) store_word(mail.answer, word);
    return word;
  }

  // Take the words that were passed on.
  __device__ Word hear(unsigned epoch, Deadline deadline = {}) const {
    const int lane = lane_index();
    for (Word word = 0;;) {
      if (lane < SIZE)
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                     : "=l"(word)
                     : "l"(mail.passed_on + lane)
                     : "memory");
      if (__all_sync(EVERY_LANE, lane >= SIZE || epoch_of(word) == epoch)) return word;
      deadline.check(200);
    }
  }
};

}  // namespace distscan
