"""The progress of all ranks, the bar, and ``--trace``."""

import io
import itertools
import json
import re
import sys
import threading
import time
import types
from collections import Counter
from itertools import product

import numpy as np
import pytest

from distscan import cli
from distscan.core import form
from distscan.core.errors import RankError
from distscan.cpu import steps
from distscan.job import rounds
from distscan.job.progress import Course, Progress
from distscan.mpi import notices
from distscan.mpi.agree import agreed
from distscan.mpi.notices import Notices, watching
from support.jobs import RANKS, Streams, some
from support.processes import everywhere, left

pytestmark = pytest.mark.timeout(60)


# ---- the progress of all ranks reaches rank 0, and a fault of one rank ends the work of all ------

SOON = 10  # seconds, for a machine that has more ranks than cores


@pytest.fixture
def own(comm, rng):
    """Random numbers of this rank alone."""
    return np.random.default_rng([int(rng.integers(1 << 32)), comm.rank])


@pytest.fixture(autouse=True)
def nothing_is_left(comm):
    """No message waits for a later call."""
    yield
    comm.Barrier()
    if comm.size > 1:
        assert not any(
            notices.aside(comm).Iprobe(tag=tag) for tag in (notices._PROGRESS, notices._STOP)
        )
    comm.Barrier()


def no_show(done):
    """Progress that nobody looks at."""


