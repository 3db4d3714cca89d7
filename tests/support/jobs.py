"""Jobs of the command line whose chunks have few elements: any, and those that stop and go on."""

import ctypes
import errno
import itertools
import json
import os
from contextlib import contextmanager
from itertools import count

import numpy as np
from mpi4py import MPI

from distscan.job import check, job, plan, shard
from distscan.job.formats import storage
from support import cases, reference
from support.data import OPS, bits, exact, truths
from support.operators import COMPOSE, digits, maps
from support.processes import left

# ---- a job's result on its way to the file: elements are spoilt, or writes fail ------------------


def spoil(monkeypatch, change):
    """Every write passes through ``change(elements, index)``, which returns what is written.

    The elements are a copy; ``index`` is that of the first one in the file. Threads that write
    call it, perhaps several at once.
    """
    _replace(monkeypatch, lambda writer: _Spoilt(writer, change))


def full_after(turn):
    """A change of ``spoil``: a disk that is full before write number ``turn``."""
    room = iter(range(turn))

    def change(elements, index):
        if next(room, None) is None:
            raise OSError(errno.ENOSPC, "no more")
        return elements

    return change


def refuse(monkeypatch, step, number):
    """The system refuses each "write", or the "fsync" after the last, with the error ``number``."""
    if step == "fsync":
        _replace(monkeypatch, lambda writer: _Unsynced(writer, monkeypatch, raises(number)))
        return
    madvise = storage._madvise

    def populate(address, *arguments):
        if address is None:  # asks whether pages can be allocated at all
            return madvise(address, *arguments)
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(os, "pwrite", raises(number))
    monkeypatch.setattr(storage, "_madvise", populate)


def raises(number):
    """A function that raises the error of a number, whatever its arguments."""

    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    return fail


def _replace(monkeypatch, wrap):
    """Jobs write by ``wrap(writer)``."""
    writing = storage.writing

    @contextmanager
    def wrapped(file, *, mapped):
        with writing(file, mapped=mapped) as writer:
            yield wrap(writer)

    monkeypatch.setattr(storage, "writing", wrapped)


class _Wrapped:
    def __init__(self, writer):
        self._writer = writer

    def __call__(self, elements, index):
        self._writer(elements, index)

    def __getattr__(self, name):
        return getattr(self._writer, name)


class _Spoilt(_Wrapped):
    def __init__(self, writer, change):
        super().__init__(writer)
        self._change = change

    def __call__(self, elements, index):
        self._writer(self._change(elements.copy(), index), index)


class _Unsynced(_Wrapped):
    def __init__(self, writer, monkeypatch, fail):
        super().__init__(writer)
        self._monkeypatch, self._fail = monkeypatch, fail

    def sync(self):
        with self._monkeypatch.context() as patch:
            patch.setattr(os, "fsync", self._fail)
            self._writer.sync()


# ---- jobs of any form, and their results ---------------------------------------------------------


FORMS = [
    [option for option in each if option]
    for each in itertools.product(("", "--exclusive"), ("", "--reverse"), ("", "--initial=3"))
]
# The types that an operator takes; those of the other byte order are read into this machine's.
CODES = {
    **dict.fromkeys(OPS, (*"?bBhHiIlLefdgFDG", ">i2", ">f4", ">u8", ">c16")),
    "logaddexp": (*"efd", ">f8"),
    **dict.fromkeys(["bitwise_and", "bitwise_or", "bitwise_xor"], (*"?bHiL", ">i4")),
    **dict.fromkeys(["logical_and", "logical_or", "logical_xor"], (*"?BhlefD", ">i2")),
}
RANKS = MPI.COMM_WORLD.size
OWN = {"support.operators:COMPOSE": COMPOSE}  # an operator that does not commute


def some(choices):
    """All cases at one rank; some at several, which take longer."""
    return cases.sample(choices, {1: 1, 2: 3, 3: 4, 4: 4}.get(RANKS, 8))


