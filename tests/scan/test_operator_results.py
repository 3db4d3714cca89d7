"""What operators of one's own do with their operands, and what they return."""

import numpy as np
import pytest

import distscan
from distscan import Operator
from support.data import exact
from support.together import everywhere
from support.words import FINGERPRINTS, PRINT, digits, printed


def into_fields(a, b):
    b["digits"] = a["digits"] * b["power"] + b["digits"]
    b["power"] *= a["power"]
    return b


def into_later(a, b):
    b += a
    return b


def into_earlier(a, b):
    return np.add(a, b, out=a)


def by_index(a, b):
    b[b == 0] = a[b == 0]
    return b.copy()


def sorted_in_place(a, b):
    b.sort(axis=0)
    return a + b


WRITERS = {
    f.__name__: f for f in (into_fields, into_later, into_earlier, by_index, sorted_in_place)
}
FORMS = {
    "plain": {},
    "exclusive": {"exclusive": True},
    "reverse": {"reverse": True},
    "initial": {"initial": 3},
    "axis": {"axis": 0},
    "segments": {"segments": np.arange(5) == 2},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("writer", WRITERS)
def test_operands_are_not_written(writer, form, strategy, comm, rng):
    """Such an operator is refused by name, on every rank, and the input is as it was."""
    fields = writer == "into_fields"
    op, options = Operator("f", WRITERS[writer], identity=(0, 1) if fields else 0), FORMS[form]
    x = digits(rng, 5) if fields else rng.integers(0, 3, 5)
    before = x.copy()
    if form == "axis":
        x = before = np.stack([x, x], 1)
    if fields and form == "initial":
        options = {"initial": (3, 1)}
    if form == "segments":
        strategy = "auto"
    text = everywhere(comm, ValueError, "operator 'f' writes into an operand",
                      lambda: distscan.scan(x, op, strategy=strategy, **options))  # fmt: skip
    assert "read-only" in text
    np.testing.assert_array_equal(x, before)


def test_operands_are_not_written_between_ranks(comm):
    """One element to a rank: only the exchange combines."""
    op = Operator("f", into_later, identity=0)
    if comm.size == 1:
        assert distscan.scan([4], op) == 4
        return
    everywhere(comm, (ValueError, RuntimeError), "operator 'f' writes into an operand",
               lambda: distscan.scan([4], op))  # fmt: skip


def test_a_plan_says_it_too():
    op = Operator("f", into_later, identity=0)
    plan = distscan.Plan(None, 5, "i8", op, backend="cpu")
    with pytest.raises(ValueError, match="operator 'f' writes into an operand"):
        plan(np.arange(5))


def test_other_faults_of_a_function_are_its_own(comm):
    def fails(a, b):
        raise ValueError("not today")

    everywhere(comm, ValueError, "not today",
               lambda: distscan.scan(np.arange(5), Operator("f", fails)))  # fmt: skip


KEPT = np.empty(70000, PRINT)


def in_one_buffer(a, b):
    """Return the same memory at every call; an operand that is part of it would be spoilt."""
    made = KEPT[: b.size].reshape(b.shape)
    made["power"] = 0
    made["digits"] = a["digits"] * b["power"] + b["digits"]
    made["power"] = a["power"] * b["power"]
    return made


@pytest.mark.parametrize("n", [1, 2, 33, 60001])
def test_a_result_in_one_buffer(n, strategy, cut, rng):
    x, mine = digits(rng, n), cut(n)
    y = distscan.scan(x[mine], Operator("f", in_one_buffer, identity=(0, 1)), strategy=strategy)
    np.testing.assert_array_equal(y, printed(x)[mine])


ALIASES = {
    "later": (lambda a, b: b, lambda x: x),
    "earlier": (lambda a, b: a, lambda x: np.broadcast_to(x[:1], x.shape)),
    "view": (lambda a, b: b[...].view(), lambda x: x),
    "ravelled": (lambda a, b: b.reshape(-1).reshape(b.shape), lambda x: x),
}


@pytest.mark.parametrize("n", [1, 2, 33, 20001])
@pytest.mark.parametrize("case", ALIASES)
def test_a_result_that_is_an_operand(case, n, strategy, cut, rng):
    function, want = ALIASES[case]
    op, mine = Operator("f", function), cut(n)
    for shape in ((n,), (n, 3)):
        x = rng.integers(0, 1 << 40, shape)
        given = x[mine].copy()
        y = distscan.scan(given, op, axis=0, strategy=strategy)
        np.testing.assert_array_equal(y, want(x)[mine])
        np.testing.assert_array_equal(given, x[mine])
        y = distscan.scan(given, op, axis=0, reverse=True, strategy=strategy)
        np.testing.assert_array_equal(y, want(x[::-1])[::-1][mine])
        y = distscan.scan(given, op, axis=0, strategy=strategy, initial=7, exclusive=True)
        behind = np.concatenate([np.full((1, *shape[1:]), 7), x])
        np.testing.assert_array_equal(y, want(behind)[:-1][mine])


@pytest.mark.parametrize("case", ALIASES)
def test_a_result_that_is_an_operand_in_segments(case, cut, rng):
    function, want = ALIASES[case]
    x, heads = rng.integers(0, 1 << 40, 9000), rng.random(9000) < 0.1
    mine = cut(9000)
    y = distscan.scan(x[mine], Operator("f", function), segments=heads[mine])
    parts = [want(part) for part in np.split(x, np.flatnonzero(heads)) if part.size]
    np.testing.assert_array_equal(y, np.concatenate(parts)[mine])


# ---- the type of a result ------------------------------------------------------------------

OTHER_KINDS = {
    "complex of integers": (lambda a, b: a + b + 0j, "l", "returned complex128 for int64"),
    "complex of floats": (lambda a, b: a + b + 0j, "d", "returned complex128 for float64"),
    "floats of integers": (lambda a, b: a * 0.5 + b, "i", "returned float64 for int32"),
    "signed of unsigned": (lambda a, b: a.astype("l") - b, "B", "returned int64 for uint8"),
    "integers of bools": (lambda a, b: a.astype("b") + b, "?", "returned int8 for bool"),
    "text": (lambda a, b: b.astype(str), "l", "returned <U21 for int64"),
    "dates": (lambda a, b: b.astype("M8[s]"), "l", r"returned datetime64\[s\] for int64"),
    "numbers of structures": (lambda a, b: b["power"], PRINT, "returned uint64 for"),
    "Python's floats": (np.frompyfunc(lambda a, b: a + b / 3, 2, 1), "l", "returned float64 for"),
    "a list": (lambda a, b: (b / 3).tolist(), "l", "returned float64 for int64"),
}


@pytest.mark.parametrize("case", OTHER_KINDS)
def test_results_of_another_kind_are_refused(case, strategy, comm):
    function, code, message = OTHER_KINDS[case]
    x = np.ones(5, code)
    everywhere(comm, TypeError, f"operator 'f' {message}",
               lambda: distscan.scan(x, Operator("f", function), strategy=strategy))  # fmt: skip


@pytest.mark.parametrize("function", [lambda a, b: None, lambda a, b: a + b + 0j])
def test_they_are_refused_between_ranks(function, comm):
    if comm.size > 1:
        everywhere(comm, (TypeError, RuntimeError), "operator 'f' returned",
                   lambda: distscan.scan([1.0], Operator("f", function)))  # fmt: skip
    with pytest.raises(TypeError, match="operator 'f' returned"):
        Operator("f", function).combine(1.0, 2.0)


SAME_KIND = {
    "wider floats": (lambda a, b: a.astype("d") + b, "f"),
    "wider integers": (lambda a, b: a.astype("l") + b, "b"),
    "unsigned of signed": (lambda a, b: (a + b).astype("L"), "l"),
    "another byte order": (lambda a, b: (a + b).astype(">i8"), "l"),
    "Python's integers": (np.frompyfunc(lambda a, b: a + b, 2, 1), "L"),
    "Python's floats": (np.frompyfunc(lambda a, b: a + b, 2, 1), "d"),
    "a list": (lambda a, b: (a + b).tolist(), "I"),
}


@pytest.mark.parametrize("case", SAME_KIND)
def test_results_of_the_same_kind_are_cast(case, strategy, cut, rng):
    function, code = SAME_KIND[case]
    x, mine = rng.integers(0, 3, 40).astype(code), cut(40)
    if case == "wider integers":  # which wrap
        x = exact(rng, "sum", code, 40)
    y = distscan.scan(x[mine], Operator("f", function, identity=0), strategy=strategy)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, np.cumsum(x, dtype=code)[mine])


