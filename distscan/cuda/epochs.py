"""Numbers of calls: words in memory that carry a call's epoch are of that call.

No two calls of a process, of whichever plans, have one number. Its low 32 bits are the call's first
epoch; a call has four, of which the first three are never 0. The higher bits are its round: epochs
come again after 2^30 calls, in the next round.
"""

import itertools
import os
from collections.abc import Iterator

BITS = 32  # of an epoch
LAST = (1 << BITS) - 1


def numbers(call: int) -> Iterator[int]:
    """Return the numbers of calls from the ``call``-th on.

    >>> next(numbers(1)), next(numbers(2)), next(numbers((1 << 30) + 1)) & LAST
    (5, 9, 5)
    """
    return itertools.count(4 * call + 1, 4)


#: The process's: each call takes the next.
calls = numbers(1)


class _NoCalls(Iterator[int]):
    """The numbers of calls in a process that was forked from one that uses a GPU."""

    def __next__(self) -> int:
        raise RuntimeError(
            "this process was forked from one that uses a GPU, which CUDA does not allow; "
            "start processes by multiprocessing's 'spawn' or 'forkserver'"
        )


def _after_fork() -> None:
    global calls  # noqa: PLW0603 - of the process
    calls = _NoCalls()


os.register_at_fork(after_in_child=_after_fork)
