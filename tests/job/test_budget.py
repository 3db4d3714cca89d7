"""The memory of a job: it stays within what it is given, and uses it."""

import pytest

from distscan.cpu import memory
from distscan.job import plan
from distscan.job.formats.interface import READERS, WRITERS
from distscan.job.plan import CPU_CHUNK, GPU_CHUNK, Budget, decide_budget
from support.pairs import pairs

SIZES = [1, 2, 4, 8, 16, 32]  # bytes of an element
one_rank = pytest.mark.one_rank


def drawn(rng, gpu, **given):
    """Any job on any machine; sizes of memory from none to very much."""

    def amount():
        return int(2 ** rng.uniform(0, 42)) - 1

    element, result = (int(i) for i in rng.choice(SIZES, 2))
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
        "sweeps": int(rng.integers(1, 3)),
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
    """The bytes of all slots, of the shard if it stays, and of the host's side of all lanes."""
    element, result, mark = job["element"], job["result"], job["mark"]
    threads = max(1, found.readers + found.writers)
    lanes = threads * found.chunk * max(element, result, mark)
    beside = 0 if job["in_place"] else found.slots * found.chunk * result
    elements = job["size"] if found.resident else found.slots * found.chunk
    return elements * (element + mark) + beside, lanes


@one_rank
@pytest.mark.parametrize("turn", range(10))
@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
def test_within_what_is_free(gpu, turn, rng):
    """Whenever there is room for one element in each buffer."""
    for _ in range(200):
        job = drawn(rng, gpu)
        found, (host, device) = decide_budget(**job), shares(job)
        held, lanes = allocated(job, found)
        if gpu:
            assert found.chunk == 1 or lanes <= host
            assert found.chunk == 1 or found.resident or held <= device
            assert not found.resident or held <= device
        else:
            assert found.chunk == 1 or found.resident or held <= host
            assert not found.resident or held <= host


@one_rank
@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
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
@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
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
            assert more.resident >= found.resident or more.chunk > found.chunk
            larger = Budget(found.chunk + 1, READERS, WRITERS, READERS + WRITERS + 1, False)
            room = allocated(job, larger)
            assert found.chunk * large > wanted - large or max(room) > job["limit"]


@one_rank
@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
def test_threads_change_no_chunk(gpu, rng):
    """Nor does the way in which the output is written: sums of floats would have other bits."""
    for _ in range(300):
        job = drawn(rng, gpu)
        others = ({"threads": number, "parallel": way} for number in (1, 3, 64) for way in (0, 1))
        assert len({decide_budget(**job | other).chunk for other in others}) == 1


@one_rank
@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
def test_threads(gpu, rng):
    """One thread does all the work itself, and so does one chunk; several write mappings."""
    for _ in range(300):
        job = drawn(rng, gpu)
        found = decide_budget(**job)
        several = job["size"] > found.chunk
        assert (found.readers, found.writers) == (threads_of(job) if several else (0, 0))
        assert found.slots == found.readers + found.writers + 1


@one_rank
@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
def test_a_shard_stays_if_it_fits(gpu, rng):
    """Only if it is read twice; up to the last byte."""
    stays = set()
    for _ in range(300):
        job = drawn(rng, gpu, sweeps=2, limit=int(rng.integers(1 << 20, 1 << 28)))
        job |= {"free_host": 1 << 40, "free_device": 1 << 40, "size": 1 << 30}
        for _ in range(3):  # the sizes at which it just fits, and just does not
            held, _ = allocated(job, decide_budget(**job)._replace(resident=True))
            over = held - job["limit"]
            job["size"] = max(0, job["size"] - over // (job["element"] + job["mark"]))
        for more in (-1, 0, 1, 2):
            found = decide_budget(**job | {"size": max(job["size"] + more, 0)})
            held, _ = allocated(
                job | {"size": max(job["size"] + more, 0)}, found._replace(resident=True)
            )
            assert found.resident == (held <= job["limit"])
            stays.add(found.resident)
            assert not decide_budget(**job | {"sweeps": 1}).resident
    assert stays == {False, True}


# ---- what jobs allocate ------------------------------------------------------------------------


TYPES = {
    "in place": ("i8", []),
    "wider": ("i2", []),
    "narrower": ("f8", ["--dtype", "f4"]),
    "as wide": ("i8", ["--dtype", "f8"]),
    "bytes": ("u1", ["--op", "logical_xor"]),
    "keys": ("f4", ["--segments", "keys.npy"]),
}


@pairs(types=[*TYPES], limit=[400, 3000, 40000], threads=[1, 3])
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
