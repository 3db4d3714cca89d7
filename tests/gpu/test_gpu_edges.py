"""Where the kernels' pieces meet: tiles, rows of totals, rings, misaligned ends. GPU only."""

import numpy as np
import pytest

import distscan
from distscan.core.form import bounds
from support.host import host
from support.maps import COMPOSE, HALVES, NIBBLES, maps, packed_at_once
from support.placed import check, check_in_place, sums
from support.tiles import geometry, typed

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


# Types of x, of the running value, of the result.
TYPES = ["bbb", "HHH", "iii", "fff", "ddd", "FFF", "DDD", "bll", "ill", "efe", "fde", "lib", "bbl"]


@pytest.mark.one_rank
@pytest.mark.parametrize("codes", TYPES)
def test_edges(codes, strategy, cp):
    """One element less, as many, one more: than tiles, rows of totals, rounds of the ring."""
    types = typed(codes)
    tile, blocks, stages = geometry(types, strategy)
    tiles = {1, 2, 3, 31, 32, 33, 64, 191, 192, 193, 384, blocks - 1, blocks, blocks + 1}
    tiles |= {(stages + extra) * blocks + more for extra in (-1, 0, 1) for more in (-1, 0, 1)}
    tiles.add((2 * stages + 1) * blocks)
    most = max(tiles)
    x, want = sums(types, most * tile + 64)
    step = types.out.itemsize
    for shift_x, shift_out in ((0, 0), (types.x.alignment, 3 * step % 16), (0, 16 - step)):
        head = -shift_out % 16 // step  # elements before the first tile
        sizes = {0, 1, 2, head - 1, head, head + 1, head + 2}
        sizes |= {begin + count * tile + extra
                  for begin in (0, head) for count in tiles for extra in (-1, 0, 1)}  # fmt: skip
        # Of few elements the tiles are other ones: a whole number of them to each block.
        for row in {tile // rows for rows in (4, 5, 6, 8)}:
            for count in (1, 2, 4, 8, *(n * blocks // 2 for n in (1, 2, 4, 8, 16, 32))):
                sizes |= {begin + row * count + extra
                          for begin in (0, head) for extra in (-1, 0, 1)}  # fmt: skip
        for n in sorted(n for n in sizes if n >= 0):
            check(cp, types, strategy, n, x, want, shift_x, shift_out)
            if types.x == types.out and (n < 4 * tile or n > most * tile):
                check_in_place(cp, types, strategy, n, x, want, shift_out)


@pytest.mark.one_rank
@pytest.mark.parametrize("codes", TYPES)
def test_every_misalignment(codes, strategy, cp):
    """Arrays that begin at any address that their type can have."""
    types = typed(codes)
    tile, _, _ = geometry(types, strategy)
    sizes = [0, 1, 2, 15, 16, 17, 1000, tile - 1, 2 * tile + 7, 40 * tile + 1]
    x, want = sums(types, sizes[-1])
    for n in sizes:
        for shift_out in range(0, 16, types.out.alignment):
            for shift_x in range(0, 16, types.x.alignment):
                check(cp, types, strategy, n, x, want, shift_x, shift_out)
            if types.x == types.out:
                check_in_place(cp, types, strategy, n, x, want, shift_out)


@pytest.mark.parametrize(
    ("k", "op", "dtype", "out"),
    [
        (32, COMPOSE, "L", "L"),
        (16, HALVES, "I", "I"),
        (16, HALVES, "L", "I"),
        (4, NIBBLES, "B", "B"),
        (4, NIBBLES, "L", "L"),
        (4, NIBBLES, "L", "H"),
    ],
)
def test_order_over_many_tiles(k, op, dtype, out, strategy, cp, comm, rng):
    """Several hundred tiles on every rank, each of whose elements has its place."""
    code = {32: "L", 16: "I", 4: "B"}[k]
    tile, blocks, stages = geometry(typed(code + dtype + out), strategy)
    for n in (5 * tile + 3, 700 * tile + 11, stages * blocks * tile + 5):
        x = maps(rng, n * comm.size, k)
        mine = slice(*bounds(x.size, comm.size, comm.rank))
        want = packed_at_once(x, k)[mine]
        y = cp.zeros(mine.stop - mine.start + 1, out)[1:]
        distscan.scan(cp.asarray(x[mine]), op, dtype=dtype, out=y, strategy=strategy)
        np.testing.assert_array_equal(host(y), want)