@pytest.mark.parametrize("shape", [(), (3,)])
def test_numbers_wrap_as_arrays_do(shape):
    """Of 0-d arrays NumPy makes numbers, which it would not put where they are out of bounds."""
    op = Operator("f", lambda a, b: np.add(a, b, dtype=np.int64).astype("h"))
    made = op.combine(np.full(shape, 100, "b"), np.full(shape, 100, "b"))
    assert (made.shape, made.dtype) == (shape, np.int8)
    np.testing.assert_array_equal(made, -56)


OTHER_SHAPES = {
    "a number": lambda a, b: 1.0,
    "a total": lambda a, b: np.sum(a + b),
    "one element": lambda a, b: np.ravel(a + b)[:1],
}


@pytest.mark.parametrize("case", OTHER_SHAPES)
def test_results_of_another_shape_are_refused(case, strategy, comm):
    """Also what NumPy could broadcast."""
    op = Operator("f", OTHER_SHAPES[case])
    everywhere(comm, ValueError, r"operator 'f' returned shape \(.*\) for operands of shape \(",
               lambda: distscan.scan(np.ones(5), op, strategy=strategy))  # fmt: skip


def test_each_step_is_in_the_type_of_the_operands():
    op = Operator("f", lambda a, b: a.astype("l") + b)
    one = np.full(3, 100, "b")
    made = op.combine(one, one)
    assert made.dtype == one.dtype
    np.testing.assert_array_equal(made, -56)


@pytest.mark.parametrize("op", [FINGERPRINTS, Operator("f", lambda a, b: b)])
def test_combine_returns_memory_of_its_own(op, rng):
    a, b = digits(rng, 4), digits(rng, 4)
    for made in (op.combine(a, b), op.combine(a[0], b[0]), op.combine(a[:0], b[:0])):
        assert made.flags.writeable
        assert not np.shares_memory(made, a)
        assert not np.shares_memory(made, b)


def test_kinds_of_objects():
    """Only bool goes into bool; what has no type in NumPy is turned into one."""
    big = np.array([2**64 - 1], object)
    for result, kind in (([1, 2], "uint8"), (1.5, "float64"), (-3, "uint8"), (big, "uint8"),
                         (np.int8(3), "int8")):  # fmt: skip
        x = np.zeros(np.shape(result), bool)
        with pytest.raises(TypeError, match=f"returned {kind} for bool"):
            Operator("f", lambda *_, made=result: made).combine(x, x)
    for result in (True, 2**70):
        assert Operator("f", lambda *_, made=result: made).combine(np.False_, np.False_)
