// Heads among keys: a segment begins where the keys of two neighbours differ.
#include "keys.hpp"
#include "stream.hpp"

using namespace distscan;

namespace {

// For each lane -1 where two keys differ, else 0. Integers are compared by their bits.
struct Bits {
  template <class R>
  INLINE static auto differ(R a, R b) {
    return a != b;
  }
};
// By value, and a NaN is equal to nothing: so are registers of floats compared.
using Floats = Bits;
// The same of floats of 16 bits, in words. INFINITE are the bits of infinity.
template <int INFINITE>
struct Halves {
  template <class R>
  INLINE static auto differ(R a, R b) {
    return ((a != b) & (((a | b) & 0x7fff) != 0)) | ((a & 0x7fff) > INFINITE);
  }
};
// Dates and durations. NaT, the lowest number, is equal to nothing.
struct Dates {
  template <class R>
  INLINE static auto differ(R a, R b) {
    return (a != b) | (a == INT64_MIN);
  }
};

// The lower halves of all lanes, those of a first: lanes are -1 or 0.
template <class Half, class R>
INLINE Register<Half> narrowed(R a, R b) {
  constexpr auto lower = [](int i) { return 2 * i; };
  return shuffle<lower, Half>((Register<Half>)a, (Register<Half>)b);
}

// -1 or 0 for as many keys as a register has bytes, each compared with its neighbour.
template <class Rule, class K>
INLINE Register<signed char> compared(const K* keys, const K* neighbours) {
  constexpr int N = sizeof(K), EACH = LANES<K>;
  Register<Word<K>> wide[N];
  UNROLL
  for (int i = 0; i < N; ++i)
    wide[i] = (Register<Word<K>>)Rule::differ(load<Register<K>>(keys + i * EACH),
                                              load<Register<K>>(neighbours + i * EACH));
  if constexpr (N == 1) {
    return wide[0];
  } else if constexpr (N == 2) {
    return narrowed<signed char>(wide[0], wide[1]);
  } else if constexpr (N == 4) {
    return narrowed<signed char>(narrowed<short>(wide[0], wide[1]),
                                 narrowed<short>(wide[2], wide[3]));
  } else {
    return narrowed<signed char>(
        narrowed<short>(narrowed<int>(wide[0], wide[1]), narrowed<int>(wide[2], wide[3])),
        narrowed<short>(narrowed<int>(wide[4], wide[5]), narrowed<int>(wide[6], wide[7])));
  }
}

// The distance of prefetches, in bytes of keys, which are read in bursts, tile by tile. 2^23
// elements on one core of a Xeon, milliseconds; the last column is scans by flags:
//
//   x        keys         0   2048   4096   8192   flags
//   float32  int32     14.1   13.2   13.7   13.9    11.3
//   float64  float64   23.9   22.1   22.3   22.8    15.1
//   int32    int64     18.8   16.4   17.1   18.2     9.7
//   int8     uint8      4.2    3.2    3.1    3.3     3.5
constexpr int KEYS_AHEAD = 2048;

// keys 7 7 8 8 8 9, at 2, count 3: 1 0 0; reverse: 0 0 1
template <class Rule, class K>
void find(const void* all, int64 n, int64 at, int64 count, bool reverse, unsigned char* flags) {
  const K* const keys = static_cast<const K*>(all) + at;
  const K* const neighbours = reverse ? keys + 1 : keys - 1;
  int64 begin = 0, end = count;
  // The scan's first element has no neighbour.
  if (!reverse && at == 0) flags[begin++] = 0;
  if (reverse && at + count == n) flags[--end] = 0;
  for (; end - begin >= REGISTER; begin += REGISTER) {
    for (int line = 0; line < REGISTER * int(sizeof(K)); line += LINE)
      __builtin_prefetch(reinterpret_cast<const char*>(keys + begin) + line +
                         (reverse ? -KEYS_AHEAD : KEYS_AHEAD));
    store(flags + begin, compared<Rule>(keys + begin, neighbours + begin));
  }
  if (const int64 rest = end - begin; rest > 0) {
    K few[2][REGISTER] = {};
    memcpy(few[0], keys + begin, rest * sizeof(K));
    memcpy(few[1], neighbours + begin, rest * sizeof(K));
    const auto found = compared<Rule>(few[0], few[1]);
    memcpy(flags + begin, &found, rest);
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const Keys distscan_keys[] = {
    {"uint8", find<Bits, unsigned char>},
    {"uint16", find<Bits, unsigned short>},
    {"uint32", find<Bits, unsigned>},
    {"uint64", find<Bits, int64>},
    {"float16", find<Halves<0x7c00>, unsigned short>},
    {"bfloat16", find<Halves<0x7f80>, unsigned short>},
    {"float32", find<Floats, float>},
    {"float64", find<Floats, double>},
    {"datetime64", find<Dates, int64>},
    {},
};
