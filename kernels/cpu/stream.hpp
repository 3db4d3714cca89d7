// Results on their way to memory: they are gathered in the L1 cache, and written in whole lines.
//
// Lines that are written whole, past the caches, are not read first: that saves a third of the
// traffic. A line that is written in two parts costs more than it saves. So the end of each tile
// that does not fill a line stays here until the next tile comes.
#pragma once

#include "convert.hpp"

namespace distscan {

constexpr int LINE = 64;

// Past the caches.
template <class R>
INLINE void store_past(void* to, R r) {
#if defined __AVX512BW__
  _mm512_stream_si512(static_cast<__m512i*>(to), (__m512i)r);
#elif defined __AVX2__
  _mm256_stream_si256(static_cast<__m256i*>(to), (__m256i)r);
#elif defined __SSE2__
  _mm_stream_si128(static_cast<__m128i*>(to), (__m128i)r);
#else
  memcpy(to, &r, sizeof r);
#endif
}

// Orders the earlier stores past the caches before all later stores.
INLINE void fence() {
#if defined __SSE2__
  _mm_sfence();
#endif
}

// Goes up from an address; down from it if `down`.
template <class Out>
class Stream {
 public:
  // Bytes of a tile. 2^27 bytes on one core of a Xeon (Emerald Rapids, AVX-512), share of copy:
  //
  //   bytes            512   1024  2048  4096
  //   sum float64      1.20  1.15  1.06  1.10
  //   sum float32       .93   .93   .65   .75
  //   int8 to int64     .93   .74   .60   .71
  //   max float32       .70   .88   .99   .98
  //   segments of 64    .72   .88   .85   .77
  static constexpr int TILE = 1024;

  Stream(void* to, bool down, bool past) : down_(down), past_(past) { go_to(to); }

  // Begin anew at another address. Everything before must have been written.
  INLINE void go_to(void* to) {
    char* const at = static_cast<char*>(to);
    const auto address = reinterpret_cast<uintptr_t>(to);
    foreign_ = filled_ = (down_ ? 0 - address : address) % LINE;
    line_ = down_ ? at + foreign_ : at - foreign_;
  }

  // Where the next `count` results go, in the order of memory. There is room for a tile.
  INLINE Out* next(int count) {
    return reinterpret_cast<Out*>(down_ ? gathered_ + ROOM - filled_ : gathered_ + filled_) -
           (down_ ? count : 0);
  }
  INLINE void put(int count) { filled_ += count * int(sizeof(Out)); }
  INLINE bool is_full() const { return filled_ >= TILE; }

  // Write whole lines, but not the last `keep` results.
  NOINLINE void flush(int keep = 0) {
    const int whole = (filled_ - keep * int(sizeof(Out))) / LINE * LINE;
    if (whole <= 0) return;
    int low = 0;
    if (foreign_) write_part(low = LINE);
    if (past_)
      for (int i = low; i < whole; i += LINE)
        for (int k = 0; k < LINE; k += REGISTER) store_past(to(i) + k, gathered<REGISTER>(i, k));
    else
      for (int i = low; i < whole; i += LINE)
        for (int k = 0; k < LINE; k += REGISTER) store(to(i) + k, gathered<REGISTER>(i, k));
    line_ += down_ ? -whole : whole;
    filled_ -= whole;
    foreign_ = 0;
    // At most two lines are left. They move to the front.
    char left[2 * LINE];
    memcpy(left, down_ ? gathered_ + ROOM - whole - 2 * LINE : gathered_ + whole, sizeof left);
    memcpy(down_ ? gathered_ + ROOM - 2 * LINE : gathered_, left, sizeof left);
  }

  // Write everything.
  NOINLINE void close() {
    flush();
    if (filled_ > foreign_) write_part(filled_);
  }

 private:
  static constexpr int ROOM = 2 * TILE + 4 * LINE;

  INLINE char* to(int i) const { return down_ ? line_ - i - LINE : line_ + i; }
  template <int BYTES>
  INLINE auto gathered(int i, int k) const {
    using R = typename Simd<int64, BYTES>::type;
    return load<R>((down_ ? gathered_ + ROOM - i - LINE : gathered_ + i) + k);
  }
  // Write the first line up to byte `end`: others' bytes before it stay as they are.
  INLINE void write_part(int end) {
    if (down_)
      memcpy(line_ - end, gathered_ + ROOM - end, end - foreign_);
    else
      memcpy(line_ + foreign_, gathered_ + foreign_, end - foreign_);
  }

  alignas(LINE) char gathered_[ROOM];
  char* line_;   // where the gathered bytes go
  int foreign_;  // bytes of the first line that belong to others
  int filled_;   // bytes, with the foreign ones
  bool down_, past_;
};

// A value as a result.
template <class Out, class E>
INLINE Out value_as(Register<Lane<E>> value) {
  Vector<E> v;
  UNROLL
  for (auto& part : v.part) part = value;
  Out results[ELEMENTS<E>];
  store_as(results, v);
  return results[0];
}

}  // namespace distscan
