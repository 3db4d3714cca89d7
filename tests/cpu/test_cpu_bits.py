"""The bits of float results depend neither on the CPU, nor on threads, addresses or layouts."""

import itertools

import numpy as np
import pytest

import distscan
from distscan.core import dtypes, operators
from distscan.core.form import Extents, Form, seed_value
from distscan.cpu import sweeps
from support.cases import FORMS as SEEDED_FORMS
from support.cases import STRATEGIES, pairs, pairwise
from support.cpu import (
    COMPLEX,
    FLOATS,
    FORMS,
    HALVES,
    anew,
    bits,
    compiled_only,
    ends,
    levels,
    scanned,
)
from support.exact import dtype_of
from support.processes import python

OPS = "sum", "prod", "max", "min"
CASES = list(itertools.product(OPS, (*HALVES, *FLOATS, *COMPLEX)))
CASES += itertools.product(["logaddexp"], (*HALVES, *FLOATS))
cases = pairs(
    lambda case: (case["op"], case["name"]) in CASES,
    group_by="op",
    op=[*OPS, "logaddexp"],
    name=[*HALVES, *FLOATS, *COMPLEX],
)
# 1-D, short and long rows, narrow and wide columns, strips of columns
SHAPES = [((1,), None), ((77_777,), None), ((9, 5), 1), ((2, 40_000), 1), ((700, 3), 0),
          ((3, 90, 70), 1), ((130, 1500), 0)]  # fmt: skip


def inexact(rng, op, name, shape):
    """Draw numbers whose sums and products are rounded."""
    dtype, x = dtype_of(name), rng.normal(size=shape)
    if op == "prod":
        x = np.exp(x * 0.01) * rng.choice([-1, 1], shape)
    if dtype.kind == "c":
        x = x * np.exp(2j * np.pi * rng.random(shape))
    return x.astype(np.float32).astype(dtype) if name in HALVES else x.astype(dtype)


def every_scan(rng, op, name, strategy="auto"):
    """Yield input and options of scans of every shape and form."""
    for shape, axis in SHAPES:
        form = SEEDED_FORMS[rng.integers(8)]
        given = form | {"initial": None if form["initial"] is None else 1.1, "strategy": strategy}
        yield inexact(rng, op, name, shape), given | {"axis": axis}
    for n, density in ((1000, 0.3), (77_777, 0.01), (77_777, 0.0001)):
        form = SEEDED_FORMS[rng.integers(8)]
        given = form | {"initial": None if form["initial"] is None else 1.1}
        yield inexact(rng, op, name, n), given | {"segments": rng.random(n) < density}


