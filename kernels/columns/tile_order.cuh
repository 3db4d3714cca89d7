// The order in which blocks draw the tiles of a matrix.
//
// BAND strips side by side are a band, whose tiles are drawn row by row:
//
//   BAND 2, 3 strips:  |  0 |  1 |  0 |
//                      |  2 |  3 |  1 |
//
// Strips that part in the middle of a sector of memory write it in two pieces: at about one time,
// the cache joins them. `blocks` blocks share a band and know its totals; `side` bands are scanned
// side by side, so that what moves at one time lies side by side in memory; then the next ones.
#pragma once

#include "matrix.cuh"

namespace distscan {

// A tile that a block has drawn. 2^31 of them are more than fit in memory.
struct Draw {
  int band;
  int number;  // in the band; NONE: there are no more

  static constexpr int NONE = -1;
};

template <int BAND>
struct TileOrder {
  const Matrix& matrix;
  unsigned* tile_counter;  // [bands], zero; zero again after the launch
  int blocks;              // of a band
  int side;                // bands at a time

  // What comes before the first draw of this block.
  __device__ Draw first() const { return {static_cast<int>(blockIdx.x) % side, Draw::NONE}; }

  // Draw the tile behind `draw`, which this block has drawn before; by one thread. A band's counter
  // is zero again when each of its blocks has drawn one tile too many.
  __device__ Draw next(Draw draw) const {
    for (; width(draw.band) > 0; draw = {draw.band + side, Draw::NONE}) {
      const int tiles = static_cast<int>(matrix.tiles) * width(draw.band);
      const auto last = static_cast<unsigned>(tiles + blocks - 1);
      draw.number = blocks == 1 ? draw.number + 1
                                : static_cast<int>(atomicInc(tile_counter + draw.band, last));
      if (draw.number < tiles) return draw;
    }
    return draw;
  }

  // Which strip of its band a tile is of, and which tile of that strip.
  __device__ int strip(const Draw& draw) const { return draw.number % width(draw.band); }
  __device__ int index(const Draw& draw) const { return draw.number / width(draw.band); }

 private:
  // How many strips a band has; the last may have fewer than BAND, and those behind it none.
  __device__ int width(int band) const {
    const int64 left = matrix.strips - band * static_cast<int64>(BAND);
    return left < BAND ? static_cast<int>(left) : BAND;
  }
};

}  // namespace distscan
