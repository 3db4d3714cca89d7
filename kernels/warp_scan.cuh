// The scan of one value per lane, by shuffles.
#pragma once

#include "tile.cuh"

namespace distscan {

constexpr unsigned EVERY_LANE = 0xffffffff;

// Move any type between lanes, in words of 4 bytes.
template <class T, class Move>
__device__ T by_words(T x, Move move) {
  constexpr int WORDS = (sizeof(T) + 3) / 4;
  union {
    T value;
    unsigned word[WORDS];
  } carrier;
  carrier.word[WORDS - 1] = 0;
  carrier.value = x;
#pragma unroll
  for (int w = 0; w < WORDS; ++w) carrier.word[w] = move(carrier.word[w]);
  return carrier.value;
}

// The value of the lane `distance` before this one; the first lanes get their own back.
// distance 1: [a b c d ...] -> [a a b c ...]
template <class T>
__device__ T shuffle_up(T x, int distance) {
  return by_words(x, [=](unsigned w) { return __shfl_up_sync(EVERY_LANE, w, distance); });
}

// The value of the lane `distance` behind this one; the last lanes get their own back.
// distance 1: [a b c ... y z] -> [b c d ... z z]
template <class T>
__device__ T shuffle_down(T x, int distance) {
  return by_words(x, [=](unsigned w) { return __shfl_down_sync(EVERY_LANE, w, distance); });
}

// The value of one lane, in every lane. lane 31: [a ... z] -> [z ... z]
template <class T>
__device__ T broadcast(T x, int lane) {
  return by_words(x, [=](unsigned w) { return __shfl_sync(EVERY_LANE, w, lane); });
}

// The inclusive scan over the lanes, in log2(WIDTH) steps (Hillis and Steele, 1986); only the
// first WIDTH lanes are whole. sum: [3 1 4 1 ...] -> [3 4 8 9 ...]
template <class Op, int WIDTH = LANES, class T>
__device__ T warp_scan(T x) {
#pragma unroll
  for (int distance = 1; distance < WIDTH; distance *= 2) {
    const T earlier = shuffle_up(x, distance);
    if (lane_index() >= distance) x = Op::combine(earlier, x);
  }
  return x;
}

}  // namespace distscan
