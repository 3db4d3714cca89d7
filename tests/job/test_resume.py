"""Jobs that stop anywhere, by signals too: they go on with --resume, and no rank waits."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from itertools import count, product
from pathlib import Path
from time import monotonic

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan import cli
from distscan.job import check, output, plan, restart
from distscan.job.formats import files, storage
from distscan.job.formats.interface import Layout
from distscan.mpi import communicators
from support import processes
from support.jobs import MANY, RANKS, STOPPED_JOBS, Jobs, raises, some
from support.processes import left

# ---- jobs that stop anywhere go on with --resume: the same bytes, and no chunk is written twice --

TOOLS = Path(__file__).parents[2] / "launch" / "tools"
MPIRUN = os.environ.get("MPIRUN", "mpirun")


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Each chunk is recorded, without a wait for the disk."""
    monkeypatch.setattr(restart, "PERIOD", 0)
    monkeypatch.setattr(restart, "_SHARE", 0)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(storage, "is_mapped", lambda path: False)


@pytest.fixture
def jobs(run, save, folder, comm, monkeypatch):
    return Jobs(run, save, folder, comm, monkeypatch)


# ---- where a job stops -------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "stage"), some(product(STOPPED_JOBS, ["write", "scan"])))
def test_every_chunk(form, stage, jobs, rng):
    jobs.turn = int(rng.integers(1, 4))
    want = jobs.choose(form, rng)
    report, every = jobs.report, sorted(jobs.written)
    for turn in count():
        guilty = [int(rng.integers(RANKS))] if rng.random() < 0.6 else range(RANKS)
        if jobs.stop(stage, turn, guilty) == 0:
            assert jobs.take() == want
            break
        first = jobs.written
        found = jobs.resume(want)
        # Each chunk once, but those of the last round of some ranks.
        assert sorted({*first, *jobs.written}) == every
        assert len(first) + len(jobs.written) - len(every) <= (jobs.turn if RANKS > 1 else 0)
        assert (found["total"], found["elements"]) == (report["total"], report["elements"])
    assert turn >= 4 or form == "one" or (form, stage) == ("axis-1", "scan")  # it has no carry


@pytest.mark.parametrize("stage", ["write", "scan"])
@pytest.mark.parametrize("form", ["flat", "reverse", "columns", "axis-1-long", "flags"])
def test_again_and_again(form, stage, jobs, rng):
    """Each job comes one chunk further."""
    want = jobs.choose(form, rng)
    most = max(jobs.comm.allgather(len(jobs.written)))
    stops = next(turn for turn in count() if jobs.stop(stage, 1) == 0)
    assert 4 <= stops <= most * (RANKS if form == "columns" else 1)
    assert jobs.take() == want


@pytest.mark.parametrize(
    ("form", "turn"), some(product(["flat", "reverse", "columns", "flags", "structures"], [1, 3]))
)
def test_threads(form, turn, jobs, rng):
    """They write chunks out of order."""
    jobs.threads, jobs.turn = 3, turn
    want = jobs.choose(form, rng)
    for number in rng.integers(0, 6, 5):
        assert jobs.stop("write", number, [int(rng.integers(RANKS))])
        jobs.resume(want)


@pytest.mark.parametrize("threads", [1, 3])
def test_chunks_are_on_the_disk_before_their_record(threads, jobs, rng, monkeypatch):
    jobs.threads, on_disk, counts = threads, [], []
    want, sync, write = jobs.choose("flat", rng), storage.Writer.sync, restart.write_sealed
    every = len(jobs.written)  # beside chunks without elements

    def synced(writer):
        on_disk[:] = jobs.written
        sync(writer)

    def wrote(path, contents):
        counts.append(min(contents["progress"]["scanned"], every))
        assert counts[-1] <= len(on_disk)
        write(path, contents)

    monkeypatch.setattr(storage.Writer, "sync", synced)
    monkeypatch.setattr(restart, "write_sealed", wrote)
    jobs.resume(want)
    assert counts[-1] == len(jobs.written)
    assert len(set(counts)) > 3


def sealed_anew(text, old, new):
    """Return a journal or a state whose contents are changed, with their digest."""
    assert old in text
    return restart.seal(json.loads(text.replace(old, new))["contents"])


