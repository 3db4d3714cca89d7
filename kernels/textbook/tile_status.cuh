// The words that the tiles of a scan publish in global memory: each its total, and its prefix.
#pragma once

#include "../base/status_words.cuh"

namespace distscan {

// A value carries the launch's epoch. So nobody takes a value of an earlier launch.
template <class T>
struct TileStatus {
  Totals totals;    // [tiles], the combination of each tile's own items
  Totals prefixes;  // [tiles], the combination of all items up to each tile's last
  unsigned epoch;

  __device__ void publish_total(int64 tile, T total) const { publish(totals, tile, total, epoch); }
  __device__ void publish_prefix(int64 tile, T prefix) const {
    publish(prefixes, tile, prefix, epoch);
  }
  // Whether a tile has published its total. If so, it goes to `total`.
  __device__ bool find_total(int64 tile, T& total) const { return find(totals, tile, total); }
  __device__ bool find_prefix(int64 tile, T& prefix) const { return find(prefixes, tile, prefix); }

 private:
  __device__ bool find(const Totals& of, int64 tile, T& value) const {
    Words<T> words;
    bool all = true;
#pragma unroll
    for (int w = 0; w < WORDS<T>; ++w) {
      Word word;
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                   : "=l"(word)
                   : "l"(of.words + w * of.stride + tile)
                   : "memory");
      all = all && epoch_of(word) == epoch;
      words.word[w] = static_cast<unsigned>(word);
    }
    if (all) value = words.value;
    return all;
  }
};

}  // namespace distscan
