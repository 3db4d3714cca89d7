"""The memory of a job, and the chunks of a shard."""

import itertools
import threading
import time

import numpy as np
import pytest

import distscan
from distscan.core.form import Extents, bounds
from distscan.cpu import memory
from distscan.job import plan
from distscan.job.chunks import Chunk, Order, Turns, cut
from distscan.job.formats.interface import READERS, REMOTE_READERS, REMOTE_WRITERS, WRITERS
from distscan.job.plan import CPU_CHUNK, GPU_CHUNK, Budget, decide_budget
from support.cases import pairs

# ---- the memory of a job: it stays within what it is given, and uses it --------------------------

SIZES = [1, 2, 4, 8, 16, 32]  # bytes of an element
one_rank = pytest.mark.one_rank
devices = pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])


def drawn(rng, gpu, **given):
    """Any job on any machine; sizes of memory from none to very much."""

    def amount():
        return int(2 ** rng.uniform(0, 42)) - 1

    element, result = (int(i) for i in rng.choice(SIZES, 2))
    wanted = int(rng.integers(1, 100))
    if rng.integers(2):
        result = element
    return {
        "size": int(rng.integers(0, 10)) * amount(),
        "element": element,
        "result": result,
        "mark": int(rng.choice([0, 0, *SIZES])),
        "in_place": element == result and bool(rng.integers(2)),
        "gpu": gpu,
        "threads": int(rng.choice([1, 1, 2, 3, 4, 5, 8, 9, 64])),
        "turn": lambda chunk: wanted,
        "parallel": bool(rng.integers(2)),
        "limit": amount() + 1 if rng.integers(2) else None,
        "free_host": amount(),
        "free_device": amount(),
    } | given


def shares(job):
    """What a rank may have on the host and on the device."""
    limit = job["limit"]
    host = job["free_host"] if limit is None else min(limit, job["free_host"])
    device = job["free_device"] if limit is None else min(limit, job["free_device"])
    return host, device


def threads_of(job):
    """The threads that read and that write, if there are several chunks."""
    if job["threads"] == 1 and not job["gpu"]:
        return 0, 0
    return min(job["threads"], READERS), min(job["threads"], WRITERS) if job["parallel"] else 1


def allocated(job, found):
    """The bytes of all slots, and of the host's side of all lanes."""
    element, result, mark = job["element"], job["result"], job["mark"]
    threads = max(1, found.readers + found.writers)
    lanes = threads * found.chunk * max(element, result, mark)
    item = element + mark + (0 if job["in_place"] else result)
    return found.slots * found.chunk * item, lanes


@one_rank
@devices
def test_within_what_is_free(gpu, rng):
    """Whenever there is room for one element in each buffer."""
    for _ in range(2000):
        job = drawn(rng, gpu)
        found, (host, device) = decide_budget(**job), shares(job)
        held, lanes = allocated(job, found)
        if gpu:
            assert found.chunk == 1 or lanes <= host
            assert found.chunk == 1 or held <= device
        else:
            assert found.chunk == 1 or held <= host


@one_rank
@devices
def test_one_element_in_each_buffer(gpu, rng):
    """The smallest memory that is enough, and less: then a chunk has one element all the same."""
    for _ in range(300):
        job = drawn(rng, gpu, free_host=1 << 50, free_device=1 << 50)
        each = job["element"] + job["mark"] + (0 if job["in_place"] else job["result"])
        least = (sum(threads_of(job)) + 1) * each
        for limit in (least, least - 1, 1):
            found = decide_budget(**job | {"limit": limit})
            assert found.chunk == 1
            held, lanes = allocated(job, found)
            assert limit < least or max(held, lanes if gpu else 0) <= limit