class Streams:
    """Runs jobs in chunks of a size that ``chunk`` tells, once a job has run."""

    def __init__(self, run, save, folder, rng, monkeypatch):
        self.run, self.save, self.folder, self.rng = run, save, folder, rng
        self.patch, self.found = monkeypatch, []
        decide = plan.decide_budget

        def noted(**given):
            self.found.append(decide(**given))
            return self.found[-1]

        monkeypatch.setattr(job, "decide_budget", noted)
        monkeypatch.setattr(check, "PIECE", int(rng.integers(50, 2000)))
        monkeypatch.setattr(storage, "is_mapped", lambda path: self.mapped)
        self.mapped, self.options = False, []

    @property
    def chunk(self):
        """The elements of a chunk of the last job."""
        return self.found[-1].chunk

    def choose(self, way=None, threads=None, strategy=None, most=3000):
        """Choose how a job runs; what is not given is drawn."""
        rng = self.rng
        way = way or ["streaming", "ample"][rng.integers(2)]
        self.patch.setattr(plan, "ROWS", int(rng.choice([1, 5, 64])))  # of a rank in a round
        turn, as_gpu = plan.JobPlan.turn, bool(rng.integers(2))
        self.patch.setattr(plan.JobPlan, "turn", lambda *given, gpu: turn(*given, gpu=as_gpu))
        self.patch.setattr(plan, "RUN", int(rng.choice([40, 1 << 16])))  # of a part of a row
        threads = threads or [1, 3][rng.integers(2)]
        strategy = strategy or ["auto", "reduce-scan", "scan-add"][rng.integers(3)]
        self.mapped = bool(rng.integers(2))
        self.options = ["--threads", str(threads), "--strategy", strategy, "--backend", "cpu"]
        size = int(np.exp(rng.uniform(np.log(200), np.log(most))))
        self.patch.setattr(plan, "CPU_CHUNK", size // 4)
        if way == "streaming":
            self.options += ["--memory", str(size)]

    def scan(self, x, op, form, axis=None, marks=None):
        """Scan a file; compare the result, and what the report says of it."""
        self.save("x.npy", x)
        along = [] if axis is None else ["--axis", str(axis)]
        if marks is not None:
            self.save("marks.npy", marks)
            along += ["--segments", "marks.npy"]
        elif op not in OWN:  # they have no reference to be compared with
            along.append("--check")
        given = ["--op", op, *form, *along, *self.options, "--json", "--force"]
        status, out, err = self.run("x.npy", "--quiet", *given)
        assert status == 0, (err, given)
        y, want = np.load(self.folder / "x.scan.npy"), wanted(x, op, form, axis, marks)
        assert (y.shape, y.dtype) == (want.shape, want.dtype)
        if op == "logaddexp":  # the sum that it is the logarithm of is rounded, at 1 as well
            eps = 20 * np.finfo(y.dtype).eps
            np.testing.assert_allclose(y, want, eps, eps, err_msg=str(given))
        else:
            np.testing.assert_array_equal(y, want, err_msg=str(given))
        report = json.loads(out)
        assert report["elements"] == x.size
        assert report["total"] is None or axis is None or x.ndim < 2
        if axis is None and x.size > 0:
            form = [option for option in form if option != "--exclusive"]
            total = wanted(x, op, form, None, marks)[0 if "--reverse" in form else -1]
            told = complex(*report["total"]) if y.dtype.kind == "c" else report["total"]
            eps = 20 * np.finfo(y.dtype).eps if y.dtype.kind in "fc" else 0
            np.testing.assert_allclose(told, total, eps, eps)
        return y


def draw_elements(rng, op, code, n):
    """Elements whose scan changes all along, and is exact but for logaddexp."""
    native = np.dtype(code).newbyteorder("=").char
    if op == "logaddexp":
        return rng.normal(0, 3, n).astype(code)
    if op in OPS:
        return exact(rng, op, native, n).astype(code)
    return (bits if op.startswith("bitwise") else truths)(rng, op, native, n).astype(code)


def wanted(x, op, form, axis, marks):
    """The scan as its definition reads, in the type that NumPy chooses."""
    native = x.astype(x.dtype.newbyteorder("="))
    wide = native.astype(np.longdouble) if op == "logaddexp" else native
    initial = [option.partition("=")[2] for option in form if option.startswith("--initial")]
    result = reference.wanted(
        wide,
        OWN.get(op, op),
        axis=axis,
        segments=marks,
        exclusive="--exclusive" in form,
        reverse="--reverse" in form,
        initial=int(initial[0]) if initial else None,
    )
    return result.astype(native.dtype) if op == "logaddexp" else result


# ---- jobs in chunks of ten elements, which stop at any of them, and go on with --resume ----------


RANKS = MPI.COMM_WORLD.size
CHUNK = 10  # elements
MANY = RANKS * 8 * CHUNK + 3  # the last chunk is shorter
LINES = RANKS * 2 + 1
COMPOSE_OPTIONS = ["--op", "support.operators:COMPOSE"]
PRINTS = ["--op", "support.operators:FINGERPRINTS"]


def floats(*shape):
    return lambda rng: rng.normal(size=shape)


def ordered(*shape):
    return lambda rng: maps(rng, int(np.prod(shape))).reshape(shape)


# The elements, and the options: maps and fingerprints do not commute, floats are rounded.
STOPPED_JOBS = {
    "flat": (floats(MANY), []),
    "one": (floats(1), []),  # most ranks have nothing
    "exclusive": (ordered(MANY), [*COMPOSE_OPTIONS, "--exclusive"]),
    "reverse": (ordered(MANY), [*COMPOSE_OPTIONS, "--reverse"]),
    "initial": (floats(MANY), ["--initial", "0.1", "--exclusive", "--reverse"]),
    "scan-add": (floats(MANY), ["--strategy", "scan-add"]),
    "reduce-scan": (ordered(MANY), [*COMPOSE_OPTIONS, "--strategy", "reduce-scan"]),
    "axis-0": (floats(LINES * 3, 7), ["--axis", "0"]),
    "axis-0-reverse": (ordered(LINES * 3, 4), [*COMPOSE_OPTIONS, "--axis", "0", "--reverse"]),
    "columns": (floats(LINES, 3 * CHUNK + 1), ["--axis", "0"]),
    "columns-reverse": (ordered(LINES, 3 * CHUNK), [*COMPOSE_OPTIONS, "--axis", "0", "--reverse"]),
    "axis-1": (floats(LINES * 3, 5), ["--axis", "1"]),
    "axis-1-long": (
        ordered(LINES, 3 * CHUNK + 1),
        [*COMPOSE_OPTIONS, "--axis", "1", "--exclusive"],
    ),
    "flags": (ordered(MANY), [*COMPOSE_OPTIONS, "--segments", "flags.npy"]),
    "keys": (floats(MANY), ["--segments", "keys.npy", "--reverse", "--initial", "0.5"]),
    "days": (ordered(MANY), [*COMPOSE_OPTIONS, "--segments", "days.npy", "--exclusive"]),
    "structures": (lambda rng: digits(rng, MANY), PRINTS),
    "structures-exclusive": (lambda rng: digits(rng, MANY), [*PRINTS, "--exclusive"]),
}


class Jobs:
    """Runs jobs in chunks of ten elements, which stop when they are told to."""

    def __init__(self, run, save, folder, comm, monkeypatch):
        self.run, self.save, self.folder, self.comm = run, save, folder, comm
        self.patch, self.chunk, self.turn, self.threads = monkeypatch, CHUNK, 1, 1
        self.written = []  # by the last job, on this rank: the first elements of chunks
        decide = plan.decide_budget

        def decided(**given):
            budget = decide(**given)
            return budget._replace(chunk=self.chunk, turn=self.turn, slots=budget.slots + self.turn)

        monkeypatch.setattr(job, "decide_budget", decided)

    def choose(self, form, rng):
        """Write the inputs of a form; run it once; return the result's bytes."""
        make, self.options = STOPPED_JOBS[form]
        x = make(rng)
        heads = rng.random(x.size) < 0.07
        keys = np.cumsum(heads) % 3
        self.inputs = {"x.npy": x, "flags.npy": heads, "keys.npy": keys.astype("U3"),
                       "days.npy": keys.astype("M8[D]")}  # fmt: skip
        for name, array in self.inputs.items():
            self.save(name, array)
        status, self.report, err = self.job()
        assert status == 0, err
        return self.take()

    def job(self, *options):
        """Run a job; note the chunks that it writes. Return the status, the report, stderr."""
        given = ["--backend", "cpu", "--threads", str(self.threads), "--memory", "500"]
        self.written = []
        with self.patch.context() as patch:
            spoil(patch, self.note)
            status, out, err = self.run(
                "x.npy", *given, *self.options, *options, "--json", "--quiet"
            )
        return status, json.loads(out) if status == 0 else None, err

    def note(self, elements, index):
        self.written.append(index)
        return elements

    def resume(self, want):
        """Run a job with --resume to its end; compare the result."""
        status, report, err = self.job("--resume", "--force")
        assert status == 0, err
        assert self.take() == want
        return report

    def take(self):
        """Return the result's bytes, and remove it: nothing else is left."""
        assert left(self.comm, self.folder) == sorted([*self.inputs, "x.scan.npy"])
        result = (self.folder / "x.scan.npy").read_bytes()
        self.comm.Barrier()
        self.alone((self.folder / "x.scan.npy").unlink)
        return result

    def alone(self, call):
        """Call a function on rank 0, while the others wait."""
        if self.comm.rank == 0:
            call()
        self.comm.Barrier()

    def stop(self, stage, turn, guilty=range(RANKS), options=("--resume",)):
        """Run a job that stops at a "write" or a "scan" of the guilty ranks."""

        def failing(function):
            calls = count()

            def call(*args, **options):
                if self.comm.rank in guilty and next(calls) == turn:
                    raise OSError("stopped")
                return function(*args, **options)

            return call

        with self.patch.context() as patch:
            if stage == "write":
                patch.setattr(self, "note", failing(self.note))
            else:
                patch.setattr(shard.Shard, "begin", failing(shard.Shard.begin))
            status, _, err = self.job(*options)
        assert status == 0 or "stopped" in err, err
        return status

    def found(self, pattern):
        """Return the files that jobs have left."""
        self.comm.Barrier()
        found = sorted(self.folder.glob(f".x.scan.npy.*.part{pattern}"))
        self.comm.Barrier()
        return found
