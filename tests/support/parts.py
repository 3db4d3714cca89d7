"""The part of the tests that a run takes: ``DISTSCAN_PART=1/3`` is the first third."""

import zlib


def part_of(names: list[str], part: str) -> set[str]:
    """Return part "i/n" of the tests. A test's name alone decides its part.

    >>> sorted(part_of(["a", "b", "c", "d", "e", "f"], "1/2"))
    ['b', 'd', 'f']
    """
    i, n = map(int, part.split("/"))
    return {name for name in names if zlib.crc32(name.encode()) % n == i - 1}