def work(note, seconds=SOON):
    """Go on until another rank has failed, which must be soon."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        note(1)
        time.sleep(0.0005)
    pytest.fail("a fault of another rank was not heard of")


@pytest.mark.parametrize("period", [0, 0.005, 1000])
def test_totals(period, comm, own, monkeypatch):
    """The last that is shown is the sum of all, in every one of many sweeps."""
    monkeypatch.setattr(notices, "_PERIOD", period)
    for _ in range(5):
        done, shown = own.integers(0, 1 << 40, own.integers(0, 30)).tolist(), []
        with agreed(comm), watching(comm, shown.append) as note:
            for each in done:
                note(each)
                time.sleep(0.001 * own.integers(0, 2))
        whole = sum(comm.allgather(sum(done)))
        if comm.rank == 0:
            assert shown[-1] == whole
            assert shown == sorted(shown)
        else:
            assert shown == []


def test_shown_meanwhile(comm, own, monkeypatch):
    """Rank 0 shows the progress of ranks that are ahead of it, and of those that are behind."""
    monkeypatch.setattr(notices, "_PERIOD", 0)
    shown, mine = [0], int(own.integers(1, 1000))
    rest = sum(comm.allgather(0 if comm.rank == 0 else mine))
    with agreed(comm), watching(comm, shown.append) as note:
        if comm.rank > 0:
            note(mine)
        else:
            end = time.monotonic() + SOON
            while shown[-1] < rest and time.monotonic() < end:
                note(0)
            assert shown[-1] == rest
    with agreed(comm), watching(comm, shown.append) as note:
        for _ in range(3 if comm.rank > 0 else 0):
            note(mine)
            time.sleep(0.01)
    assert comm.rank > 0 or shown[-1] == 3 * rest


@pytest.mark.parametrize("period", [0, 0.1])
@pytest.mark.parametrize("who", ["first", "last", "middle"])
@pytest.mark.parametrize("after", [0, 3], ids=["at-once", "later"])
def test_a_fault_stops_all(after, who, period, comm, monkeypatch):
    monkeypatch.setattr(notices, "_PERIOD", period)
    guilty = {"first": 0, "last": comm.size - 1, "middle": comm.size // 2}[who]

    def call():
        with agreed(comm), watching(comm, no_show) as note:
            for _ in range(after):
                note(1)
                time.sleep(0.01)
            if comm.rank == guilty:
                raise OSError("the disk is full")
            work(note)

    begin = time.monotonic()
    text = everywhere(comm, OSError, "the disk is full", call)
    assert time.monotonic() - begin < SOON
    if comm.size > 1:
        assert text == f"rank {guilty}: the disk is full"


def test_what_the_others_raise(comm):
    """They end by an exception that says why, and that the agreement leaves out."""
    kinds = []

    def call():
        with agreed(comm), watching(comm, no_show) as note:
            try:
                if comm.rank == comm.size - 1:
                    raise ZeroDivisionError("mine")
                work(note)
            except Exception as error:
                kinds.append(type(error))
                raise

    everywhere(comm, ZeroDivisionError, "mine", call)
    assert comm.allgather(kinds[0]) == [RankError] * (comm.size - 1) + [ZeroDivisionError]


@pytest.mark.parametrize("who", ["first", "last"])
def test_ranks_that_have_ended(who, comm):
    """The fault of a slow rank reaches those that wait for it at the end."""
    guilty = 0 if who == "first" else comm.size - 1

    def call():
        with agreed(comm), watching(comm, no_show) as note:
            note(1)
            if comm.rank == guilty:
                time.sleep(0.2)
                raise OSError("late")

    everywhere(comm, OSError, "late", call)


def test_all_fail_at_once(comm):
    def call():
        with agreed(comm), watching(comm, no_show) as note:
            note(1)
            raise ValueError("no chunk")

    everywhere(comm, ValueError, "no chunk", call)


@pytest.mark.parametrize("who", ["first", "last"])
def test_interrupted(who, comm):
    """Ctrl-C on one rank: it raises, and so do the others."""
    guilty = 0 if who == "first" else comm.size - 1
    kind = KeyboardInterrupt if comm.rank == guilty else RuntimeError

    def call():
        with agreed(comm), watching(comm, no_show) as note:
            if comm.rank == guilty:
                raise KeyboardInterrupt
            work(note)

    with pytest.raises(kind):
        call()


@pytest.mark.parametrize("kind", [BrokenPipeError, KeyboardInterrupt])
@pytest.mark.parametrize("when", ["meanwhile", "at-the-end"])
def test_progress_that_cannot_be_shown(when, kind, comm, monkeypatch):
    """Stderr may be closed; the ranks then end together, whatever they do."""
    monkeypatch.setattr(notices, "_PERIOD", 0)

    def show(done):
        raise kind("no reader")

    def call():
        with agreed(comm), watching(comm, show) as note:
            if when == "meanwhile":
                work(note)

    if kind is BrokenPipeError:
        everywhere(comm, kind, "no reader", call)
        return
    with pytest.raises(kind if comm.rank == 0 else RuntimeError):
        call()


def test_progress_that_cannot_be_shown_after_a_fault(comm):
    """The first fault is the one that all learn of."""

    def show(done):
        raise BrokenPipeError("no reader")

    def call():
        with agreed(comm), watching(comm, show):
            if comm.rank == comm.size - 1:
                raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        call()


def test_sweeps_after_faults(comm, rng, own, monkeypatch):
    """Nothing of a sweep that failed is counted in the next one."""
    monkeypatch.setattr(notices, "_PERIOD", 0)
    for _ in range(20):
        guilty, shown = int(rng.integers(-1, comm.size)), []
        done = own.integers(0, 100, own.integers(0, 9)).tolist()

        def call(guilty=guilty, shown=shown, done=done):
            with agreed(comm), watching(comm, shown.append) as note:
                for each in done:
                    note(each)
                if comm.rank == guilty:
                    raise OSError("no more")

        if guilty >= 0:
            everywhere(comm, OSError, "no more", call)
        else:
            call()
            whole = sum(comm.allgather(sum(done)))
            assert comm.rank > 0 or shown[-1] == whole


def test_messages_of_the_caller(comm):
    """They are another communicator's, whatever their tags."""
    sent = [comm.isend("mine", 0, tag) for tag in (1, 2)] if comm.rank > 0 else []
    with agreed(comm), watching(comm, no_show) as note:
        note(1)
    if comm.rank == 0:
        for rank in range(1, comm.size):
            assert [comm.recv(source=rank, tag=tag) for tag in (1, 2)] == ["mine", "mine"]
    for request in sent:
        request.wait()


def test_notices_that_nobody_received(comm):
    """A plan that is gone leaves some, whatever its number was; they are no progress."""
    if comm.size == 1:
        return
    numbers = range(4)
    for number in numbers:
        if comm.rank == comm.size - 1:
            Notices(comm, number, reverse=False).send(OSError("the disk is full"))
    comm.Barrier()
    shown = []
    with agreed(comm), watching(comm, shown.append) as note:
        note(comm.rank)
    assert comm.rank > 0 or shown[-1] == comm.size * (comm.size - 1) // 2
    for number in numbers:  # whoever comes next finds none
        Notices(comm, number, reverse=False).receive()


