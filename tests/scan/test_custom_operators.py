"""Operators of one's own: their order, their operands, their results."""

import math

import numpy as np
import pytest

import distscan
from distscan import DistscanError, Operator
from support.arrays import host
from support.cases import FORMS, STRATEGIES, pairs
from support.data import exact
from support.operators import (
    BASE,
    FINGERPRINTS,
    PRINT,
    WORDS,
    digits,
    fingerprints,
    letters,
    printed,
    words,
)
from support.processes import everywhere
from support.reference import CALLS, check

# ---- operators of one's own, over numbers and structures; those that record the order of operands


@pytest.mark.parametrize("n", [0, 1, 5, 33, 2049, 20001])
def test_words(n, strategy, xp, cut, rng):
    x = letters(rng, n)
    y = distscan.scan(xp.asarray(x[cut(n)]), WORDS, strategy=strategy)
    np.testing.assert_array_equal(host(y), words(x)[cut(n)])


@pytest.mark.parametrize("n", [0, 1, 5, 33, 2049, 20001])
def test_structures(n, strategy, cut, rng):
    x = digits(rng, n)
    y = distscan.scan(x[cut(n)], FINGERPRINTS, strategy=strategy)
    assert y.dtype == PRINT
    np.testing.assert_array_equal(y, printed(x)[cut(n)])


def test_operators_are_associative_and_do_not_commute(rng):
    for op, (a, b, c) in ((WORDS, letters(rng, 3)), (FINGERPRINTS, digits(rng, 3))):
        assert op.combine(op.combine(a, b), c) == op.combine(a, op.combine(b, c))
        assert op.combine(a, b) != op.combine(b, a) or a == b
        identity = op.identity(a.dtype)
        assert op.combine(identity, a) == op.combine(a, identity) == a


@pairs(group_by="call", form=FORMS, call=CALLS, strategy=STRATEGIES)
def test_forms_of_structures(form, call, strategy, cut, rng):
    form = form | {"initial": form["initial"] and (3, 5)}
    check(digits(rng, 333), FINGERPRINTS, cut=cut, call=call, strategy=strategy, **form)


def test_structures_in_other_layouts(cut, rng):
    """Byte order and padding are the input's own affair; in place, and strided."""
    x = digits(rng, 500)
    mine = cut(500)
    y = distscan.scan(x.astype(PRINT.newbyteorder())[mine], FINGERPRINTS)
    np.testing.assert_array_equal(y, printed(x)[mine])
    padded = np.dtype({"names": ["digits", "power"], "formats": ["u8", "u8"], "offsets": [4, 16]})
    spread = np.zeros(2 * (mine.stop - mine.start), padded)[::2]
    spread["digits"], spread["power"] = x["digits"][mine], BASE
    operator = distscan.Operator("padded", lambda a, b: fingerprints(a, b).astype(padded))
    y = distscan.scan(spread, operator)
    np.testing.assert_array_equal(y["digits"], printed(x)["digits"][mine])
    y = x[mine].copy()
    distscan.scan(y, FINGERPRINTS, out=y)
    np.testing.assert_array_equal(y, printed(x)[mine])


def test_identity_is_a_value_a_function_or_absent(comm):
    x = np.arange(1, 4) + comm.rank
    whole = np.concatenate(comm.allgather(x))
    want = np.concatenate([[0], np.cumsum(whole)[:-1]])[3 * comm.rank :][:3]
    for identity in (0, lambda dtype: dtype.type(0), np.int8(0)):
        op = distscan.Operator("mine", lambda a, b: a + b, identity=identity)
        np.testing.assert_array_equal(distscan.scan(x, op, exclusive=True), want)
    op = distscan.Operator("mine", lambda a, b: a + b)
    np.testing.assert_array_equal(distscan.scan(x, op, exclusive=True, initial=0), want)
    everywhere(comm, ValueError, "operator 'mine' has no identity",
               lambda: distscan.scan(x, op, exclusive=True))  # fmt: skip


@pytest.mark.parametrize(
    ("code", "identity", "kind", "text"),
    [
        ("l", 1.5, ValueError, "has 1.5, which int64 does not have"),
        ("l", lambda dtype: 1.5, ValueError, "has 1.5, which int64 does not have"),
        ("l", np.nan, ValueError, "has nan, which int64 does not have"),
        ("b", 300, OverflowError, "has 300, which is out of bounds for int8"),
        ("d", 1j, TypeError, "has 1j, which is complex"),
        ("d", np.ma.masked, ValueError, "is masked"),
        ("l,d", (0, np.ma.masked), ValueError, "is masked"),
        ("l,d", (0.5, 0), ValueError, "has 0.5, which int64 does not have"),
    ],
)
def test_an_identity_that_the_type_does_not_have(code, identity, kind, text, comm):
    op = distscan.Operator("mine", lambda a, b: b, identity=identity)
    everywhere(comm, kind, f"identity of operator 'mine' {text}",
               lambda: distscan.scan(np.zeros(3, code), op, exclusive=True))  # fmt: skip


