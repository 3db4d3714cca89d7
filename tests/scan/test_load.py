"""Operators that change the elements as they are read."""

from dataclasses import replace

import numpy as np
import pytest

import distscan
from distscan.core import operators
from support.host import host
from support.squares import SQUARES

# By a Python function, and not commutative: no combination of elements is read twice.
LATEST_DOUBLE = distscan.Operator(
    "latest double",
    numpy=lambda a, b: np.where(b != 0, b, a),
    cuda="b != 0 ? b : a",
    identity=0,
    load=lambda x: 2 * x,
    cuda_load="return x + x;",
)


def test_half_types_are_loaded_in_float32(xp, cut, rng):
    x = rng.integers(0, 2, 50).astype("e") * np.float16(300)  # whose square is infinite in half
    y = distscan.scan(xp.asarray(x[cut(50)]), SQUARES, dtype="f")
    np.testing.assert_array_equal(host(y), np.cumsum(x.astype("f") ** 2)[cut(50)])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("segmented", [False, True])
def test_initial_and_totals_are_not_loaded(reverse, exclusive, segmented, xp, cut, rng):
    n = 3001
    x, flags = rng.integers(0, 3, n), rng.random(n) < 0.01
    mine, step = cut(n), -1 if reverse else 1
    segments = xp.asarray(flags[mine]) if segmented else None
    y = distscan.scan(
        xp.asarray(x[mine]), LATEST_DOUBLE, initial=7, reverse=reverse, exclusive=exclusive,
        segments=segments,
    )  # fmt: skip
    want, latest = np.empty_like(x), 7
    # In reverse, the last element of a segment comes first.
    heads = np.append(flags[1:], True) if reverse else flags
    for i in range(n)[::step]:
        if segmented and heads[i]:
            latest = 7
        before, latest = latest, 2 * x[i] or latest
        want[i] = before if exclusive else latest
    np.testing.assert_array_equal(host(y), want[mine])


def test_plans_load(xp, cut, rng):
    x = rng.integers(-9, 9, 501).astype("f")
    mine = xp.asarray(x[cut(501)])
    backend = "cpu" if xp is np else "cuda"
    plan = distscan.Plan(None, mine.shape, mine.dtype, op=SQUARES, backend=backend)
    out = xp.empty_like(mine)
    for _ in range(3):
        plan(mine, out)
        np.testing.assert_array_equal(host(out), np.cumsum(x**2)[cut(501)])


@pytest.mark.parametrize(
    ("load", "error"),
    [(lambda x: x[:0], "returned shape"), (lambda x: x + 1j, "returned complex128"),
     (lambda x: x.fill(0), "read-only|writes into"), (lambda x: None, "returned")],
)  # fmt: skip
@pytest.mark.parametrize("base", ["sum", "latest"])
def test_faults_of_load(load, error, base, cut):
    op = replace({"sum": SQUARES, "latest": LATEST_DOUBLE}[base], load=load)
    with pytest.raises((TypeError, ValueError), match=error):
        distscan.scan(np.ones(100)[cut(100)], op)


def test_arguments():
    with pytest.raises(TypeError, match="load= must be a function"):
        distscan.Operator("x", np.add, load="x")
    with pytest.raises(TypeError, match="cuda_load= must be text"):
        distscan.Operator("x", np.add, cuda_load=1)
    assert operators.unloaded(SQUARES) is operators.BUILTIN["sum"]
    assert operators.unloaded(LATEST_DOUBLE) is LATEST_DOUBLE
