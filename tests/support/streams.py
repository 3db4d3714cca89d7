"""Jobs of the command line whose chunks have few elements, and what they shall give."""

import itertools
import json

import numpy as np
from mpi4py import MPI

from distscan.core.operators import BUILTIN
from distscan.job import check, job, plan
from distscan.job.formats import storage
from support import reference, seed
from support.data import OPS, exact
from support.logic import bits, truths
from support.maps import COMPOSE

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
OWN = {"support.maps:COMPOSE": COMPOSE}  # an operator that does not commute


def some(cases):
    """All cases at one rank; some at several, which take longer."""
    return seed.drawn(cases, {1: 1, 2: 3, 3: 4, 4: 4}.get(RANKS, 8))


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
        monkeypatch.setattr(storage, "is_in_memory", lambda path: self.mapped)
        self.mapped, self.options = False, []

    @property
    def chunk(self):
        """The elements of a chunk of the last job."""
        return self.found[-1].chunk

    def choose(self, way=None, threads=None, strategy=None, most=3000):
        """Choose how a job runs; what is not given is drawn."""
        rng = self.rng
        way = way or ["streaming", "resident"][rng.integers(2)]
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
        if axis is None and x.size > 0:
            form = [option for option in form if option != "--exclusive"]
            total = wanted(x, op, form, None, marks)[0 if "--reverse" in form else -1]
            told = complex(*report["total"]) if y.dtype.kind == "c" else report["total"]
            eps = 20 * np.finfo(y.dtype).eps if y.dtype.kind in "fc" else 0
            np.testing.assert_allclose(told, total, eps, eps)
        return y


def drawn(rng, op, code, n):
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
    operator, out = (OWN | BUILTIN)[op], native.dtype
    if op not in OWN:
        out = operator.numpy.accumulate(native.reshape(-1)[:0]).dtype
    if op in ("sum", "prod"):  # they widen narrow integers
        out = np.cumsum(native.reshape(-1)[:0]).dtype
    acc = np.dtype({"e": "f"}.get(out.char, out)) if op not in ("max", "min") else out
    if op == "logaddexp":
        acc = np.result_type(out, np.float64) if out != np.float64 else np.dtype(np.longdouble)
    initial = [option.partition("=")[2] for option in form if option.startswith("--initial")]
    given = {
        "exclusive": "--exclusive" in form,
        "reverse": "--reverse" in form,
        "initial": int(initial[0]) if initial else None,
        "identity": operator.identity(acc),
        "heads": None if marks is None else reference.heads_of(marks),
    }
    return reference.scan(operator.numpy, native, axis=axis, acc=acc, **given).astype(out)
