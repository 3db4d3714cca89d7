"""``--check`` passes every correct scan, also at the ends of the types' range, and finds faults."""

import itertools
from functools import partial

import numpy as np
import pytest

from distscan.job import check, rounds
from support.cases import pairs
from support.jobs import spoil
from support.processes import left


def hard(code, rng, n=3000):
    """Data whose products, and parts of them, become subnormal, 0 or infinite, and come back."""
    limits = np.finfo(code)
    real = limits.dtype
    far = real.type(10) ** real.type(float(np.log10(limits.max)) * 0.65)
    mild = far ** real.type(4 / n)
    signs = rng.choice([-1, 1], n)
    yield "decays", np.full(n, 0.9)
    yield "down, up", signs * np.where(np.arange(n) < n // 2, 1 / mild, mild)
    yield "up, down", signs * np.where(np.arange(n) < n // 2, mild, 1 / mild)
    yield "leaps", signs * rng.choice(np.array([far, 1 / far, 1, 2, 0.5], real), n)
    yield "zeros", signs * rng.choice(np.array([far, far, 0, 1 / far, 1.1], real), n)
    yield "wanders", signs * rng.choice(np.array([1.5, 1 / 1.5, 0.7, 1 / 0.7], real), n)
    ends = [limits.max, limits.tiny, limits.smallest_subnormal, 1, np.inf, np.nan]
    yield "ends", signs * rng.choice(np.array(ends, real), n, p=[0.2, 0.2, 0.2, 0.38, 0.01, 0.01])


@pairs(
    case=[("prod", code) for code in "efdgFD"] + [("sum", "f"), ("sum", "D"), ("logaddexp", "d")],
    exclusive=[False, True],
    reverse=[False, True],
    initial=[None, "0.5", "3e30"],
    group_by="case",
)
def test_correct_scans_pass(case, exclusive, reverse, initial, run, save, comm, rng, monkeypatch):
    monkeypatch.setattr(check, "PIECE", 1 << 12)
    (op, code), strategies = case, itertools.cycle(["reduce-scan", "scan-add"])
    form = ["--exclusive"] * exclusive + ["--reverse"] * reverse
    if initial is not None:
        form.append(f"--initial={'3e4' if (code, initial) == ('e', '3e30') else initial}")
    for (name, values), strategy in zip(hard(code, rng), strategies, strict=False):
        with np.errstate(all="ignore"):
            x = values.astype(code)
            if x.dtype.kind == "c":
                x *= np.exp(2j * np.pi * rng.random(x.size))
        save("x.npy", x)
        rows = ["--axis=0"] if rng.random() < 0.3 else []
        if rows:
            save("x.npy", x.reshape(-1, 3))
        arguments = ["--op", op, "--strategy", strategy, "--check", "--force", "--quiet"]
        memory = ["--memory=2K"] if rng.random() < 0.5 else []  # in many pieces
        status, _, err = run("x.npy", *arguments, *form, *rows, *memory)
        assert status == 0, f"{name}, {' '.join([strategy, *rows, *memory])}: {err}"
        comm.Barrier()


def test_long_decay(run, save):
    save("x.npy", np.full(100_000, 0.9))
    for form in ([], ["--reverse"], ["--exclusive"], ["--memory=2K"]):
        status, _, err = run("x.npy", "--op", "prod", "--check", "--force", "--quiet", *form)
        assert status == 0, err


def plant(monkeypatch, index, bit):
    """Flip a bit of one element between the scan and the file."""

    def flip(elements, low):
        if low <= index < low + len(elements):
            item = elements[index - low : index - low + 1]
            size = item.real.itemsize
            kind = {2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.uint64}[size]
            item.view(kind)[: item.nbytes // size] ^= kind(1 << bit)
        return elements

    spoil(monkeypatch, flip)


def near_one(rng, *behind):
    return np.r_[rng.uniform(0.9, 1.1, 500), behind]


PLANTED = {  # input, and from which element on bits are flipped, and up to which
    "decay": (lambda rng: np.full(9000, 0.9), 0, 9000),
    "decay float32": (lambda rng: np.full(900, np.float32(0.9)), 0, 900),
    "before it leaves": (lambda rng: near_one(rng, 1e200, 1e200, 1e200), 0, 500),
    "behind 0": (lambda rng: near_one(rng, 0, *np.tile([1e99, 1e-99], 500)), 0, 1501),
    "wanders": (lambda rng: rng.choice([1.25, 0.8], 5000), 0, 5000),
    "complex": (lambda rng: np.exp(2j * np.pi * rng.random(4000)), 0, 4000),
    "half": (lambda rng: rng.choice(np.array([2, 0.5], "e"), 30), 0, 30),
}


@pairs(
    case=[*PLANTED],
    form=[[], ["--reverse"], ["--exclusive", "--initial=0.75"]],
    group_by="case",
)
def test_one_wrong_element_is_found(case, form, run, save, rng, monkeypatch):
    """A bit of the exponent, or one of the highest of the mantissa."""
    make, low, high = PLANTED[case]
    x = make(rng)
    if "--reverse" in form:
        x, low, high = x[::-1], len(x) - high, len(x) - low
    save("x.npy", x)
    mantissa = np.finfo(x.dtype).nmant
    for bit in (mantissa - 2, mantissa, int(rng.integers(mantissa, 8 * x.real.itemsize - 1))):
        index = int(rng.integers(low, high))
        with monkeypatch.context() as patch:
            plant(patch, index, bit)
            status, _, err = run("x.npy", "--op", "prod", "--check", "--force", "--quiet", *form)
        assert status == 1, (index, bit)
        assert f"element {index} of the result is " in err


@pytest.mark.parametrize(("op", "bit"), [("prod", 10), ("sum", 14), ("logaddexp", 16)])
def test_little_more_than_rounding_is_found(op, bit, run, save, rng, monkeypatch):
    """Of bits of the mantissa, the lowest but one that the bound leaves no room for."""
    save("x.npy", near_one(rng))
    index = int(rng.integers(100, 500))
    plant(monkeypatch, index, bit)
    status, _, err = run("x.npy", "--op", op, "--check", "--quiet")
    assert status == 1
    assert f"element {index} of the result is " in err


@pytest.mark.parametrize(("code", "bit"), [("e", 14), ("f", 30), ("d", 62)])
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_an_infinity_among_finite_results_is_found(op, code, bit, run, save, monkeypatch):
    save("x.npy", np.r_[1, np.full(99, op == "prod")].astype(code))
    plant(monkeypatch, 60, bit)  # of 1
    status, _, err = run("x.npy", "--op", op, "--check", "--quiet")
    assert status == 1
    assert "element 60 of the result is inf, NumPy gives 1" in err


def test_products_of_long_doubles_beyond_the_range_of_doubles(run, save, monkeypatch):
    if np.finfo("g").nmant != 63:
        pytest.skip("they are no longer than doubles")
    far = np.longdouble("1e400")
    save("x.npy", np.tile([far, 1 / far], 100))
    assert run("x.npy", "--op", "prod", "--check", "--quiet", "--force")[0] == 0
    plant(monkeypatch, 151, 61)
    status, _, err = run("x.npy", "--op", "prod", "--check", "--quiet", "--force")
    assert status == 1
    assert "element 151 of the result is " in err


@pytest.mark.parametrize(("code", "far"), [("d", 1e308), ("D", 1e308), ("F", 3e38)])
def test_sums_whose_parts_leave_the_range_pass(code, far, run, save):
    """The reference, of a wider type, comes back; the scan need not."""
    save("x.npy", np.array([far, far, -far, -far, 1] * 9, code))
    for form in ([], ["--reverse"], ["--exclusive"]):
        status, _, err = run("x.npy", "--check", "--force", "--quiet", *form)
        assert status == 0, err


@pytest.mark.parametrize(
    "bounds",
    [
        check.Exact(),
        check.Sums(1e-10, 1e300),
        check.Logs(1e-10, 1e300),
        check.Products(2.0**-53, np.finfo(np.float64)),
    ],
    ids=lambda bounds: type(bounds).__name__,
)
def test_parts_join_to_the_whole(bounds, rng):
    """What bounds are made of is the same in one go, in pieces, and from rank to rank.

    Sums of logarithms round: what is 0 in one order is 1e-13 in another.
    """
    ends = [1e-150, 1e150, 0.5, 3, 0, np.inf]
    x = rng.choice(ends, (60, 400), p=[0.12, 0.12, 0.36, 0.36, 0.02, 0.02])
    same = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-6)
    with np.errstate(all="ignore"):
        values = np.multiply.accumulate(x.astype(np.longdouble), axis=0)
        start = bounds.start(400)
        whole = bounds.advance(start, x, values)
        first = bounds.advance(start, x[:25], values[:25])[:, -1]
        same(bounds.advance(first, x[25:], values[25:]), whole[:, 25:])
        second = bounds.advance(start, x[25:], values[25:])[:, -1]
        same(bounds.join(first, second), whole[:, -1])


@pytest.mark.parametrize("code", "fd")
def test_bounds_of_products_hold(code, rng):
    """Against exact arithmetic, in every order: in a loop, and by halves of random lengths."""
    from fractions import Fraction

    def product(x):
        if len(x) == 1:
            return x[0]
        cut = int(rng.integers(1, len(x)))
        return product(x[:cut]) * product(x[cut:])

    far = np.finfo(code).max ** 0.45
    bounds = check.Products(float(np.finfo(code).eps) / 2, np.finfo(code))
    known = 0
    for _ in range(50):
        x = rng.choice([far, 1 / far, 3.3, 0.3, 1e-3, 7.1], 12).astype(code)
        exact = [Fraction(1)]
        for factor in x:
            exact.append(exact[-1] * Fraction(float(factor)))
        values = np.array([np.longdouble(e.numerator) / e.denominator for e in exact[1:]])
        with np.errstate(all="ignore"):
            states = bounds.advance(bounds.start(1), x[:, None], values[:, None])
            limit = bounds.bound(states, values[:, None])[:, 0]
            for i in range(len(x)):
                for scanned in (product(x[: i + 1]), np.multiply.accumulate(x)[i]):
                    assert np.isinf(limit[i]) or abs(scanned - values[i]) <= limit[i]
                known += bool(limit[i] < abs(values[i]))
    assert known > 100


# ---- elements that are off by a little ----------------------------------------------


@pytest.mark.parametrize(("op", "code"), [("sum", "i4"), ("sum", "f8"), ("max", "f4"),
                                          ("prod", "c16"), ("sum", "f2")])  # fmt: skip
def test_check_finds_the_first_difference(op, code, run, save, folder, comm, monkeypatch):
    """Two elements of one rank are spoilt between the scan and the file; the first is named."""
    n = 5003
    save("x.npy", np.full(n, 2 if op == "sum" else 1).astype(code))

    def wrong(elements, index):
        elements[max(n - 2 - index, 0) :] = 77
        return elements

    spoil(monkeypatch, wrong)
    status, out, err = run("x.npy", "--check", "--quiet", "--op", op)
    assert (status, out) == (1, "")
    assert f"element {n - 2} of the result is " in err
    part, _ = left(comm, folder)  # to be looked at
    assert part.startswith(".x.scan.npy.distscan-")


@pytest.mark.parametrize(
    ("case", "at", "error"),
    [
        (lambda rng: rng.normal(size=200_000).astype("f"), 100_000, 100),
        (lambda rng: np.concatenate([[np.inf], rng.normal(size=5000)]), 3000, -np.inf),
        (lambda rng: np.full(100, 2e-7, "e"), 50, -1),
        (lambda rng: np.full(5000, 1.0001, "f"), 4000, 4),
        (lambda rng: rng.normal(size=5000) + 1j, 4000, 1e-3j),
    ],
    ids=["float32", "behind_an_infinity", "tiny_float16", "ramp", "complex"],
)
def test_check_sees(case, at, error, run, save, monkeypatch, rng):
    """Everything from one element on is off by a little, or is finite where it should not be."""
    x = case(rng)
    save("x.npy", x)

    def wrong(elements, index):
        late = elements[max(at - index, 0) :]
        late[:] = 5 if error == -np.inf else 0 if error == -1 else late + error
        return elements

    spoil(monkeypatch, wrong)
    status, _, err = run("x.npy", "--check", "--quiet")
    assert status == 1
    assert f"element {at} of the result is " in err


@pytest.mark.parametrize(
    ("op", "x"),
    [
        ("sum", np.array([1 + 2j, complex(np.inf, 0.1), 0.3 + 0.7j] * 9, "F")),
        ("sum", np.array([3e38, 3e38, -3e38, -3e38, 1] * 9, "f")),
        ("sum", np.array([np.inf, 1, -np.inf, 2, np.nan])),
        ("prod", np.array([1e30, 1e30, 1e-30, 1e-30] * 9, "f")),
        ("prod", np.array([1e300 + 1e300j, 1e300, 1e-300] * 5)),
        ("max", np.array([1, complex(0, np.nan), 5])),
        ("sum", np.array([60000, 60000, -60000, 1e-7] * 9, "e")),
        ("sum", np.array([1e4000, -1e4000, 1], "g")),
    ],
)
def test_check_raises_no_false_alarm(op, x, run, save):
    save("x.npy", x)
    for strategy in ("scan-add", "reduce-scan"):
        status, _, err = run("x.npy", "--check", "--op", op, "--strategy", strategy, "--force")
        assert status == 0, err


@pytest.mark.parametrize("axis", ["--axis=0", "--axis=1"])
@pytest.mark.parametrize("last", [False, True])
def test_a_file_that_one_rank_cannot_open(axis, last, run, save, comm, monkeypatch):
    """All ranks say so, and none waits for the progress of that one."""
    save("x.npy", np.arange(24.0).reshape(6, 4))
    monkeypatch.setattr(rounds, "_WATCHED", 0)
    if comm.rank == last * (comm.size - 1):

        def fail(files):
            raise OSError("too many open files")

        monkeypatch.setattr(check._Files, "both", fail)
    status, _, err = run("x.npy", "--check", "--quiet", axis)
    assert status == 1
    assert "too many open files" in err
