// The order in which blocks draw the tiles of a matrix.
//
// A panel is up to PANEL strips, side by side. The tiles of a panel are drawn row by row:
//
//   PANEL 2, 3 strips:  | panel 0 | panel 1 |
//                       |  0 |  1 |  0      |
//                       |  2 |  3 |  1      |
//
// Where two strips meet inside a sector of memory, each writes a piece of it. If that is at about
// one time, the cache joins the pieces. `blocks` blocks share a panel, and read its totals alone.
// `at_once` panels are scanned at one time, then the next ones. They are neighbours, so that the
// memory that moves at one time lies side by side.
#pragma once

#include "matrix.cuh"

namespace distscan {

// A tile that a block has drawn. 2^31 of them are more than fit in memory.
struct Draw {
  int panel;
  int number;  // in the panel; NONE: there are no more

  static constexpr int NONE = -1;
};

template <int PANEL>
struct TileOrder {
  const Matrix& matrix;
  unsigned* tile_counter;  // [panels], zero; zero again after the launch
  int blocks;              // of a panel
  int at_once;             // panels at a time

  // The state before the first draw of this block.
  __device__ Draw first() const { return {static_cast<int>(blockIdx.x) % at_once, Draw::NONE}; }

  // Draw the tile after `draw`, which this block has drawn before; by one thread. A panel's
  // counter is zero again when each of its blocks has drawn one tile too many.
  __device__ Draw next(Draw draw) const {
    for (; width(draw.panel) > 0; draw = {draw.panel + at_once, Draw::NONE}) {
      const int tiles = static_cast<int>(matrix.tiles) * width(draw.panel);
      const auto last = static_cast<unsigned>(tiles + blocks - 1);
      draw.number = blocks == 1 ? draw.number + 1
                                : static_cast<int>(atomicInc(tile_counter + draw.panel, last));
      if (draw.number < tiles) return draw;
    }
    return draw;
  }

  // The strip of a tile in its panel, and the number of the tile in that strip.
  __device__ int strip(const Draw& draw) const { return draw.number % width(draw.panel); }
  __device__ int index(const Draw& draw) const { return draw.number / width(draw.panel); }

 private:
  // The strips of a panel; the last panel may have fewer than PANEL, and those after it none.
  __device__ int width(int panel) const {
    const int64 left = matrix.strips - panel * static_cast<int64>(PANEL);
    return left < PANEL ? static_cast<int>(left) : PANEL;
  }
};

}  // namespace distscan
