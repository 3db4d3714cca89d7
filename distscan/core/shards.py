"""Shards: which elements each rank owns, as integers."""

from collections.abc import Iterator


def bounds(n: int, size: int, rank: int) -> tuple[int, int]:
    """Return ``(start, stop)`` of the shard that ``rank`` of ``size`` ranks owns of ``n`` elements.

    Shards are contiguous and in rank order. Their lengths differ by at most one; the longer shards
    come first.

    >>> [bounds(10, 4, rank) for rank in range(4)]
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} is not in a communicator of {size} ranks")
    short, longer = divmod(n, size)
    start = rank * short + min(rank, longer)
    return start, start + short + (rank < longer)


def chunks(start: int, stop: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield pieces ``(low, high)`` of ``start..stop``; all but the last have ``step`` elements.

    >>> list(chunks(3, 10, 4))
    [(3, 7), (7, 10)]
    """
    for low in range(start, stop, step):
        yield low, min(low + step, stop)