@pytest.mark.parametrize("identity", [None, lambda dtype: 1 // 0])
def test_an_identity_that_no_shard_needs(identity, comm):
    """Only an empty shard, and an exclusive scan without ``initial``, need it."""
    op = distscan.Operator("mine", np.add, identity=identity, mpi="SUM", mpi_kinds="i")
    np.testing.assert_array_equal(distscan.scan([1, 1], op), 2 * comm.rank + np.arange(1, 3))


def test_ufuncs_of_ones_own(comm):
    """The ufunc's accumulate decides the types, of whosever operator."""
    x = np.arange(3, 7, dtype="b") + comm.rank
    whole = np.concatenate(comm.allgather(x))
    op = distscan.Operator("hypot", np.hypot, cuda="hypot(a, b)", identity=0)
    y = distscan.scan(x, op)
    want = np.hypot.accumulate(whole)
    assert y.dtype == want.dtype
    np.testing.assert_allclose(y, want[4 * comm.rank :][:4], rtol=1e-3)


@pytest.mark.parametrize(
    ("dtype", "op", "message"),
    [
        ([("a", "f8")], "sum", r"x is \[\('a', '<f8'\)\]; .*structures"),
        ([("a", "f8", 2)], "sum", "x is .*structures"),
        ([("a", "f8"), ("b", "O")], WORDS, "x is .*, in which field 'b' is object"),
        ([("a", "U3", 2)], WORDS, "x is .*, in which field 'a' is "),
        ([("a", [("b", "f8"), ("c", "M8[s]")])], WORDS, r"in which field 'a.c' is datetime64\[s\]"),
        ([("a", [("b", "f8")], 2), ("d", [("e", [("f", "S1")], 3)])], WORDS, "field 'd.e.f' is"),
        ([("a", "f8", 0)], WORDS, "x is .*, in which field 'a' is "),
        ([], WORDS, r"x is \[\]; a scan takes"),
    ],
)
def test_structures_that_are_refused(dtype, op, message, comm):
    everywhere(comm, TypeError, message, lambda: distscan.scan(np.zeros(3, dtype), op))


def test_one_structure_throughout(comm):
    x, other = np.zeros(3, PRINT), np.dtype([("a", "f8"), ("b", "f8")])
    for options in ({"dtype": other}, {"out": np.zeros(3, other)}, {"dtype": "f8"}):
        everywhere(comm, TypeError, "same structured type",
                   lambda given=options: distscan.scan(x, FINGERPRINTS, **given))  # fmt: skip


def chosen(a, b):
    """The latest that is not 0, as one writes it in NumPy; a view of nothing would not do."""
    assert a.shape == b.shape
    assert b.size
    made = a.copy()
    made[b != 0] = b[b != 0]
    return made


@pytest.mark.parametrize("reverse", [False, True])
def test_functions_are_given_arrays_of_one_shape(reverse, strategy, cut, rng):
    op = distscan.Operator("chosen", chosen, identity=0)
    want = np.frompyfunc(lambda a, b: b or a, 2, 1).accumulate
    for shape in ((1,), (3000,), (40, 3)):
        x, mine = rng.choice([0, 0, 5, 7], shape), cut(shape[0])
        y = distscan.scan(x[mine], op, axis=0, initial=2, reverse=reverse, strategy=strategy)
        seen = np.concatenate([np.full((1, *shape[1:]), 2), x[::-1] if reverse else x])
        whole = want(seen.astype(object), axis=0)[1:]
        np.testing.assert_array_equal(y, (whole[::-1] if reverse else whole)[mine])
    x, heads = rng.choice([0, 5, 7], 3000), rng.random(3000) < 0.1
    y = distscan.scan(x[cut(3000)], op, segments=heads[cut(3000)], exclusive=True)
    runs = [
        want(np.append(0, run).astype(object))[:-1] for run in np.split(x, np.flatnonzero(heads))
    ]
    np.testing.assert_array_equal(y, np.concatenate(runs)[cut(3000)])


FOR_NUMBERS = {
    "gcd": (math.gcd, TypeError),
    "hypot": (math.hypot, TypeError),
    "max": (max, ValueError),
    "later": (lambda a, b: b if b else a, ValueError),
}


@pairs(group_by="name", name=FOR_NUMBERS, who=["last", "every"], strategy=STRATEGIES)
def test_functions_of_numbers_are_told_so(name, who, strategy, comm):
    """On every rank; few elements are combined one by one, and then Python's max may do."""
    function, kind = FOR_NUMBERS[name]
    op = distscan.Operator(name, function)
    x = np.arange(99) if who == "every" or comm.rank == comm.size - 1 else np.arange(0)
    message = f"operator '{name}': its numpy= function does not take arrays (.*); numpy.vectorize"
    text = everywhere(comm, kind, message, lambda: distscan.scan(x, op, strategy=strategy))
    assert who == "every" or comm.size == 1 or text.startswith(f"rank {comm.size - 1}: ")


@pytest.mark.parametrize("made", [np.vectorize, lambda f: np.frompyfunc(f, 2, 1)])
def test_functions_of_numbers_made_for_arrays(made, strategy, cut, rng):
    x = rng.choice([60, 90, 84, 1 << 40], 2000)
    op = distscan.Operator("gcd", made(math.gcd))
    y = distscan.scan(x[cut(2000)], op, strategy=strategy)
    np.testing.assert_array_equal(y, np.gcd.accumulate(x)[cut(2000)])


def test_other_faults_of_functions_are_their_own(comm):
    def fails(a, b):
        raise ValueError("a bad day")

    op = distscan.Operator("mine", fails)
    text = everywhere(comm, ValueError, "a bad day", lambda: distscan.scan(np.arange(3), op))
    assert "vectorize" not in text


def test_operators_that_cannot_be():
    with pytest.raises(TypeError, match="numpy= must be a function"):
        distscan.Operator("mine", "a + b")
    with pytest.raises(TypeError, match="cuda= must be text"):
        distscan.Operator("mine", np.add, lambda a, b: a + b)


def test_initial_is_one_value(comm, cut, rng):
    x = digits(rng, 200)
    y = distscan.scan(x[cut(200)], FINGERPRINTS, initial=[(0, 1)])
    np.testing.assert_array_equal(y, printed(x)[cut(200)])
    everywhere(comm, ValueError, r"not an array of shape \(2,\)",
               lambda: distscan.scan(x, FINGERPRINTS, initial=[(0, 1), (0, 1)]))  # fmt: skip


@pytest.mark.gpu
def test_no_plans_of_structures_on_a_gpu(cp, comm):
    everywhere(comm, TypeError, "CuPy has no structured arrays",
               lambda: distscan.Plan(comm, 3, PRINT, FINGERPRINTS, backend="cuda"))  # fmt: skip


@pytest.mark.gpu
def test_on_a_gpu_without_a_cuda_form(cp, comm):
    op = distscan.Operator("mine", lambda a, b: a + b)
    everywhere(comm, TypeError, "operator 'mine' has no CUDA form",
               lambda: distscan.scan(cp.zeros(3), op))  # fmt: skip


@pytest.mark.gpu
def test_compile_errors_on_every_rank(cp, comm):
    op = distscan.Operator("mine", lambda a, b: a + b, "const T c = a;\nreturn c + nonsense;")
    text = everywhere(comm, DistscanError, "nonsense", lambda: distscan.scan(cp.zeros(3), op))
    assert "operator mine(2): error" in text
    assert "return c + nonsense;" in text


# ---- what operators of one's own do with their operands, and what they return --------------------


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
OPTIONS = {
    "plain": {},
    "exclusive": {"exclusive": True},
    "reverse": {"reverse": True},
    "initial": {"initial": 3},
    "axis": {"axis": 0},
    "segments": {"segments": np.arange(5) == 2},
}


@pairs(group_by="writer", writer=WRITERS, form=OPTIONS, strategy=STRATEGIES)
def test_operands_are_not_written(writer, form, strategy, comm, rng):
    """Such an operator is refused by name, on every rank, and the input is as it was."""
    fields = writer == "into_fields"
    op, options = Operator("f", WRITERS[writer], identity=(0, 1) if fields else 0), OPTIONS[form]
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


@pairs(group_by="case", case=ALIASES, n=[1, 2, 33, 20001], strategy=STRATEGIES)
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
    "nothing": (lambda a, b: None, "d", "returned None"),
}


@pairs(group_by="strategy", case=OTHER_KINDS, strategy=STRATEGIES)
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


@pairs(group_by="strategy", case=SAME_KIND, strategy=STRATEGIES)
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


@pairs(group_by="strategy", case=OTHER_SHAPES, strategy=STRATEGIES)
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