# ---- one share for all phases of a job -----------------------------------------------------------

one_rank = pytest.mark.one_rank


class Terminal(io.StringIO):
    """A terminal that notes all that is written."""

    def isatty(self):
        return True


def shares(text):
    """The percentages that a bar has shown, in order."""
    return [int(number) for number in re.findall(r"(\d+)%", text)]


@one_rank
def test_shares():
    """By the bytes that each phase moves; one that does not come leaves its part to the others."""
    seen = []
    course = Course({"window": 100, "scan": 200, "check": 100}, seen.append)
    course.show("scan", 100, 200)  # no window: 300 bytes are the whole
    assert seen[-1] == ("scan", 100, 200, pytest.approx(1 / 3))
    course.show("scan", 200, 200)
    course.show("write", 0, 0)  # of a phase that nobody has planned, nothing is known
    assert seen[-1] == ("write", 0, 0, pytest.approx(2 / 3))
    course.show("check", 50, 100)
    assert seen[-1].share == pytest.approx(5 / 6)
    course.show("check", 40, 100)
    assert seen[-1].share == pytest.approx(5 / 6)
    course.show("check", 100, 100)
    assert seen[-1].share == 1


@one_rank
def test_shares_of_random_jobs(rng):
    """They never fall, never pass 1, and end at 1 if the last phase with bytes does."""
    for _ in range(300):
        names = [f"phase {i}" for i in range(rng.integers(1, 6))]
        sizes = {name: int(rng.integers(0, 3) * rng.integers(1, 1 << 40)) for name in names}
        seen = []
        course = Course(sizes, seen.append)
        for name in names:
            if name != names[-1] and rng.integers(3) == 0:
                continue
            end = 1.0 if name == names[-1] else rng.random()
            for done in np.sort(rng.random(5)) * end:
                course.show(name, int(done * sizes[name]), sizes[name])
        course.show(names[-1], sizes[names[-1]], sizes[names[-1]])
        found = [each.share for each in seen]
        assert found == sorted(found)
        assert 0 <= found[0] <= found[-1] <= 1 + 1e-12
        if sizes[names[-1]] > 0:
            assert found[-1] == pytest.approx(1)


JOBS = {
    "scan": [],
    "check": ["--check"],
    "fsum": ["--op", "fsum"],
    "resume": ["--resume"],
    "format": ["-o", "y.h5::y"],
    "upload": ["-o", "memory://progress/y.npy", "--force"],
    "columns": ["--axis", "0", "--check"],
}


@pytest.mark.parametrize("case", JOBS)
def test_one_percentage(case, run, save, comm, rng, monkeypatch):
    """From the begin to the end of a job the bar never goes back, whatever the phases are."""
    if case == "format":
        pytest.importorskip("h5py")
    if case == "upload":
        pytest.importorskip("fsspec")
    monkeypatch.setattr(cli, "_REWRITTEN", 0)
    monkeypatch.setattr(notices, "_PERIOD", 0)
    monkeypatch.setattr(rounds, "_WATCHED", 0)
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    save("x.npy", rng.normal(size=(1 << 9, 5 << 9)))
    small = ["--memory", "1M", "--threads", "1", "--backend", "cpu"]
    status, _, _ = run("x.npy", *JOBS[case], *small)
    text = stream.getvalue()
    assert status == 0, text
    if comm.rank > 0:
        assert text == ""
        return
    found = shares(text)
    assert found == sorted(found)
    assert found[0] < 50
    assert found[-1] == 100
    assert len(set(found)) > 5
    assert max(map(len, text.split("\r\033[K"))) < 80
    assert re.search(r"\[#+\.*\] +\d+%  scan \d.* of 0.01 GB  \d.* GB/s  \d+ s left", text)
    assert text.endswith("\r\033[K")  # the bar is removed


