"""``python -m distscan --check``: it finds what was spoilt, and nothing else."""

import numpy as np
import pytest

from support.together import left
from support.writers import spoil


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


def test_check_allows_rounding(run, save, rng):
    save("x.npy", rng.normal(size=50000).astype("f"))
    status, _, err = run("x.npy", "--check")
    assert status == 0, err