@one_rank
@devices
def test_chunks_are_of_the_size_that_is_fast(gpu, rng):
    """Where there is enough memory; never larger, and not much smaller than there is memory for."""
    for _ in range(300):
        job = drawn(rng, gpu)
        found, large = decide_budget(**job), max(job["element"], job["result"], job["mark"])
        wanted = GPU_CHUNK if gpu else CPU_CHUNK
        assert found.chunk == 1 or found.chunk * large <= wanted
        much = decide_budget(**job | {"limit": None, "free_host": 1 << 40, "free_device": 1 << 40})
        assert much.chunk == wanted // large
        if job["limit"] is not None and job["limit"] <= min(job["free_host"], job["free_device"]):
            more = decide_budget(**job | {"limit": 2 * job["limit"] + 100})
            assert more.chunk >= found.chunk
            larger = Budget(found.chunk + 1, READERS, WRITERS, READERS + WRITERS + 1)
            room = allocated(job, larger)
            assert found.chunk * large > wanted - large or max(room) > job["limit"]


@one_rank
@devices
def test_threads_change_no_chunk(gpu, rng):
    """Nor does the way in which the output is written: sums of floats would have other bits."""
    for _ in range(300):
        job = drawn(rng, gpu)
        others = ({"threads": number, "parallel": way} for number in (1, 3, 64) for way in (0, 1))
        assert len({decide_budget(**job | other).chunk for other in others}) == 1


@one_rank
@devices
def test_threads(gpu, rng):
    """One thread does all the work itself, and so does one chunk; several write mappings."""
    for _ in range(300):
        job = drawn(rng, gpu)
        found = decide_budget(**job)
        several = job["size"] > found.chunk
        assert (found.readers, found.writers) == (threads_of(job) if several else (0, 0))
        assert found.slots == found.readers + found.writers + found.turn


@one_rank
@devices
def test_from_a_store(gpu, rng):
    """Requests need no cores, and no more slots; what arrives has memory, too."""
    for _ in range(1000):
        job = drawn(rng, gpu) | {"remote": True}
        found, (host, device) = decide_budget(**job), shares(job)
        several = job["size"] > found.chunk
        assert found.readers == (REMOTE_READERS if several else 0)
        least = found.slots - found.turn + 1
        assert least == found.readers + found.writers + 1 <= READERS + WRITERS + 1
        held, lanes = allocated(job, found)
        arrives = max(1, found.readers) * found.chunk * max(job["element"], job["mark"])
        assert found.chunk == 1 or (lanes if gpu else held) + arrives <= host
        assert found.chunk == 1 or not gpu or held <= device
        others = ({"threads": number, "parallel": way} for number in (1, 3, 64) for way in (0, 1))
        assert len({decide_budget(**job | other).chunk for other in others}) == 1


@one_rank
@devices
@pytest.mark.parametrize("remote", [False, True])
def test_into_a_store(remote, gpu, rng):
    """Likewise; the results that leave have memory, too."""
    for _ in range(1000):
        job = drawn(rng, gpu) | {"remote": remote, "remote_target": True}
        found, (host, device) = decide_budget(**job), shares(job)
        several = job["size"] > found.chunk
        assert found.writers == (REMOTE_WRITERS if several else 0)
        least = found.slots - found.turn + 1
        assert least == found.readers + found.writers + 1 <= READERS + WRITERS + 1
        held, lanes = allocated(job, found)
        leaves = max(1, found.writers) * found.chunk * job["result"]
        assert found.chunk == 1 or (lanes if gpu else held) + leaves <= host
        assert found.chunk == 1 or not gpu or held <= device


@one_rank
@devices
def test_a_round_has_as_many_chunks_as_there_is_memory_for(gpu, rng):
    """No more than are wanted."""
    for _ in range(300):
        job = drawn(rng, gpu, free_host=1 << 50, free_device=1 << 50)
        wanted = job["turn"](0)
        found = decide_budget(**job)
        assert found.turn <= (wanted if job["size"] > found.chunk else 1)
        if found.turn == wanted or job["size"] <= found.chunk:
            continue
        assert allocated(job, found._replace(slots=found.slots + 1))[0] > job["limit"]


# ---- what jobs allocate ------------------------------------------------------------------------


TYPES = {
    "in place": ("i8", []),
    "wider": ("i2", []),
    "narrower": ("f8", ["--dtype", "f4"]),
    "as wide": ("i8", ["--dtype", "f8"]),
    "bytes": ("u1", ["--op", "logical_xor"]),
    "keys": ("f4", ["--segments", "keys.npy"]),
}


