"""``--trace``: the work of all ranks on every chunk, and the ranges that Nsight shows."""

import json
import sys
import threading
import types
from collections import Counter
from itertools import product

import numpy as np
import pytest

from distscan.core import form
from distscan.cpu import steps
from support.streams import RANKS, Streams, some
from support.together import left

pytestmark = pytest.mark.timeout(60)
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
    some(product(["streaming", "resident"], [1, 3], ["none", "?", "U3"])),
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
    found, chunk = streams.found[-1], min(comm.allgather(streams.found[-1].chunk))
    if way == "resident":  # a small shard is anyway
        assert found.resident == (RANKS > 1)
    for rank in range(RANKS):
        assert names["process_name", rank, 0] == f"rank {rank}"
        low, high = form.bounds(n, RANKS, rank)
        sizes = [end - begin for begin, end in form.chunks(low, high, chunk)]
        sweeps = 1 + (RANKS > 1)
        reads = sizes * (1 if found.resident else sweeps)
        of_keys = 0 if keys is None else keys.itemsize
        expected = [size * 4 for size in reads] + [size * of_keys for size in reads if of_keys]
        assert moved(spans, "read", rank) == Counter(expected)
        assert moved(spans, "scan", rank) == Counter(size * (4 + 8) for size in sizes)
        assert moved(spans, "write", rank) == Counter(size * 8 for size in sizes)
        assert moved(spans, "reduce", rank) == Counter(size * 4 for size in sizes * (sweeps - 1))
        assert len(of(spans, "exscan", rank)) == sweeps - 1
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
