"""The numbers of calls. A status word that carries a call's epoch belongs to that call.

All calls of a process have different numbers, also those of different plans. The low 32 bits of a
number are the call's first epoch. A call has four epochs, and the first three are never 0. The
higher bits are the round of the call. After 2^30 calls the next round begins, and epochs repeat.
"""

import itertools
import os
from collections.abc import Iterator

BITS = 32  # per epoch
LAST = (1 << BITS) - 1


def numbers(call: int) -> Iterator[int]:
    """Return the numbers of all calls from number ``call`` on, counted from 1.

    >>> next(numbers(1)), next(numbers(2)), next(numbers((1 << 30) + 1)) & LAST
    (5, 9, 5)
    """
    return itertools.count(4 * call + 1, 4)


#: The numbers of this process. Each call takes the next one.
calls = numbers(1)


class _NoCalls(Iterator[int]):
    """The numbers of a process that was forked from one that uses a GPU: there are none."""

    def __next__(self) -> int:
        raise RuntimeError(
            "this process was forked from one that uses a GPU, which CUDA does not allow; "
            "start processes by multiprocessing's 'spawn' or 'forkserver'"
        )


def _after_fork() -> None:
    global calls  # noqa: PLW0603 - of the process
    calls = _NoCalls()


os.register_at_fork(after_in_child=_after_fork)
