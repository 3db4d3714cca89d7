// Results on their way to memory: they are gathered in the L1 cache, and written in whole lines,
// one for each line of new results. So loads and stores overlap.
//
// Lines that are written whole, past the caches, are not read first: that saves a third of the
// traffic. A line that is written in two parts costs more than it saves. So the end of each tile
// that does not fill a line stays here until the next tile comes.
#pragma once

#include "vector.hpp"

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

// Whole lines on their way from the L1 cache to memory, one after the other. Loops have a copy of
// their own, so that it stays in registers.
struct Lines {
  const char* from;
  char* to;
  int step;   // to the next line: up or down
  bool any;   // whether there are lines to be written
  bool past;  // whether they go past the caches

  INLINE void write() {
    if (!any) return;
    UNROLL
    for (int k = 0; k < LINE; k += REGISTER) {
      const auto r = load<Register<int64>>(from + k);
      past ? store_past(to + k, r) : store(to + k, r);
    }
    from += step;
    to += step;
  }
};

// Goes up from an address; down from it if `down`.
template <class Out>
class Stream {
 public:
  // Bytes of results between two calls of `flush`. 2^27 bytes on one core of a Xeon (Sapphire
  // Rapids, AVX-512), share of copy:
  //
  //   bytes            512   1024  2048  4096
  //   sum float64      .90   .92   .92   .91
  //   sum float32      .68   .77   .76   .76
  //   int8 to int64    .82   .90   .95   .93
  //   max int8         .83   .85   .89   .88
  //   max float32      .85   .88   .86   .84
  //   segments of 64   .76   .73   .76   .74
  static constexpr int TILE = 2048;
  // Bytes that wait, so that a line is not read before its bytes are in the cache. A result that is
  // given up or changed is one of these.
  static constexpr int LAG = 4 * LINE;

  Stream(void* to, bool down, bool past) : down_(down), past_(past) { go_to(to); }

  // Begin anew at another address. Everything before must have been written.
  INLINE void go_to(void* to) {
    char* const at = static_cast<char*>(to);
    const auto address = reinterpret_cast<uintptr_t>(to);
    foreign_ = filled_ = (down_ ? 0 - address : address) % LINE;
    line_ = down_ ? at + foreign_ : at - foreign_;
    written_ = 0;
  }

  // Where the next `count` results go, in the order of memory.
  INLINE Out* next(int count) {
    return reinterpret_cast<Out*>(down_ ? gathered_ + ROOM - filled_ : gathered_ + filled_) -
           (down_ ? count : 0);
  }
  INLINE void put(int64 count) { filled_ += int(count) * int(sizeof(Out)); }

  // The lines that may be written while as many bytes of results are put; then `wrote` takes them.
  INLINE Lines lines() const {
    const bool any = !foreign_ && filled_ >= written_ + 2 * LINE;
    return {from(written_), to(written_), down_ ? -LINE : LINE, any, past_};
  }
  INLINE void wrote(const Lines& lines) {
    written_ = int(down_ ? line_ - LINE - lines.to : lines.to - line_);
  }

  // Write whole lines, but not the last LAG bytes.
  INLINE void flush() {
    if (filled_ - written_ >= LAG + LINE) write(filled_ - LAG);
    if (written_ >= MOST) move();
  }

  // Write everything.
  NOINLINE void close() {
    write(filled_);
    if (filled_ > written_ + foreign_) write_part(filled_);
  }

 private:
  static constexpr int MOST = 4096;  // bytes written before the others move to the front
  static constexpr int ROOM = MOST + LAG + 2 * TILE + 4 * LINE;

  INLINE const char* from(int i) const { return gathered_ + (down_ ? ROOM - i - LINE : i); }
  INLINE char* to(int i) const { return line_ + (down_ ? -i - LINE : i); }

  // Write whole lines up to byte `end`.
  NOINLINE void write(int end) {
    if (foreign_ && end >= LINE) {
      write_part(LINE);
      written_ = LINE;
      foreign_ = 0;
    }
    Lines rest = {from(written_), to(written_), down_ ? -LINE : LINE, true, past_};
    for (int i = written_ + LINE; i <= end; i += LINE) rest.write();
    wrote(rest);
  }

  // The bytes that wait move to the front.
  NOINLINE void move() {
    const int rest = filled_ - written_;
    memmove(down_ ? gathered_ + ROOM - rest : gathered_,
            down_ ? gathered_ + ROOM - filled_ : gathered_ + written_, rest);
    line_ += down_ ? -written_ : written_;
    filled_ = rest;
    written_ = 0;
  }

  // Write a part of a line, up to byte `end`: others' bytes before it stay as they are.
  INLINE void write_part(int end) {
    const int begin = written_ + foreign_;
    if (down_)
      memcpy(line_ - end, gathered_ + ROOM - end, end - begin);
    else
      memcpy(line_ + begin, gathered_ + begin, end - begin);
  }

  alignas(LINE) char gathered_[ROOM];
  char* line_;   // where the gathered bytes go
  int foreign_;  // bytes of the first line that belong to others; 0 once it is written
  int written_;  // bytes, in whole lines
  int filled_;   // bytes, with the foreign ones
  bool down_, past_;
};

}  // namespace distscan