# ---- what is refused -----------------------------------------------------------------------------


REFUSED = {
    "operator": (["--op", "max"], "the operator was sum, and is max"),
    "dtype": (["--dtype", "f4"], "another"),
    "of-the-same-size": (["--dtype", "i8"], "another"),
    "exclusive": (["--exclusive"], "exclusive was False, and is True"),
    "reverse": (["--reverse"], "reverse was False, and is True"),
    "initial": (["--initial", "2"], "initial was"),
    "strategy": (["--strategy", "reduce-scan"], "strategy was scan-add, and is reduce-scan"),
    "segments": (["--strategy", "auto", "--segments", "flags.npy"], "another job"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_another_job_is_refused(what, jobs, rng):
    """And has spoilt nothing."""
    (options, message), want = REFUSED[what], jobs.choose("scan-add", rng)
    assert jobs.stop("write", 5)
    status, _, err = jobs.job("--resume", *options)
    assert (status, err.count("\n")) == (2, 1), err
    assert message in err
    jobs.resume(want)


MINE = ["--op", "support.same_name:FIRST"]
FSUM = ["--op", "fsum"]
# The first job, the second one, and what the second one is told.
CHANGED = {
    "byte-order": (["--raw", "--dtype", "<i4"], ["--raw", "--dtype", ">i4"], "raw was int32"),
    "raw-shape": (
        ["--raw", "--dtype", "u1"],
        ["--raw", "--dtype", "u1", "--axis", "0"],
        "axis was",
    ),
    "operator": (MINE, ["--op", "support.same_name:MAXIMUM"], "the operator was mine, digest"),
    "version": (MINE, ["--op", "support.same_name:VERSION"], "and is mine, version 2, digest"),
    "fsum-initial": ([*FSUM, "--initial", "1"], [*FSUM, "--initial", "2"], "initial was 1"),
    "fsum-window": ([*FSUM, "--window", "-90", "8"], [*FSUM, "--window", "-90", "7"], "window was"),
    "fsum-named": (FSUM, [*FSUM, "--window", "-90", "8"], "window was None, and is [-90, 8]"),
    "fsum-unnamed": ([*FSUM, "--window", "-90", "8"], FSUM, "window was [-90, 8], and is None"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_what_gives_elements_their_values_is_compared(what, jobs, rng):
    first, second, message = CHANGED[what]
    jobs.choose("flat", rng)
    jobs.options = first
    assert jobs.job()[0] == 0
    want = jobs.take()
    assert jobs.stop("scan", 6)
    jobs.options = second
    status, _, err = jobs.job("--resume")
    assert (status, err.count("\n")) == (2, 1), err
    assert message in err
    jobs.options = first
    jobs.resume(want)


def test_how_a_job_runs_may_differ(jobs, rng):
    want = jobs.choose("flat", rng)
    assert jobs.stop("write", 5)
    jobs.threads = 3
    status, _, err = jobs.job("--resume", "--check", "--trace", "trace.json", "--memory", "3000")
    assert status == 0, err
    jobs.alone((jobs.folder / "trace.json").unlink)
    assert jobs.take() == want


@pytest.mark.parametrize("name", ["x.npy", "flags.npy"])
@pytest.mark.parametrize("change", ["content", "time", "shape"])
def test_a_changed_input_is_refused(change, name, jobs, rng):
    want, path = jobs.choose("flags", rng), jobs.folder / name
    assert jobs.stop("write", 5)
    content, times = path.read_bytes(), path.stat()

    def restore():
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def spoil_it():
        if change == "shape":
            np.save(path, jobs.inputs[name][: MANY // 2])
        elif change == "content":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        os.utime(path, ns=(1, times.st_mtime_ns + (change != "content")))

    jobs.alone(spoil_it)
    status, _, err = jobs.job("--resume")
    assert (status, err.count("\n")) == (2, 1), err
    assert "another" in err or "has shape" in err
    jobs.alone(restore)
    jobs.resume(want)


@pytest.fixture
def change(jobs, monkeypatch):
    """Changes an element inside an input, and puts the time of the file back; then it is as before.

    Its size, its time, and its ends are those of before.
    """
    monkeypatch.setattr(files, "ENDS", 8)

    @contextmanager
    def changed(name, element, value=None):
        path = jobs.folder / name
        content, times = path.read_bytes(), path.stat()

        def put(text):
            path.write_bytes(text)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

        x = jobs.inputs[name].copy()
        raw = x.reshape(-1).view(np.uint8).reshape(x.size, -1)
        raw[element, 0] ^= 1
        if value is not None:
            x.reshape(-1)[element] = value
        jobs.comm.Barrier()
        jobs.alone(lambda: put(content[: -x.nbytes] + x.tobytes()))
        yield
        jobs.comm.Barrier()
        jobs.alone(lambda: put(content))

    return changed


@pytest.mark.parametrize(
    ("form", "name"),
    [*product(["flat", "scan-add", "columns", "axis-1-long", "structures"], ["x.npy"]),
     *product(["flags", "days"], ["x.npy", "marks"])],
)  # fmt: skip
def test_an_input_that_is_changed_where_it_was_read(form, name, jobs, rng, change):
    want = jobs.choose(form, rng)
    name = f"{form}.npy" if name == "marks" else name
    assert jobs.stop("scan", 6)
    part = [path.read_bytes() for path in jobs.found("*")]
    with change(name, 3):
        status, _, err = jobs.job("--resume")
        assert (status, err.count("\n")) == (2, 1), err
        assert f"{name} was changed since the killed job has read it; without --resume" in err
        assert "and" not in err.partition(" was changed")[0]
        assert [path.read_bytes() for path in jobs.found("*")] == part
    jobs.resume(want)


def test_an_input_that_is_trusted(jobs, rng, change):
    """It is not read again; nor is it known what it was."""
    want = jobs.choose("flat", rng)
    assert jobs.stop("scan", 6)
    with change("x.npy", 3):
        assert jobs.stop("scan", 1, options=["--resume", "--trust-input"])
    status, _, err = jobs.job("--resume")
    assert (status, err.count("\n")) == (2, 1), err
    assert "--trust-input" in err
    assert jobs.job("--resume", "--trust-input")[0] == 0
    assert jobs.take() == want


def test_an_input_that_is_trusted_once(jobs, rng, monkeypatch):
    """When all is written, and the job stops in its check: no rank takes another one's digests."""
    want = jobs.choose("flat", rng)
    for options in ([], ["--trust-input"]):
        with monkeypatch.context() as patch:
            patch.setattr(check, "_first_difference", lambda *_: (0, 0))
            assert jobs.job("--resume", "--check", *options)[0] == 1
    status, _, err = jobs.job("--resume")
    assert status == 0 or "because of --trust-input" in err, err
    assert status == 0 or jobs.job("--resume", "--trust-input")[0] == 0
    assert jobs.take() == want


def test_an_input_that_has_another_window(jobs, rng, change):
    """Running values of exact sums are those of a window, also if no digest is compared."""
    trusting = ["--resume", "--trust-input"]
    jobs.choose("flat", rng)
    jobs.options = FSUM
    assert jobs.job()[0] == 0
    want = jobs.take()
    assert jobs.stop("write", 2, options=trusting)
    with change("x.npy", MANY - 2, 1e200):
        status, _, err = jobs.job(*trusting)
        assert (status, err.count("\n")) == (2, 1), err
        assert "other kernels, or of another input: sums were" in err
    assert jobs.job(*trusting)[0] == 0
    assert jobs.take() == want


@pytest.mark.skipif(RANKS == 1, reason="one rank needs no other")
@pytest.mark.parametrize("form", ["flat", "columns"])
def test_journals_of_some_ranks(form, jobs, rng):
    """The job goes on where the journal that comes least far ends, also one of earlier."""
    want = jobs.choose(form, rng)
    assert jobs.stop("write", 2)
    path = jobs.found(f".{RANKS - 1}")[0]
    earlier = path.read_bytes()
    assert jobs.stop("write", 2)
    jobs.alone(lambda: path.write_bytes(earlier))
    assert jobs.stop("write", 2)
    jobs.alone(path.unlink)
    jobs.resume(want)


def test_another_memory_is_not_refused(jobs, rng):
    """Chunks are as long as before: other ones would round otherwise."""
    want = jobs.choose("flat", rng)
    assert jobs.stop("write", 5)
    jobs.chunk = 7
    jobs.resume(want)


@pytest.mark.parametrize("missing", [False, True], ids=["all", "without-the-first"])
def test_fewer_ranks_are_refused(missing, jobs, rng, monkeypatch):
    """Also if the first rank has no journal yet."""
    want = jobs.choose("flat", rng)
    assert jobs.stop("write", 5)
    if RANKS == 1:
        (path,) = jobs.found(".*")
        path.write_text(sealed_anew(path.read_text(), 'number of ranks": 1', 'number of ranks": 2'))
        if missing:
            path.rename(path.with_suffix(".1"))
    elif missing:
        first = jobs.found(".0")[0]
        elsewhere = jobs.folder / "elsewhere"
        jobs.alone(lambda: first.rename(elsewhere))
    status = None
    if jobs.comm.rank == 0:
        with monkeypatch.context() as patch:
            patch.setattr(communicators, "communicator", lambda comm: MPI.COMM_SELF)
            options = ["--backend", "cpu", "--threads", "1", "--memory", "500"]
            status = cli.main(["x.npy", *options, "--resume", "--quiet"])
    assert jobs.comm.bcast(status) == 2
    if RANKS > 1:
        if missing:
            jobs.alone(lambda: elsewhere.rename(first))
        jobs.resume(want)


BROKEN = {
    "empty": lambda text: "",
    "half": lambda text: text[: len(text) // 2],
    "list": lambda text: "[]",
    "version": lambda text: re.sub(r'"format": \d+', '"format": 1', text),
    "terms": lambda text: sealed_anew(text, '"terms"', '"items"'),
    "progress": lambda text: sealed_anew(text, '"progress"', '"regress"'),
    "record": lambda text: sealed_anew(text, '"scanned"', '"written"'),
    "value": lambda text: sealed_anew(text, '"value"', '"values"'),
    "digit": lambda text: text[:-3] + chr(ord(text[-3]) ^ 1) + text[-2:],
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_journal_is_refused(how, jobs, rng):
    want = jobs.choose("flat", rng)
    assert jobs.stop("write", 5)
    path = jobs.found(f".{RANKS - 1}")[0]
    jobs.alone(lambda: path.write_text(BROKEN[how](path.read_text())))
    status, _, err = jobs.job("--resume")
    assert (status, err.count("\n")) == (2, 1), err
    assert path.name in err
    assert jobs.job()[0] == 0
    assert jobs.take() == want


def test_two_jobs_do_not_resume_at_once(jobs, rng):
    want = jobs.choose("flat", rng)
    assert jobs.stop("write", 5)
    (part,) = jobs.found("")
    if jobs.comm.rank == 0:
        held = output.create(
            jobs.folder / "x.scan.npy", Layout(np.dtype("f8"), (MANY,)), resume=True
        )
        held.__enter__()
    jobs.comm.Barrier()
    status, _, err = jobs.job("--resume")
    assert status == 2
    assert "another job is writing" in err
    assert jobs.job()[0] == 0  # this one has a part file of its own
    assert jobs.found("") == [part]
    if jobs.comm.rank == 0:
        held.__exit__(None, None, None)
    jobs.resume(want)


# ---- what is left --------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", ["nothing", "part", "journals"])
@pytest.mark.parametrize("resume", [False, True], ids=["anew", "resume"])
def test_the_next_job_removes_what_is_left(resume, gone, jobs, rng):
    """Journals without their part file count nothing, and it may be without journals."""
    want = jobs.choose("flat", rng)
    assert jobs.stop("write", 5)
    removed = {"nothing": [], "part": jobs.found(""), "journals": jobs.found(".*")}[gone]
    half = jobs.found("")[0].with_suffix(".part.0.new")
    jobs.alone(lambda: [path.unlink() for path in removed])
    jobs.alone(lambda: half.write_text("half") if gone == "nothing" else None)
    assert jobs.job(*["--resume"] * resume)[0] == 0
    assert jobs.take() == want


def test_a_job_that_stops_after_it_has_named_the_output(jobs, rng, monkeypatch):
    """The next one does not believe its journals."""
    want = jobs.choose("flat", rng)
    with monkeypatch.context() as patch:
        patch.setattr(output, "_sync_folder", raises(errno.EIO))
        assert jobs.job("--resume")[0] == 1
    assert (jobs.folder / "x.scan.npy").read_bytes() == want
    jobs.resume(want)


@pytest.mark.one_rank
def test_a_process_that_nobody_has_waited_for(tmp_path):
    """Its part file is removed, too."""
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as child:
        child.stdout.read()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        path = tmp_path / "y.npy"
        part = path.with_name(f"{output._prefix(path)}{child.pid}-00000000.part")
        part.write_bytes(b"left")
        with output.create(path, Layout(np.dtype("f"), (3,))):
            assert not part.exists()


@pytest.mark.one_rank
def test_damaged_journals_and_states_and_changed_jobs():
    """Each of 240, and of 30 jobs, is refused by its name, or the result is right."""
    command = [sys.executable, TOOLS / "kill_jobs.py", "--damage", "20", "--changes", "30"]
    run = subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("20 times") == 12


@pytest.mark.one_rank
@pytest.mark.skipif(not shutil.which(MPIRUN), reason="there is no mpirun")
@pytest.mark.parametrize("ranks", [1, 2])
def test_jobs_are_killed(ranks, tmp_path):
    command = [sys.executable, TOOLS / "kill_jobs.py", "--kinds", "KILL to a rank", "KILL to all"]
    run = subprocess.run(
        [*command, "--ranks", str(ranks), "--kills", "1", "--seed", "1", "--folder", tmp_path],
        env=processes.environment(), text=True, capture_output=True, timeout=100, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert os.listdir(tmp_path) == []


# ---- signals in the middle of a job, several of them: no rank waits for another one ever after ---


class Stop(BaseException):
    """What the handler of a signal raises, as Ctrl-C does."""


@contextmanager
def signalled(call, delays):
    """Signals reach this process after each of ``delays``; they raise inside ``call``."""

    def inside(frame):
        return frame is not None and (frame.f_code is call.__code__ or inside(frame.f_back))

    def raises(number, frame):
        if inside(frame):
            raise Stop("a signal")

    def send():
        for delay in delays:
            if ended.wait(delay):
                break
            os.kill(os.getpid(), signal.SIGUSR1)

    ended, thread = threading.Event(), threading.Thread(target=send)
    before = signal.signal(signal.SIGUSR1, raises)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.timeout(120)
# An exception between open() and ``with`` leaves the file to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("resume", [False, True], ids=["anew", "resume"])
@pytest.mark.parametrize("who", ["one", "several", "all"])
def test_signals(who, resume, comm, folder, save, rng, monkeypatch):
    """At any moment, on any ranks; the job ends everywhere, and the next one is right."""
    monkeypatch.setattr(plan, "CPU_CHUNK", 4096)
    x = rng.integers(0, 100, 1 << 18)
    save("x.npy", x)
    own = np.random.default_rng([int(rng.integers(1 << 32)), comm.rank])
    given = {"comm": comm, "backend": "cpu", "resume": resume, "force": True}

    def job():
        distscan.scan_file(folder / "x.npy", folder / "y.npy", **given)

    begun = monotonic()
    job()
    seconds = comm.allreduce(monotonic() - begun) / comm.size
    said = []
    for _ in range(12):
        guilty = int(rng.integers(comm.size))
        mine = {"one": comm.rank == guilty, "several": own.random() < 0.5, "all": True}[who]
        first = [own.uniform(0, 1.2 * seconds)] * mine
        with signalled(job, first + [seconds / 20] * int(mine and own.choice([0, 5]))):
            try:
                job()
            except (RuntimeError, Stop) as error:
                said.append(str(error))
        comm.Barrier()
    assert all("another rank" in text or "signal" in text for text in said)
    job()
    np.testing.assert_array_equal(np.load(folder / "y.npy"), x.cumsum())
    assert left(comm, folder) == ["x.npy", "y.npy"]
