// The message of a GPU to later ones: the total of its shard, and what they need beside it.
//
//   source            message                                  the offset of a later shard
//   items             T                                        first op T
//   flags of heads    Flagged<T>: from the last head on        first op its value
//   keys              KeyedTotal<T, K>: the same, and the      the same; first alone, if the shard
//                     keys at both ends of the shard           begins with another key
//
//   sum, first 10   keys    [a a b] [b b] [b c] [d]
//                   items   [1 2 3] [4 5] [6 7] [8]
//                   totals   3, yes  9, no 7, yes 8, no    since the last head; is there one
//                   offsets  10      13    22     10
#pragma once

#include "exchange.cuh"
#include "keys.cuh"

namespace distscan {

// ---- The total of a shard with keys ------------------------------------------------------------

// A Flagged<T>, then Ends<K>: as a kernel publishes them, in words.
template <class T, class K>
struct KeyedTotal {
  unsigned word[WORDS<Flagged<T>> + WORDS<Ends<K>>];

  __device__ static KeyedTotal of(Flagged<T> total, Ends<K> ends) {
    KeyedTotal result;
    result.template set<0>(total);
    result.template set<WORDS<Flagged<T>>>(ends);
    return result;
  }
  __device__ Flagged<T> total() const { return get<0, Flagged<T>>(); }
  __device__ Ends<K> ends() const { return get<WORDS<Flagged<T>>, Ends<K>>(); }

 private:
  template <int FROM, class Part>
  __device__ Part get() const {
    Words<Part> words;
#pragma unroll
    for (int w = 0; w < WORDS<Part>; ++w) words.word[w] = word[FROM + w];
    return words.value;
  }
  template <int FROM, class Part>
  __device__ void set(const Part& part) {
    Words<Part> words;
    words.word[WORDS<Part> - 1] = 0;
    words.value = part;
#pragma unroll
    for (int w = 0; w < WORDS<Part>; ++w) word[FROM + w] = words.word[w];
  }
};

// A segment begins between two shards if the keys differ there. Keys lie as in memory: so REVERSE
// enters a shard at its high end.
// sum: (1, no, keys 7 7), (2, no, keys 7 8) -> (3, no, keys 7 8)
template <class Operator, bool REVERSE>
struct Keyed {
  static constexpr bool COMMUTATIVE = false;

  template <class K>
  __device__ static bool begins(const Ends<K>& earlier, const Ends<K>& later) {
    return REVERSE ? differ(earlier.low, later.high) : differ(earlier.high, later.low);
  }
  template <class T, class K>
  __device__ static KeyedTotal<T, K> combine(const KeyedTotal<T, K>& a, const KeyedTotal<T, K>& b) {
    const Ends<K> from = a.ends(), to = b.ends();
    Flagged<T> later = b.total();
    if (begins(from, to)) later.head = 1;
    return KeyedTotal<T, K>::of(Segmented<Operator>::combine(a.total(), later),
                                REVERSE ? Ends<K>{to.low, from.high} : Ends<K>{from.low, to.high});
  }
};

// ---- By source ---------------------------------------------------------------------------------

// Value    what is sent: `of` a source of n elements and their total
// Op       the operator on it
// offset   the offset of a shard, from the combination `before` it, and from its own total
template <class Source, class Operator, class T>
struct Message {
  using Value = T;
  using Op = Operator;

  __device__ static Value of(const Source&, int64, T total) { return total; }
  __device__ static TilePrefix<T> offset(const TilePrefix<Value>& before, const Prefix<T>& first,
                                         const Value&) {
    return seed<Operator>(before, first);
  }
};

template <class X, class Operator, class T>
struct Message<FlaggedPointer<X>, Operator, T> {
  using Value = Flagged<T>;
  using Op = Segmented<Operator>;

  __device__ static Value of(const FlaggedPointer<X>&, int64, Flagged<T> total) { return total; }
  __device__ static TilePrefix<Flagged<T>> offset(const TilePrefix<Value>& before,
                                                  const Prefix<T>& first, const Value&) {
    const auto all = seed<Operator>(TilePrefix<T>{before.value.value, before.state}, first);
    return {{all.value, 0}, all.state};
  }
};

template <class X, class K, bool REVERSE, class Operator, class T>
struct Message<KeyedPointer<X, K, REVERSE>, Operator, T> {
  using Value = KeyedTotal<T, K>;
  using Op = Keyed<Operator, REVERSE>;
  using WithFlags = Message<FlaggedPointer<X>, Operator, T>;

  __device__ static Value of(const KeyedPointer<X, K, REVERSE>& p, int64 n, Flagged<T> total) {
    return Value::of(total, {p.keys[0], p.keys[n - 1]});
  }
  __device__ static TilePrefix<Flagged<T>> offset(const TilePrefix<Value>& before,
                                                  const Prefix<T>& first, const Value& own) {
    TilePrefix<Flagged<T>> all{before.value.total(), before.state};
    if (all.state == State::SOMETHING && Op::begins(before.value.ends(), own.ends()))
      all.state = State::NOTHING;
    return WithFlags::offset(all, first, {});
  }
};

}  // namespace distscan
