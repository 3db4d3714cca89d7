"""The memory of a job: the size and the number of chunks, and whether shards stay on devices."""

from typing import NamedTuple

from .interface import WINDOW

MIB = 1 << 20


class Budget(NamedTuple):
    """The memory that a rank uses, decided before any work.

    Attributes
    ----------
    chunk
        Elements of a chunk, at most.
    readers, writers
        The threads that read and that write. 0: the rank's own thread does.
    slots
        The number of chunks on the device at a time.
    resident
        Whether the whole shard stays on the device.
    window
        Bytes of memory for a file in Fortran order that is flattened: ``fortran.py``.
    """

    chunk: int
    readers: int
    writers: int
    slots: int
    resident: bool
    window: int = 0


#: Bytes of a chunk on CPUs: it stays in the caches. With 1 MiB a scan of float64 took twice as
#: long, with 16 MiB 1.4 times (one core of a Xeon with AVX-512). It does not depend on the number
#: of threads, so they change no bit of a result.
CPU_CHUNK = 4 * MIB
#: Bytes of a chunk on a GPU. Smaller ones cost more of Python's time (0.1 ms each), larger ones
#: more pinned memory (0.4 s for a GiB).
GPU_CHUNK = 8 * MIB
#: The most threads of a rank that read, and that write, if they do so in parallel: ``storage.py``.
READERS, WRITERS = 4, 8


def decide(
    *,
    size: int,
    element: int,
    result: int,
    mark: int,
    in_place: bool,
    gpu: bool,
    threads: int,
    sweeps: int,
    parallel: bool,
    limit: int | None,
    free_host: int,
    free_device: int,
    flattened: int = 0,
) -> Budget:
    """Decide the memory of a rank.

    ``size`` is the number of elements of its shard; ``element``, ``result`` and ``mark`` are the
    bytes of an element, of a result, and of a flag or a key, 0 without segments. Results are
    ``in_place`` if their type is that of elements. ``threads`` are those that the rank may use.
    ``parallel`` says that several threads write faster than one.
    ``limit`` is the caller's, in bytes, for the host and for the GPU each. ``free_host`` and
    ``free_device`` are this rank's shares of what is free.
    ``flattened`` is the number of files in Fortran order that are flattened.
    """
    host = free_host // 2 if limit is None else min(limit, free_host)
    window = 0
    if flattened:
        shard = size * max(element, mark)  # a larger window has what other ranks read
        window = min(WINDOW, shard + 2 * MIB, host // (4 * flattened))
        host -= flattened * window
    device = free_device * 4 // 5 if limit is None else min(limit, free_device)
    if not gpu:
        device = host
    large = max(element, result, mark)
    each = (element if in_place else element + result) + mark  # bytes of a slot's element
    wanted = GPU_CHUNK if gpu else CPU_CHUNK
    readers, writers = min(READERS, threads), min(WRITERS, threads) if parallel else 1
    if threads == 1 and not gpu:  # one thread would only interrupt itself
        readers = writers = 0
    slots, most = readers + writers + 1, READERS + WRITERS + 1
    # As if there were the most threads, so that their number changes no bit of a result.
    if gpu:  # every thread has pinned memory for a chunk
        chunk = min(wanted, host // (READERS + WRITERS)) // large
        chunk = min(chunk, device // (most * each))
    else:
        chunk = min(wanted // large, host // (most * each))
    chunk = max(1, chunk)
    if size <= chunk:  # one chunk has nothing that could overlap
        readers, writers, slots = 0, 0, 1
    kept = size * (element + mark) + (0 if in_place else slots * chunk * result)
    return Budget(chunk, readers, writers, slots, sweeps > 1 and kept <= device, window)