@one_rank
def test_the_bar(monkeypatch):
    """The rate is that of the phase, the time that is left that of the job."""
    stream, clock = Terminal(), itertools.count()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(cli, "monotonic", lambda: 10.0 * next(clock))
    bar = cli.ProgressBar(quiet=False)
    for progress in (
        Progress("queued"),
        Progress("scan", 10**9, 4 * 10**9, 0.1),
        Progress("scan", 2 * 10**9, 4 * 10**9, 0.2),
        Progress("check", 10**12, 10**15, 0.21),
        Progress("queued"),  # the service was started again
        Progress("scan", 0, 4 * 10**9, 0.999),
    ):
        bar.show(progress)
    assert stream.getvalue().split("\r\033[K")[1:] == [
        "distscan: queued",
        "distscan: [#.........]  10%  scan 1.00 of 4.00 GB",
        "distscan: [##........]  20%  scan 2.00 of 4.00 GB  0.20 GB/s  1:20 left",
        "distscan: [##........]  21%  check 1000.00 of 1000000.00 GB  2:24 left",
        "distscan: queued",
        "distscan: [#########.]  99%  scan",
    ]


@one_rank
def test_without_a_terminal(capsys, monkeypatch):
    """A line when a phase begins, and one now and then."""
    times = iter([0.0, 1.0, 12.0, 13.0])
    monkeypatch.setattr(cli, "monotonic", lambda: next(times))
    bar = cli.ProgressBar(quiet=False)
    for progress in (
        Progress("scan", 10**9, 10**10, 0.05),
        Progress("scan", 2 * 10**9, 10**10, 0.10),  # too early
        Progress("scan", 6 * 10**9, 10**10, 0.30),
        Progress("check", 0, 0, 0.5),
    ):
        bar.show(progress)
    assert capsys.readouterr().err.splitlines() == [
        "distscan: scan",
        "distscan: [###.......]  30%  scan 6.00 of 10.00 GB  0.50 GB/s  34 s left",
        "distscan: check",
    ]


# ---- ``--trace``: the work of all ranks on every chunk, and the ranges that Nsight shows ---------

STEP = 2  # microseconds: times are seconds since 1970, whose last bit is a quarter of one


@pytest.fixture
def streams(run, save, folder, rng, monkeypatch):
    return Streams(run, save, folder, rng, monkeypatch)


