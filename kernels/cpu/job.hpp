// A job: one call on one rank, as Python describes it. All threads of the rank work on it together.
#pragma once

#include "vector_scan.hpp"

namespace distscan {

// Stores the flags [count] of the heads among elements [at, at + count), in the order of memory:
// not 0 where a segment begins, since the key [n] of the element before it in the scan differs. The
// scan's first element is no head.
using FindHeads = void(const void* keys, int64 n, int64 at, int64 count, bool reverse,
                       unsigned char* flags);

// x and y are [outer, n, inner], scanned along n. y may be x. E is the type that accumulates.
// Columns have blocks of rows, everything else has blocks of elements. Arrays of elements are
// contiguous. Rows of columns may be parts of longer rows.
struct Job {
  const void* x;
  void* y;
  const void* heads;   // [n]: a byte, not 0 where a segment begins, or a key; or null
  FindHeads* find;     // finds the heads among keys; null: there are flags
  const void* before;  // E [1], or [inner] if before_row; null: nothing comes before
  const void* first;   // E [1]: comes before each segment; null: nothing
  void* slots;         // E [outer * (blocks + 1), inner]; null: rows of one block need none
  int* states;         // [outer * (blocks + 1), strips], of the slots; at first 0
  int64 outer, n, inner;
  int64 x_step, y_step;  // of columns: elements from a row of x, of y, to the next
  int64 block;           // elements of a block along n; a multiple of a vector, unless inner > 1
  int64 strip;           // columns that a thread takes at a time
  int64 ticket;  // the next piece of work: a block, or several short rows; of columns, a strip
  int64 end;     // behind the last one
  int exclusive, reverse, before_row;
  int stream;  // whether results go past the caches
  // Of recurrences, whose terms are x, and whose slots, before and first are Map<E>:
  const void* a;   // the factors, [n, inner]
  int64 a_step;    // elements from one to the next along n; 0: all are the same
  int64 a_column;  // 1; 0: all columns have the same, and a has a vector of it
  // Of exact sums, whose slots, before and first are integers k:
  int64 lowest;     // k stands for k * 2^lowest
  int64 low, high;  // where elements are checked: multiples of 2^low, below 2^high
  int* outside;     // becomes 1 if there is an element outside; null: none is checked
};

// Slot b holds what comes before block b: the prefix of the blocks before it, if READY. The
// reduction writes the total of block b - 1 there instead, with HEAD or 0; `seed` makes it a
// prefix.
constexpr int READY = 1;
constexpr int HEAD = 2;  // a segment begins in the block whose total the slot holds

// ---- Shared by threads -----------------------------------------------------------------------

// The next piece of work; job.end or more if there is none.
INLINE int64 draw(Job& job) { return __atomic_fetch_add(&job.ticket, 1, __ATOMIC_RELAXED); }

INLINE bool is_ready(const int* state) { return __atomic_load_n(state, __ATOMIC_ACQUIRE) & READY; }

INLINE void publish(int* state, int value) { __atomic_store_n(state, value, __ATOMIC_RELEASE); }

extern "C" int sched_yield();

// Waits until another thread publishes a slot. Tickets are drawn in order, so it always ends.
INLINE void wait(const int* state) {
  for (int looks = 0; !is_ready(state); ++looks) {
#if defined __SSE2__
    _mm_pause();
#endif
    if (looks > 100) sched_yield();  // some microseconds: the other thread may not be running
  }
}

// The flags of elements [at, at + count): the job's, or those of its keys, in `room` [count].
INLINE const unsigned char* flags_of(const Job& job, int64 at, int64 count, unsigned char* room) {
  if (!job.find) return static_cast<const unsigned char*>(job.heads) + at;
  job.find(job.heads, job.n, at, count, job.reverse, room);
  return room;
}

INLINE int64 ceil_div(int64 a, int64 b) { return (a + b - 1) / b; }
INLINE int64 min_of(int64 a, int64 b) { return a < b ? a : b; }

}  // namespace distscan