@pairs(types=[*TYPES], limit=[400, 3000, 40000], threads=[1, 3], group_by="types")
def test_a_job_allocates_no_more(types, limit, threads, run, save, comm, rng, monkeypatch):
    """Than ``--memory`` says: what is in place is so because its types are equal."""
    sizes, empty, (code, options) = [], memory.empty, TYPES[types]

    def counted(n, dtype):
        sizes.append(n * dtype.itemsize)
        return empty(n, dtype)

    monkeypatch.setattr(memory, "empty", counted)
    monkeypatch.setattr(plan, "CPU_CHUNK", int(rng.integers(100, 1000)))
    x = rng.integers(0, 2, 2 * int(rng.integers(100, 400))).astype(code)
    save("keys.npy", rng.integers(0, 2, x.size))
    for shape in ((x.size,), (2, x.size // 2), (x.size // 2, 2)):
        save("x.npy", x.reshape(shape))
        sizes.clear()
        along = [] if "--segments" in options else ["--axis", "0"]
        status, _, err = run(
            "x.npy", "--backend", "cpu", "--memory", str(limit), "--quiet", *along,
            "--threads", str(threads), "--force", *options,
        )  # fmt: skip
        assert status == 0, err
        every = comm.allgather(sum(sizes))
        assert 0 < max(every) <= limit


# ---- the chunks of a shard: each element is in one of them, and they follow the order of the scan

orders = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


def elements(chunk):
    """The indices in the shard of a chunk's elements [outer, n, inner], from its runs."""
    found = np.full(chunk.size, -1)
    for index, low, high in chunk.runs():
        assert 0 <= low < high <= chunk.size
        assert (found[low:high] == -1).all()
        found[low:high] = np.arange(index, index + high - low)
    assert (found >= 0).all()
    return found.reshape(chunk.outer, chunk.n, chunk.inner)


def check(extents, most, *, goes_on, reverse):
    """Follow each line through the chunks, as a running value would; return the blocks."""
    blocks = cut(extents, 0, most, Order(goes_on, reverse))
    n, inner = extents.length, extents.inner
    every, columns = [], []
    for block in blocks:
        columns += range(block.column, block.column + block.width)
        before = None  # the lines [outer, inner] of the chunk before, and how far they are
        for chunk in block:
            at = elements(chunk)
            every.append(at.reshape(-1))
            assert 0 < chunk.size <= most
            assert chunk.start == at[0, 0, 0]
            assert (chunk.inner, chunk.pitch) == (block.width, inner)
            rows, lines = at // inner % n, at // (n * inner) * inner + at % inner
            assert (lines == lines[:, :1]).all()
            assert (rows == rows[:1, :, :1]).all()
            order = rows[0, ::-1, 0] if reverse else rows[0, :, 0]
            walk = n - 1 - order if reverse else order
            assert (np.diff(walk) == 1).all()
            if before is None or before[1] == n:
                assert walk[0] == 0
            else:
                assert walk[0] == before[1]
                np.testing.assert_array_equal(lines[:, 0], before[0])
            before = lines[:, 0], walk[-1] + 1
            assert chunk.begins == (walk[0] == 0)
            assert chunk.whole == (not goes_on and len(walk) == n)
            assert chunk.last_rank == 0  # a rank alone ends a round with each chunk
            check_extents(chunk)
        assert before is None or before[1] == n
    assert columns == list(range(inner))
    found = np.concatenate(every) if every else np.zeros(0, int)
    np.testing.assert_array_equal(np.sort(found), np.arange(extents.size))
    return blocks


def check_extents(chunk):
    """What the scan of a chunk is made for."""
    extents = chunk.extents
    assert extents.size == chunk.size
    assert (extents.outer, extents.length, extents.inner) == (chunk.outer, chunk.n, chunk.inner)
    assert extents.goes_on == (not chunk.whole)
    assert chunk.outer == 1 or chunk.whole
    assert extents.has_rows == (extents.goes_on and chunk.inner > 1)


@one_rank
@orders
@pytest.mark.parametrize("goes_on", [False, True], ids=["ends", "goes-on"])
def test_rows(goes_on, reverse):
    """Flat, or along axis 0: as many rows as a chunk has room for, or parts of one."""
    widths = (1, 2, 4, 5, 6, 11, 12, 13, 61)
    for most, inner in itertools.product((1, 2, 3, 5, 7, 12, 30, 64), widths):
        rows = max(1, most // inner)
        for n in {max(rows * i + d, 0) for i in range(4) for d in (-1, 0, 1)}:
            extents = Extents.of((n, inner), 0) if inner > 1 else Extents.of((n,), None)
            blocks = check(extents, most, goes_on=goes_on, reverse=reverse)
            assert len(blocks) == -(-inner // most)
            for block in blocks if inner <= most else []:
                heights = [chunk.n for chunk in block]
                assert len(heights) == -(-n // rows)
                assert set(heights[1:] if reverse else heights[:-1]) <= {rows}


@one_rank
@orders
@pytest.mark.parametrize("axis", [1, 2])
def test_matrices_within(axis, reverse):
    """Along an inner axis: several matrices a chunk, one, or parts of one."""
    shapes = itertools.product((1, 2, 5), (1, 2, 3, 8), (1, 2, 3, 8, 9))
    for shape, most in itertools.product(shapes, (1, 3, 8, 24, 25, 200)):
        extents = Extents.of(shape, axis)
        blocks = check(extents, most, goes_on=False, reverse=reverse)
        matrix = extents.length * extents.inner
        if matrix <= most:  # whole matrices, as many as possible
            (block,) = blocks
            heights = [chunk.outer for chunk in block]
            assert all(chunk.begins and chunk.whole for chunk in block)
            assert heights[:-1] == [min(most // matrix, extents.outer)] * (len(heights) - 1)


@one_rank
def test_random_extents(rng):
    """Some have no elements, and no chunks."""
    shapes = [rng.integers(0, 12, rng.integers(1, 5)).tolist() for _ in range(400)]
    for shape in [[0], [0, 5], [3, 0, 5], [3, 5, 0], *shapes]:
        for axis in (None, *range(len(shape))):
            extents = Extents.of(tuple(shape), axis)
            goes_on = extents.goes_on and bool(rng.integers(2))
            most = int(rng.integers(1, 2 * extents.size + 2))
            blocks = check(extents, most, goes_on=goes_on, reverse=bool(rng.integers(2)))
            assert extents.size > 0 or not any(list(block) for block in blocks)


@one_rank
def test_blocks(rng):
    """A long row is cut into as few blocks as can be, about as wide, the same on all ranks.

    Blocks are exchanged in turn, also by ranks that have no rows.
    """
    for _ in range(100):
        n, inner, most, ranks = (int(i) for i in rng.integers(1, [40, 200, 200, 40]))
        columns = []
        for rank in range(ranks):
            low, high = bounds(n, ranks, rank)
            blocks = cut(Extents.of((high - low, inner), 0), 0, most, Order(True, False))
            columns.append([(block.column, block.width) for block in blocks])
        assert all(each == columns[0] for each in columns)
        widths = [width for _, width in columns[0]]
        assert len(widths) == -(-inner // most)
        assert max(widths) == -(-inner // len(widths))


@one_rank
@orders
def test_rounds(reverse, rng):
    """Ranks take turns: together they have all rows, in rounds of as many chunks on each rank."""
    for _ in range(200):
        n, length, size, chunks, grain = (int(i) for i in rng.integers([0, 1, 1, 1, 1], 12) + 0)
        turns = Turns(size, 0, chunks, grain, whole=bool(rng.integers(2)))
        ranks = [
            list(turns._replace(rank=rank).rounds(n, length, reverse=reverse))
            for rank in range(size)
        ]
        walk = []
        for round_ in zip(*ranks, strict=True):
            parts = round_[::-1] if reverse else round_
            last = [rank for rank, cuts in enumerate(round_) if any(c.low < c.high for c in cuts)]
            for cuts in parts:
                assert len(cuts) == len(parts[0])
                assert [cut.last_rank for cut in cuts[:-1]] == [-1] * (len(cuts) - 1)
                assert cuts[-1].last_rank == (0 if reverse else last[-1])
                for low, high, _ in cuts:
                    assert 0 <= high - low <= length
                    walk += range(low, high)[:: -1 if reverse else 1]
        assert walk == list(range(n))[:: -1 if reverse else 1]
        if turns.whole:
            starts = {cuts[0].low for cuts in itertools.chain(*ranks) if chunks * length >= grain}
            assert all(low % grain == 0 or low == n for low in starts) or reverse


@one_rank
def test_long_axes_take_no_time():
    """Chunks are made one after the other, when they are asked for."""
    extents = Extents.of((1 << 60,), None)
    for reverse in (False, True):
        (block,) = cut(extents, 0, 1 << 20, Order(True, reverse))
        first, second = itertools.islice(block, 2)
        assert first.size == second.size == 1 << 20
        low, high = (second, first) if reverse else (first, second)
        assert low.start + low.size == high.start
        assert first.start == ((1 << 60) - (1 << 20) if reverse else 0)


@one_rank
def test_whole_rows_are_one_run(rng):
    start, outer, n, inner = (int(i) for i in rng.integers(1, 100, 4))
    whole = Chunk(start, outer, n, inner, inner, begins=True, whole=True)
    assert list(whole.runs()) == [(start, 0, outer * n * inner)]
    part = Chunk(start, 1, n, inner, inner + 1, begins=False, whole=False)
    assert len(list(part.runs())) == n


# ---- the memory that a file job takes, as the system counts it: ``--memory`` and 10 % at most ----

MIB = 1 << 20
SIZE = 96 * MIB


def anonymous():
    """Bytes of anonymous and shared memory of this process; mapped pages are not counted."""
    with open("/proc/self/status") as file:
        found = dict(line.split(":") for line in file.read().splitlines())
    return int(found["RssAnon"].split()[0]) << 10


def highest(work):
    """Run a job, and return the most memory at a time that it added."""
    before, seen, ended = anonymous(), [0], threading.Event()

    def watch():
        while not ended.is_set():
            seen.append(anonymous())
            time.sleep(0.0005)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        work()
    finally:
        ended.set()
        thread.join()
    assert len(seen) > 20
    return max(seen) - before


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A file much larger than what its scans may take."""
    path = tmp_path_factory.mktemp("memory") / "x.npy"
    x = np.lib.format.open_memmap(path, "w+", "i4", (SIZE // 4,))
    x[...] = np.arange(x.size) % 1009
    del x
    return path


@one_rank
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("memory", "options"),
    [(16, {}), (32, {"dtype": "f8"}), (16, {"reverse": True, "op": "max"}), (24, {"raw": "f4"})],
    ids=["in_place", "wider", "reverse", "raw"],
)
def test_as_asked_for(memory, options, threads, source, tmp_path):
    def work():
        distscan.scan_file(source, tmp_path / "y.npy", memory=memory * MIB, threads=threads,
                           backend="cpu", force=True, **options)  # fmt: skip

    work()  # what is imported, and threads' stacks, are not the job's
    assert highest(work) <= 1.1 * memory * MIB + MIB


def test_rounds_of_long_rows(comm, folder, rng):
    """Totals of chunks count, too; with a state, ranks exchange them."""
    x, memory = rng.integers(0, 9, (48, 1 << 18)), 40 * MIB  # a row has 2 MiB
    if comm.rank == 0:
        np.save(folder / "x.npy", x)
    comm.Barrier()

    def work():
        distscan.scan_file(folder / "x.npy", folder / "y.npy", axis=0, memory=memory, threads=1,
                           state=folder / "s", backend="cpu", force=True, comm=comm)  # fmt: skip

    work()
    comm.Barrier()
    if comm.rank == 0:
        (folder / "s").unlink()
    comm.Barrier()
    assert highest(work) <= 1.1 * memory + MIB
    np.testing.assert_array_equal(np.load(folder / "y.npy"), x.cumsum(0))


@one_rank
def test_found_otherwise(source, tmp_path):
    """One rank needs no shard in memory, however much of it is free."""

    def work():
        distscan.scan_file(source, tmp_path / "y.npy", threads=2, backend="cpu", force=True)

    work()
    assert highest(work) < SIZE / 2