def traced(folder, name="t.json"):
    """The spans of a trace and the names of its processes and threads, once it is valid."""
    text = json.loads((folder / name).read_text())
    assert set(text) <= {"traceEvents", "displayTimeUnit", "otherData", "metadata"}
    assert text["displayTimeUnit"] in ("ms", "ns")
    spans, names = [], {}
    for event in text["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            key = event["name"], event["pid"], event["tid"] * (event["name"] == "thread_name")
            assert key not in names
            names[key] = event["args"]["name"]
            continue
        assert event["ph"] == "X"
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        assert event["args"]["bytes"] >= 0
        spans.append(event)
    for span in spans:
        assert ("process_name", span["pid"], 0) in names
        assert ("thread_name", span["pid"], span["tid"]) in names
    return spans, names


def of(spans, phase, rank):
    return [span for span in spans if (span["name"], span["pid"]) == (phase, rank)]


def moved(spans, phase, rank):
    """How many chunks of how many bytes a rank has moved in a phase."""
    return Counter(bytes for span in of(spans, phase, rank) if (bytes := span["args"]["bytes"]))


def lie_inside(spans):
    """The spans of each rank lie inside its job, and those of a thread inside each other."""
    for rank in range(RANKS):
        (whole,), (start,) = of(spans, "all", rank), of(spans, "start", rank)
        assert start["ts"] == pytest.approx(whole["ts"], abs=STEP)
        for span in spans:
            if span["pid"] == rank:
                assert span["ts"] >= whole["ts"] - STEP
                assert span["ts"] + span["dur"] <= whole["ts"] + whole["dur"] + STEP
        reads = of(spans, "read", rank)
        assert all(read["ts"] >= start["ts"] + start["dur"] - STEP for read in reads)
        for thread in {span["tid"] for span in spans if span["pid"] == rank}:
            mine = [span for span in spans if (span["pid"], span["tid"]) == (rank, thread)]
            ends = []
            for span in sorted(mine, key=lambda span: (span["ts"], -span["dur"])):
                end = span["ts"] + span["dur"]
                while ends and ends[-1] <= span["ts"] + STEP:
                    ends.pop()
                assert not ends or end <= ends[-1] + STEP
                ends.append(end)


@pytest.mark.parametrize(
    ("way", "threads", "marks"),
    some(product(["streaming", "ample"], [1, 3], ["none", "?", "U3"])),
)
def test_every_chunk(way, threads, marks, streams, comm, folder, rng):
    streams.choose(way, threads, "reduce-scan", most=800)
    streams.options += ["--trace", "t.json"]
    n = int(rng.integers(300, 900))
    x, keys = rng.integers(0, 9, n).astype("i4"), None
    if marks != "none":
        keys = np.sort(rng.integers(0, 2 if marks == "?" else 99, n)).astype(marks)
    streams.scan(x, "sum", [["--reverse"], []][rng.integers(2)], marks=keys)
    spans, names = traced(folder)
    ranks = comm.allgather((streams.found[-1].chunk, streams.found[-1].turn))
    chunk, turn = (min(each) for each in zip(*ranks, strict=True))
    for rank in range(RANKS):
        assert names["process_name", rank, 0] == f"rank {rank}"
        rounds = [high - low for low, high in form.chunks(0, n, chunk * turn * RANKS)]
        parts = [form.bounds(rows, RANKS, rank) for rows in rounds]
        sizes = [high - low for part in parts for low, high in form.chunks(*part, chunk)]
        of_keys = 0 if keys is None else keys.itemsize
        expected = [size * 4 for size in sizes] + [size * of_keys for size in sizes if of_keys]
        assert moved(spans, "read", rank) == Counter(expected)
        assert moved(spans, "scan", rank) == Counter(size * (4 + 8) for size in sizes)
        assert moved(spans, "write", rank) == Counter(size * 8 for size in sizes)
        assert moved(spans, "reduce", rank) == Counter(size * 4 for size in sizes * (RANKS > 1))
        assert len(of(spans, "exscan", rank)) == len(rounds) * (RANKS > 1)
        assert not of(spans, "check", rank) or marks == "none"  # marked ones cannot be checked
        for phase in ("copy_in", "copy_out"):
            assert not of(spans, phase, rank)
        readers = {names["thread_name", rank, span["tid"]] for span in of(spans, "read", rank)}
        scanners = {names["thread_name", rank, span["tid"]] for span in of(spans, "scan", rank)}
        assert len(scanners) == 1
        assert (readers == scanners) == (threads == 1)
    assert {span["pid"] for span in spans} == set(range(RANKS))
    lie_inside(spans)


@pytest.mark.parametrize("axis", [0, 1])
def test_rows(axis, run, save, comm, folder, rng):
    """Rows that are longer than a chunk: each piece of a row is one."""
    x = rng.integers(0, 9, (6, 100))
    save("x.npy", x)
    options = ["--axis", str(axis), "--memory", "500", "--threads", "1", "--backend", "cpu"]
    status, out, err = run("x.npy", "--trace", "t.json", "--json", "--quiet", *options, "--check")
    assert status == 0, err
    spans, _ = traced(folder)
    lie_inside(spans)
    report = json.loads(out)
    for phase in ("read", "reduce", "exscan", "scan", "write", "check"):
        found = [span for rank in range(RANKS) for span in of(spans, phase, rank)]
        assert sum(span["args"]["bytes"] for span in found) == report["bytes"][phase]
        longest = max(sum(span["dur"] for span in of(spans, phase, rank)) for rank in range(RANKS))
        assert report["seconds"][phase] == pytest.approx(longest / 1e6, abs=1e-5 * (len(found) + 1))
    assert report["bytes"]["write"] == x.nbytes
    assert left(comm, folder) == ["t.json", "x.npy", "x.scan.npy"]


def test_files_without_elements(run, save, folder):
    """And with fewer elements than ranks: every rank is there."""
    for n in (0, 1):
        save("x.npy", np.arange(n))
        status, _, err = run("x.npy", "--trace", "t.json", "--force", "--quiet")
        assert status == 0, err
        spans, _ = traced(folder)
        assert {span["pid"] for span in spans} == set(range(RANKS))
        assert sum(span["args"]["bytes"] for span in spans if span["name"] == "write") == 8 * n
        lie_inside(spans)


def test_a_second_job(run, save, folder):
    """It begins when it begins, not with the process; an old trace is replaced."""
    save("x.npy", np.arange(100))
    for _ in range(2):
        assert run("x.npy", "--trace", "t.json", "--force", "--quiet")[0] == 0
        lie_inside(traced(folder)[0])


def test_no_trace(run, save, comm, folder):
    """Where it cannot be written there is no result either, and without ``--trace`` none is."""
    save("x.npy", np.arange(100))
    for path in ("none/t.json", "."):
        status, out, err = run("x.npy", "--trace", path, "--quiet")
        assert (status, out) == (2, ""), err
        assert err.count("\n") == 1
        assert left(comm, folder) == ["x.npy"]
    assert run("x.npy", "--quiet")[0] == 0
    assert left(comm, folder) == ["x.npy", "x.scan.npy"]


# ---- ranges for Nsight -----------------------------------------------------------------------


@pytest.fixture
def ranges(monkeypatch):
    """A module ``nvtx`` that notes what each thread opens and closes."""
    noted = []

    def push_range(message=None, color=None, domain=None, category=None, payload=None):
        noted.append((threading.get_ident(), message, domain))

    def pop_range(domain=None):
        noted.append((threading.get_ident(), None, domain))

    nvtx = types.ModuleType("nvtx")
    nvtx.push_range, nvtx.pop_range = push_range, pop_range
    monkeypatch.setitem(sys.modules, "nvtx", nvtx)
    return noted


def closed(noted):
    """Every range is closed by its thread, in its domain; return how often each was opened."""
    opened, counts = {}, Counter()
    for thread, message, domain in noted:
        assert domain == "distscan"
        stack = opened.setdefault(thread, [])
        if message is None:
            assert stack, "closed without having been opened"
            stack.pop()
        else:
            stack.append(message)
            counts[message] += 1
    assert not any(opened.values())
    return counts


@pytest.mark.parametrize("threads", ["1", "3"])
def test_ranges(threads, ranges, run, save, comm, folder, rng):
    save("x.npy", rng.integers(0, 9, 500))
    options = ["--trace", "t.json", "--memory", "500", "--threads", threads, "--backend", "cpu"]
    status, _, err = run("x.npy", "--quiet", *options)
    assert status == 0, err
    counts = closed(ranges)
    spans = Counter(
        span["name"] for span in traced(folder)[0]
        if span["pid"] == comm.rank and span["name"] not in ("start", "all")
    )  # fmt: skip
    assert counts == spans
    assert counts["scan"] > 1


def test_ranges_without_a_trace(ranges, run, save, monkeypatch):
    """Under Nsight Systems, which says so; and not otherwise."""
    save("x.npy", np.arange(100))
    monkeypatch.delenv("NSYS_PROFILING_SESSION_ID", raising=False)
    assert run("x.npy", "--quiet")[0] == 0
    assert not ranges
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "7")
    assert run("x.npy", "--quiet", "--force")[0] == 0
    assert closed(ranges)["scan"] >= 0
    assert {"write"} <= set(closed(ranges))


@pytest.mark.parametrize("threads", ["1", "3"])
def test_ranges_of_a_job_that_fails(threads, ranges, run, save, comm, folder, monkeypatch):
    """They are closed, too, and no trace is left."""

    def fails(*_, **__):
        raise MemoryError("no room")

    save("x.npy", np.arange(500))
    monkeypatch.setattr(steps.ReduceScan, "finish", fails)
    options = ["--memory", "500", "--threads", threads, "--backend", "cpu"]
    status, _, err = run("x.npy", "--quiet", "--trace", "t.json", *options)
    assert status == 1
    assert "no room" in err
    assert closed(ranges)["read"] > 0
    assert left(comm, folder) == ["x.npy"]


def test_without_nvtx(run, save, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)  # its import fails
    save("x.npy", np.arange(50))
    assert run("x.npy", "--quiet", "--trace", "t.json")[0] == 0
    lie_inside(traced(folder)[0])