def swept(op, x, form, heads=None, before=None, *, threads=1):
    """Reduce and scan [n] or [n, inner] as strategies do; return the results, and both totals."""
    known = operators.BUILTIN[op]
    types = dtypes.resolve(known, x.dtype, wide=True)
    extents = Extents(length=len(x), inner=x.size // len(x))
    form = Form(extents, form["exclusive"], form["reverse"], heads is not None)
    if form.exclusive:
        form = form._replace(seed=seed_value(known, types.acc, None, exclusive=True))
    sweep = sweeps.make(known, types, form, totals=True, threads=threads)
    out = np.empty(x.shape, types.out)
    totals, _ = sweep.reduce(x, heads)
    totals, first = totals.copy(), form.seed if before is None else before
    totals_of_scan = sweep.scan(x, out, heads, first)
    return out, totals, totals_of_scan.copy()


def assert_bits(got, want, what=""):
    np.testing.assert_array_equal(bits(got), bits(want), err_msg=str(what))


@pytest.mark.one_rank
@compiled_only
@pairs(
    lambda case: (case["op"], case["name"]) in CASES,
    group_by="op",
    op=[*OPS, "logaddexp"],
    name=[*HALVES, *FLOATS, *COMPLEX],
    strategy=STRATEGIES,
)
def test_levels(op, name, strategy, rng, monkeypatch):
    every = list(every_scan(rng, op, name, strategy))
    results = {}
    for level in levels():
        with anew(monkeypatch, level=level):
            results[level] = [distscan.scan(x, op, **given) for x, given in every]
    for level in levels():
        for got, want in zip(results[level], results[levels()[0]], strict=True):
            assert_bits(got, want, level)


PROGRAM = """
import hashlib, sys, numpy as np, distscan
from distscan.cpu import library
assert library.load().level == sys.argv[1]
rng, sums = np.random.default_rng(int(sys.argv[2])), hashlib.sha256()
for name in ("float16", "float32", "float64", "complex64", "complex128"):
    x = (1 + rng.normal(size=50_001) * 0.01).astype(name)
    for op in ("sum", "prod"):
        for y in (x, x.reshape(-1, 3), x.reshape(21, -1)):
            for axis in (None, 0, -1):
                sums.update(distscan.scan(y, op, axis=axis).tobytes())
        sums.update(distscan.scan(x, op, segments=rng.random(x.size) < 0.01).tobytes())
print(sums.hexdigest())
"""


@pytest.mark.one_rank
@compiled_only
def test_levels_in_fresh_processes(rng):
    seed, found = int(rng.integers(1 << 30)), set()
    for level, threads in itertools.product(levels(), (1, 2)):
        run = python(PROGRAM, level, seed, DISTSCAN_CPU=level, DISTSCAN_THREADS=str(threads))
        assert run.returncode == 0, run.stderr
        found.add(run.stdout)
    assert len(found) == 1


@pytest.mark.one_rank
@compiled_only
@cases
def test_threads(op, name, rng, monkeypatch):
    """Each block waits for the one before, in whichever thread it is."""
    blocks = {"block": 1 << 12, "columns_block": 1 << 12}  # many, and their sums in other bits
    every = list(every_scan(rng, op, name))
    with anew(monkeypatch, threads=1, **blocks):
        want = [distscan.scan(x, op, **given) for x, given in every]
    for threads in (2, 3, 8):
        with anew(monkeypatch, threads=threads, **blocks):
            for _ in range(3):
                for (x, given), result in zip(every, want, strict=True):
                    assert_bits(distscan.scan(x, op, **given), result, (threads, x.shape, given))


@pytest.mark.one_rank
@compiled_only
@cases
def test_addresses_and_layouts(op, name, rng, monkeypatch):
    for x, given in every_scan(rng, op, name):
        want = distscan.scan(x, op, **given)
        strided = np.repeat(x, 2, -1)[..., ::2]
        swapped = x.copy() if name == "bfloat16" else x.astype(x.dtype.newbyteorder())
        for view in (strided, x[::-1].copy()[::-1], swapped):
            assert_bits(distscan.scan(view, op, **given), want, (x.shape, given))
        options = {"heads" if key == "segments" else key: value for key, value in given.items()}
        for streamed in (False, True):
            with anew(monkeypatch, streamed=streamed):
                shift = int(rng.integers(64))
                got = scanned(x, op, dtype=want.dtype, shift=shift, **options)
                assert_bits(got, want, (x.shape, shift, given))
        assert_bits(distscan.scan(x, op, out=x, **given), want, (x.shape, given))


@pytest.mark.one_rank
@compiled_only
@cases
def test_totals(op, name, rng, monkeypatch):
    """A reduction finds the total of a scan. A scan that uses its totals has the same bits."""
    every = pairwise(
        {
            "shape": [1, 15, 70, 100_001, (500, 70)],
            "reverse": [False, True],
            "threads": [1, 3],
            "density": [None, 0, 1e-4, 0.02, 0.5],
        },
        lambda case: case["density"] is None or np.ndim(case["shape"]) == 0,
    )
    for case in every:
        shape, reverse, threads, density = case.values()
        x = inexact(rng, op, name, shape)
        options = {"reverse": reverse, "axis": None if x.ndim == 1 else 0}
        if density is not None:
            options["segments"] = rng.random(x.size) < density
        with anew(monkeypatch, threads=threads):
            want = distscan.scan(x, op, strategy="single-pass", **options)
            assert_bits(distscan.scan(x, op, strategy="reduce-scan", **options), want, case)
            form = {"exclusive": False, "reverse": reverse}
            _, totals, totals_of_scan = swept(op, x, form, options.get("segments"), threads=threads)
            assert_bits(totals_of_scan, totals, case)


@cases
def test_two_ranks(op, name, comm, rng):
    """The results of a rank are those of one rank alone that starts with the other's total."""
    if comm.size != 2:
        pytest.skip("for two ranks")
    for shape, form in itertools.product([(2000,), (90_001,), (300, 70)], FORMS):
        x = inexact(rng, op, name, shape)
        cut = int(rng.integers(1, len(x)))
        ours = slice(cut) if comm.rank == 0 else slice(cut, None)
        flags = rng.random(len(x)) < 0.0002
        # logaddexp scans tiles with heads in another way. A sweep has one before the first element.
        plain = len(shape) == 2 or op == "logaddexp"
        for segments in [None] if plain else [None, flags]:
            given, heads = form, None
            if segments is not None:  # a sweep takes the heads in the order of the scan
                given = form | {"segments": segments[ours]}
                heads = (ends(segments) if form["reverse"] else segments)[ours]
            axis = None if len(shape) == 1 else 0
            got = distscan.scan(x[ours], op, axis=axis, strategy="reduce-scan", **given)
            want, totals, _ = swept(op, x[ours], form, heads)
            first, second = comm.allgather(totals)
            if comm.rank == (0 if form["reverse"] else 1):
                before = second if form["reverse"] else first
                want, *_ = swept(op, x[ours], form, heads, before)
            assert_bits(got, want, (shape, form))
